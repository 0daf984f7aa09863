"""The models of `bench models`: real posteriors, written from their mathematics, one file a kind; see `registry.py`."""
