"""What a person looks at: the table of a fit, its form in notebooks, and its page."""

from bures.looking.elements import (
    Elements as Elements,
    elements_of as elements_of,
    elements_of_tree as elements_of_tree,
)
from bures.looking.table import Summary as Summary, summarise_fit as summarise_fit, summarise_tree as summarise_tree
