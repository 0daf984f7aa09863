"""Benchmarks: speed and quality against peers, in one run."""
