"""Fifteen posteriors of posteriordb with gold-standard reference draws: real models to judge a fit by."""

from bures.posteriordb.reader import (
    Posterior as Posterior,
    Reference as Reference,
    find_path as find_path,
    load as load,
    names as names,
)
