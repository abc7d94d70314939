"""The number of threads of numpy's BLAS. A zygote loads BLAS with one thread, since threads do not survive a fork; a
worker raises the number afterwards."""

import ctypes
import os

#: The names that builds of numpy give to OpenBLAS's function that sets the number of threads.
_NAMES = tuple(f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", ""))


def use_threads(number: int) -> None:
    """Make numpy's BLAS compute with that many threads from now on; no effect if it is not OpenBLAS."""
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "openblas" in line}
    for path in paths:
        if not os.path.exists(path):
            continue  # the file on disk was replaced after this process had loaded it
        library = ctypes.CDLL(path)
        for name in _NAMES:
            if hasattr(library, name):
                getattr(library, name)(number)
                break
