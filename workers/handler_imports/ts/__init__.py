"""The package `ts`, which TorchServe's handlers import; only workers of the backend `torchserve` have it on `sys.path`.

Names, arguments and behaviour are TorchServe 0.12.0's, the code is Shoal's. Nothing here imports shoal, and nothing
imports torch before a handler needs it. The backend (shoal.workers.backends.torchserve) makes the Context of a worker,
with the functions that take the handler's metrics and the parts of streamed responses.
"""

from ts import refused
from ts.version import __version__

refused.install()

__all__ = ["__version__"]
