"""What a model may ask of the server that runs it: its directory, and other models to be loaded and unloaded."""

from triton_python_backend_utils import runtime
from triton_python_backend_utils.arguments import text


def get_model_dir() -> str:
    """The version directory of the model that runs here."""
    return runtime.require("get_model_dir()").model_dir


def load_model(model_name: str | bytes, config: str | bytes = "", files: dict[str, bytes] | None = None) -> None:
    """Load a model, and wait for it. `config` is a ModelConfig in JSON, `files` are by their name in the repository.

    Raises TritonModelException where it does not load.
    """
    runtime.require("load_model()").load_model(_name(model_name), text("'config'", config), files)


def unload_model(model_name: str | bytes, unload_dependents: bool = False) -> None:
    """Unload a model; returns at once. Raises TritonModelException."""
    runtime.require("unload_model()").unload_model(_name(model_name), unload_dependents)


def is_model_ready(model_name: str | bytes, model_version: str | bytes = "") -> bool:
    """Whether a model serves; of no version in particular where none is named."""
    return runtime.require("is_model_ready()").is_model_ready(_name(model_name), text("'model_version'", model_version))


def _name(model_name: str | bytes) -> str:
    return text("'model_name'", model_name)
