"""The target of a fit: a log density, its coordinates and their names, its derivatives in blocks."""

from bures.target.blocks import map_in_blocks as map_in_blocks, sum_in_blocks as sum_in_blocks
from bures.target.labels import Labels as Labels, Predicted as Predicted
from bures.target.sites import LocationScale as LocationScale
from bures.target.target import LogDensity as LogDensity, Target as Target, as_target as as_target
from bures.target.variables import Coordinates as Coordinates, coordinate_names as coordinate_names
