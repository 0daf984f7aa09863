"""One BLAS thread while steps run on the host.

The matrices of a step are small. Two pools of threads, NumPy's and XLA's, that wait for each other's cores made steps
of 50 to 200 dimensions two to four times slower (measured on two cores).
"""

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_LARGE = 500  # from this dimension on, the matrices are worth all threads


def one_blas_thread(dim: int = 0) -> AbstractContextManager[Any]:
    """Within it, NumPy's and SciPy's linear algebra uses one thread, unless there are d × d matrices with a large d.

    Products of long, narrow matrices were up to 200 times slower with two threads on a busy machine.
    """
    return nullcontext() if dim >= _LARGE else _controller().limit(limits=1, user_api="blas")


@functools.cache
def _controller() -> Any:
    import scipy.linalg.blas  # noqa: F401 - SciPy has a BLAS of its own, which must be loaded to be found
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
