"""Model control: a model's requests to its server to load, unload and check other models."""

from triton_python_backend_utils import runtime
from triton_python_backend_utils.arguments import text


def get_model_dir() -> str:
    """The version directory of the model that runs in this process. Raises TritonModelException without a server."""
    return runtime.require("get_model_dir()").model_dir


def load_model(model_name: str | bytes, config: str | bytes = "", files: dict[str, bytes] | None = None) -> None:
    """Load a model, and wait for it. `config` is a ModelConfig in JSON; `files` has the contents of files, by their
    names in the repository.

    Raises TritonModelException if the model does not load, or without a server.
    """
    runtime.require("load_model()").load_model(_name(model_name), text("'config'", config), files)


def unload_model(model_name: str | bytes, unload_dependents: bool = False) -> None:
    """Begin to unload a model, without waiting. Raises TritonModelException if the server refuses, or without a
    server."""
    runtime.require("unload_model()").unload_model(_name(model_name), unload_dependents)


def is_model_ready(model_name: str | bytes, model_version: str | bytes = "") -> bool:
    """Whether a model, or the named version of it, is served. Raises TritonModelException without a server."""
    return runtime.require("is_model_ready()").is_model_ready(_name(model_name), text("'model_version'", model_version))


def _name(model_name: str | bytes) -> str:
    return text("'model_name'", model_name)
