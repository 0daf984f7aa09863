"""The DataTree that `sample` returns: one that shows itself in notebooks, and knows the model it is of."""

from collections.abc import Sequence
from typing import Any

from xarray import DataTree

from bures.check import fail
from bures.target import Target


class SampleTree(DataTree):
    """A DataTree of draws with a verdict, its table, and predictions. A copy or a file of it is a tree as any other."""

    __slots__ = ("_target",)

    @classmethod
    def of(cls, tree: DataTree, target: Target) -> "SampleTree":
        found = cls(dataset=tree.to_dataset(inherit=False), children=dict(tree.children), name=tree.name)
        found._target = target
        return found

    def summary(self, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Any:
        """A table of the model's own variables with the verdict: see `bures.looking.Summary`."""
        from bures.looking import summarise_tree

        target = getattr(self, "_target", None)
        return summarise_tree(self, quantiles, () if target is None else target.names)

    def predict(self, key: Any, *data: Any, function: Any = None, **named: Any) -> DataTree:
        """What the model says of data at these draws: see `bures.predict`."""
        from bures.prediction import predict

        target = getattr(self, "_target", None)
        if target is None:
            remedy = "Use bures.predict(tree, target, key, ...) with a copy or a part of what bures.sample returned."
            raise fail("tree", "as bures.sample returned it", type(self).__name__, remedy)
        return predict(self, target, key, *data, function=function, **named)

    def _repr_html_(self) -> str:
        whole = super()._repr_html_()
        if "posterior" not in self.children or "rung" not in self.attrs:
            return whole
        from bures.looking.notebook import html_of_tree

        return html_of_tree(self, self.summary(), whole)

    def __reduce__(self) -> Any:
        """Another process gets a plain tree: models do not travel."""
        return DataTree.from_dict, (self.to_dict(), self.name)
