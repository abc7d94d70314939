"""The fake CUDA runtime of scripts/gpu_check in a test's own process, and memory of other processes on that GPU."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu_check.finding import FAKES
from shoal.workers.gpu_pool import GpuPool

_FRESH = ("cuda", "shoal.workers.cuda", "tritonclient.utils.cuda_shared_memory")


@contextmanager
def fake_cuda(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`cuda.bindings.runtime`, whose GPU's memory lies in `folder`, for all that imports it meanwhile."""
    monkeypatch.setenv("FAKE_GPU", str(folder))
    monkeypatch.syspath_prepend(str(FAKES))
    _forget()
    from cuda.bindings import runtime  # pyright: ignore[reportMissingImports]

    try:
        yield runtime
    finally:
        _forget()


def others_memory(folder: Path, name: str, contents: bytes) -> bytes:
    """The handle of memory that another process has on the GPU, with these contents."""
    (folder / f"fake-{name}").write_bytes(contents)
    return f"fake-{name}".encode().ljust(64, b"\0")


def contents(folder: Path, name: str) -> bytes:
    """What lies there now."""
    return (folder / f"fake-{name}").read_bytes()


def is_open(folder: Path, name: str) -> bool:
    """Whether some process has it open."""
    return any(folder.glob(f"fake-{name}.open.*"))


def free_nbytes(pool: GpuPool) -> int:
    """The bytes of a pool that no part has, in however many pieces."""
    return sum(end - start for start, end in pool._extents.free) + sum(nbytes for _, nbytes in pool._returned)


def _forget() -> None:
    """Modules are found in sys.modules, and as attributes of their packages."""
    for name in [name for name in sys.modules if any(name == each or name.startswith(f"{each}.") for each in _FRESH)]:
        package, _, own = name.rpartition(".")
        module = sys.modules.pop(name)
        if getattr(sys.modules.get(package), own, None) is module:
            delattr(sys.modules[package], own)
