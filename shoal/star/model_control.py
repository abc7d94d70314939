"""Load requests of clients: their files are written to a directory, which the supervisor takes over."""

from collections.abc import Callable
from typing import Any

from shoal.errors import InvalidArgumentError
from shoal.star import file_overrides
from shoal.star.questions import NoAnswerError

#: The most bytes of a configuration (ours): most have kilobytes, and it travels in one message.
MAX_CONFIG_BYTES = 4 << 20


def check_config(config: str | None) -> None:
    """Raise InvalidArgumentError if a configuration is too long."""
    if config is not None and len(config.encode("utf-8", "replace")) > MAX_CONFIG_BYTES:
        raise InvalidArgumentError(f"Load parameter 'config' has more than the maximum of {MAX_CONFIG_BYTES} bytes")


def load(ask: Callable[[str, dict[str, Any]], Any], name: str, config: str | None, contents: dict[str, Any]) -> None:
    """Ask the supervisor to load a model, or its newest version; returns once the model serves. Raises ShoalError.

    `contents` are files by parameter, as bytes or as text in base64; the dictionary is cleared once they are written.
    """
    places = file_overrides.place(contents)
    if places and config is None:
        raise InvalidArgumentError("Load parameter 'config' must be specified for model file override")
    directory = file_overrides.write(places, contents) if places else None
    contents.clear()  # loading takes long, and files may be large
    try:
        ask("load", {"model": name, "config": config, "directory": directory})
    except NoAnswerError:
        raise  # without an answer the model may still be loading from that directory
    except BaseException:
        if directory is not None:
            file_overrides.remove(directory)  # a refusal: the supervisor has not taken the directory over
        raise
