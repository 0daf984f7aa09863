"""Coordinates in which a Gaussian fits a target better, learned with the Gaussian."""

from bures.learned_centring.learn import Centring as Centring, learn_centring as learn_centring
