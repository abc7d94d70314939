"""The directory of the package `ts`, which only workers of this backend have on `sys.path`: the name is TorchServe's,
which may be installed beside Shoal."""

import os
import sys

from shoal import workers

HANDLER_IMPORTS = os.path.join(os.path.dirname(workers.__file__), "handler_imports")


def extend() -> None:
    """Put the directory first on this process's search path, unless it is on it."""
    if HANDLER_IMPORTS not in sys.path:
        sys.path.insert(0, HANDLER_IMPORTS)
