"""What a model may ask of the server that runs it: its directory, and other models to be loaded and unloaded."""

from triton_python_backend_utils import runtime


def get_model_dir() -> str:
    """The version directory of the model that runs here."""
    return runtime.require("get_model_dir()").model_dir


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Load a model, and wait for it. `config` is a ModelConfig in JSON, `files` are by their name in the repository.

    Raises TritonModelException where it does not load.
    """
    runtime.require("load_model()").load_model(model_name, config, files)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model; returns at once. Raises TritonModelException."""
    runtime.require("unload_model()").unload_model(model_name, unload_dependents)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model serves; of no version in particular where none is named."""
    return runtime.require("is_model_ready()").is_model_ready(model_name, model_version)
