"""Thousands of small fits in one call."""

from bures.many.driver import fit_many as fit_many
from bures.many.result import Fits as Fits
