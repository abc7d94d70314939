"""The backends, one file or package for each framework, imported only in workers that run it."""

import importlib

from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.workers.backends.backend import Backend

#: Backend name in config.pbtxt → (module in this package, class, what to install).
BACKENDS: dict[str, tuple[str, str, str]] = {
    "embedding": ("embedding", "EmbeddingBackend", "shoal"),
    "fil": ("fil", "FilBackend", "shoal[fil]"),
    "identity": ("identity", "IdentityBackend", "shoal"),
    "python": ("python", "PythonBackend", "shoal"),
    "tensorrt": ("tensorrt.backend", "TensorrtBackend", "shoal[tensorrt]"),
    "onnxruntime": ("onnxruntime", "OnnxruntimeBackend", "shoal[onnx]"),
    "openvino": ("openvino", "OpenvinoBackend", "shoal[openvino]"),
    "tensorflow": ("tensorflow", "TensorflowBackend", "shoal[tensorflow]"),
    "pytorch": ("pytorch", "PytorchBackend", "shoal[torch]"),
    "torchserve": ("torchserve", "TorchserveBackend", "shoal"),
}


def create(name: str) -> Backend:
    """A backend that has loaded no model yet. Raises InvalidArgumentError for an unknown name, UnsupportedError if
    the backend's framework is not installed."""
    if name not in BACKENDS:
        raise InvalidArgumentError(
            f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration."
        )
    module, class_name, distribution = BACKENDS[name]
    try:
        backend = getattr(importlib.import_module(f"{__name__}.{module}"), class_name)()
    except ImportError as error:
        raise UnsupportedError(
            f"backend '{name}' cannot be imported: {error}. Install it with: pip install '{distribution}'"
        ) from error
    assert isinstance(backend, Backend)
    return backend
