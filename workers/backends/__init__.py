"""The backends, one file or package for each framework, imported only in workers that run it."""

import importlib

from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.workers.backends.backend import Backend

#: Backend name in config.pbtxt → (module in this package, class, module of its framework, what to install).
BACKENDS: dict[str, tuple[str, str, str, str]] = {
    "embedding": ("embedding.backend", "EmbeddingBackend", "", "shoal"),
    "fil": ("fil", "FilBackend", "treelite", "shoal[fil]"),
    "identity": ("identity", "IdentityBackend", "", "shoal"),
    "python": ("python.backend", "PythonBackend", "", "shoal"),
    "tensorrt": ("tensorrt.backend", "TensorrtBackend", "tensorrt", "shoal[tensorrt]"),
    "onnxruntime": ("onnxruntime", "OnnxruntimeBackend", "onnxruntime", "shoal[onnx]"),
    "openvino": ("openvino", "OpenvinoBackend", "openvino", "shoal[openvino]"),
    "tensorflow": ("tensorflow", "TensorflowBackend", "tensorflow", "shoal[tensorflow]"),
    "pytorch": ("pytorch.backend", "PytorchBackend", "torch", "shoal[torch]"),
    "torchserve": ("torchserve", "TorchserveBackend", "", "shoal"),
}


def create(name: str) -> Backend:
    """A backend that has loaded no model yet. Raises InvalidArgumentError for an unknown name, UnsupportedError if
    the backend's framework is not installed."""
    if name not in BACKENDS:
        raise InvalidArgumentError(
            f"unable to find backend library for backend '{name}', try specifying runtime on the model configuration."
        )
    module, class_name, _framework, distribution = BACKENDS[name]
    try:
        backend = getattr(importlib.import_module(f"{__name__}.{module}"), class_name)()
    except ImportError as error:
        raise UnsupportedError(
            f"backend '{name}' cannot be imported: {error}. Install it with: pip install '{distribution}'"
        ) from error
    assert isinstance(backend, Backend)
    return backend
