"""Shoal: a model server that takes Triton's place.

The import name of all of Shoal, and what every process shares: errors, datatypes, requests, the model configuration and
the control plane. The processes and the medium between them are folders at the root of the repository (`frontend/`,
`batcher/`, `workers/`, `shm/`), imported as `shoal.frontend` and so on. Importing this package imports nothing else.
"""

from typing import TYPE_CHECKING

__all__ = ["AsyncClient", "Client", "__version__"]

_PUBLIC = {"Client": "shoal.client.kinds", "AsyncClient": "shoal.client.aio", "__version__": "shoal.version"}

if TYPE_CHECKING:
    from shoal.client.aio import AsyncClient
    from shoal.client.kinds import Client
    from shoal.version import __version__


def __getattr__(name: str) -> object:
    """Import a public name on first use: the server's processes need none. Raises AttributeError for others."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)
