"""The pytorch backend: TorchScript, torch.export and AOTInductor archives, and modules written in Python."""

from shoal.workers.backends.pytorch.backend import PytorchBackend

__all__ = ["PytorchBackend"]
