"""The backend `torchserve`: handlers of TorchServe archives, run as TorchServe's workers run them."""

from shoal.workers.backends.torchserve import import_path

import_path.extend()

from shoal.workers.backends.torchserve.backend import TorchserveBackend  # noqa: E402 - it imports `ts`

__all__ = ["TorchserveBackend"]
