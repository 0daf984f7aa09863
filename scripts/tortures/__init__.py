"""The sections of `scripts/torture.py`, a file each."""
