"""The import path of Shoal's own package `ts`, which handlers import. Only workers of this backend have it on
`sys.path`, since TorchServe, whose package has the same name, may be installed beside Shoal."""

import os
import sys

from shoal import workers

#: The directory that has the package `ts`.
HANDLER_IMPORTS = os.path.join(os.path.dirname(workers.__file__), "handler_imports")


def extend() -> None:
    """Put HANDLER_IMPORTS first on this process's `sys.path`, unless it is there already."""
    if HANDLER_IMPORTS not in sys.path:
        sys.path.insert(0, HANDLER_IMPORTS)
