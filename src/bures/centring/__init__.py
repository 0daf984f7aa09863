"""One target in other coordinates: sites between centred and non-centred, and warps of single coordinates."""

from bures.centring.change import (
    AbstractChange as AbstractChange,
    Changed as Changed,
    change_coordinates as change_coordinates,
    changes_of as changes_of,
)
from bures.centring.numbers import change_by_numbers as change_by_numbers, numbers_of as numbers_of
from bures.centring.sites import (
    MOST_GROWTH as MOST_GROWTH,
    Conditioned as Conditioned,
    Parameters as Parameters,
    Recentred as Recentred,
    check_has_sites as check_has_sites,
    free_coordinates as free_coordinates,
    recentre as recentre,
)
from bures.centring.warp import Warp as Warp
