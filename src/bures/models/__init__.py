"""Built-in targets with known answers, and logistic regression with fast derivatives.

Each is an `equinox.Module` that holds its data as arrays, so that targets of one shape share one compilation.
"""

from bures.models.regression import (
    census as census,
    logistic_regression as logistic_regression,
    softplus as softplus,
)
from bures.models.toys import (
    banana as banana,
    eggbox as eggbox,
    funnel as funnel,
    gaussian as gaussian,
    student_t as student_t,
)
