"""Real data that ship with bures: the Census (UCI Adult) rows, and the paper's two designs made from them."""

import functools
import hashlib
import io
import os
from pathlib import Path

import numpy as np

from bures.check import check_option

_SHA256 = "af261e329108bdb21decac12a616eec4728b36831a118a903f3ec76946b68883"
_NUMBERS = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
_ATTRIBUTES = (
    "workclass",
    "education",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native_country",
)


def adult(path: str | os.PathLike | None = None) -> dict[str, np.ndarray]:
    """The 45,222 complete rows of the UCI Adult data, by column; attributes as codes into `NAME_categories`.

    `path` reads another copy of the packed file, which must be the same to the byte.
    """
    path = Path(path) if path is not None else Path(__file__).parent / "data" / "adult.npz"
    if not path.is_file():
        raise FileNotFoundError(f"The Census data are not at {str(path)!r}. Reinstall bures, or pass their path.")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != _SHA256:
        raise ValueError(f"{str(path)!r} is not the Census file of this bures (its SHA-256 differs). Reinstall bures.")
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


@functools.cache
def census(design: str = "screened") -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Design matrix, labels (income above $50,000) and column names for logistic regression on the Census data.

    All attributes are one-hot encoded, all columns but the intercept z-scored. Then

    - `"screened"`: the paper's d = 9, whose eight covariates it does not name. Columns in the order of their absolute
        correlation with the label, skipping any correlated beyond 0.75 with one already taken, until there are eight.
        The smallest eigenvalue of the posterior covariance is then 7.5e-5, the paper's, and the log evidence is
        1.6 nats from its ELBO.
    - `"full"`: the paper's d = 96. Column-pivoted QR keeps a maximal independent set, the intercept always.
    """
    check_option("design", design, ("screened", "full"))
    table = adult()
    columns = {name: table[name].astype(float) for name in _NUMBERS}
    for attribute in _ATTRIBUTES:
        for code, category in enumerate(table[f"{attribute}_categories"]):
            columns[f"{attribute}={category}"] = (table[attribute] == code).astype(float)
    names, X = tuple(columns), np.stack(list(columns.values()), axis=1)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = table["income"].astype(float)
    kept = _screen(X, y) if design == "screened" else _independent(X)
    X = np.column_stack([np.ones(len(y)), X[:, kept]])
    return X, y, ("intercept", *(names[i] for i in kept))


def _screen(X: np.ndarray, y: np.ndarray, count: int = 8, limit: float = 0.75) -> list[int]:
    """The `count` columns most correlated with y, none correlated beyond `limit` with another."""
    with_label = np.abs(X.T @ (y - y.mean()))
    between = np.abs(X.T @ X) / len(y)
    kept: list[int] = []
    for column in np.argsort(-with_label, kind="stable"):
        if len(kept) < count and all(between[column, other] < limit for other in kept):
            kept.append(int(column))
    return kept


def _independent(X: np.ndarray) -> list[int]:
    """A maximal set of columns independent of each other and of the intercept, by column-pivoted QR."""
    from scipy.linalg import qr

    # z-scored columns are orthogonal to the intercept already: keeping it costs nothing.
    factors = qr(X, mode="r", pivoting=True)
    size, pivots = np.abs(np.diagonal(factors[0])), factors[-1]
    return sorted(int(column) for column in pivots[size > 1e-9 * size[0]])
