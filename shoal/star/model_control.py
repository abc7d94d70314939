"""Load requests that bring the model's files (`file:1/model.onnx`, the bytes in base64): the files are written to a
directory that takes the place of the model's, and that the supervisor takes over.

Each file is written inside that directory, which is new and private, whatever path the client gives. Runs on the road,
and in workers whose models load others.
"""

import base64
import os
import posixpath
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from shoal.errors import InternalError, InvalidArgumentError
from shoal.repository import override_files
from shoal.star.questions import NoAnswerError

PREFIX = "file:"
MAX_FILES = 1024  # ours: a model has a handful of files per version
MAX_PATH_BYTES = 1024  # ours: the system's limit of 4096 includes the path of the directory
_MAX_PART_BYTES = 255  # the limit of most file systems


def place_files(parameters: Iterable[str]) -> dict[str, str]:
    """The relative path of each file → its parameter; of two parameters with one path the last counts, as in Triton.

    Raises InvalidArgumentError for a path that leads outside the model's directory, or cannot be a file's, and for more
    than MAX_FILES.
    """
    places: dict[str, str] = {}
    directories: set[str] = set()
    for parameter in parameters:
        path = _path(parameter)
        parents = [path[:end] for end, character in enumerate(path) if character == "/"]
        if any(parent in places for parent in parents):
            raise InvalidArgumentError(f"Invalid file parameter '{parameter}', directory has been created as a file")
        if path in directories:
            raise InvalidArgumentError(f"Invalid file parameter '{parameter}', file has been created as a directory")
        places[path] = parameter
        directories.update(parents)
    if len(places) > MAX_FILES:
        raise InvalidArgumentError(f"{len(places)} files override the model's, expected at most {MAX_FILES}")
    return places


def _path(parameter: str) -> str:
    """The path that a parameter `file:…` names, normalised as in Triton and relative to the model's directory. Raises
    InvalidArgumentError."""
    name = parameter.removeprefix(PREFIX).lstrip("/")
    path = posixpath.normpath(name)
    if path.split("/")[0] == "..":
        raise InvalidArgumentError(
            f"Invalid file parameter '{parameter}' with normalized path '{path}' must stay within model directory."
        )
    encoded = path.encode("utf-8", "backslashreplace")
    is_possible = "\0" not in path and max(map(len, encoded.split(b"/"))) <= _MAX_PART_BYTES
    if path == "." or name.endswith("/") or not is_possible or len(encoded) > MAX_PATH_BYTES:
        raise InvalidArgumentError(
            f"Invalid file path in parameter '{parameter[:80]}': "
            f"expected the path of a file below the model's directory, like '{PREFIX}1/model.onnx', "
            f"of at most {MAX_PATH_BYTES} bytes, each part at most {_MAX_PART_BYTES}"
        )
    return path


def write_files(places: Mapping[str, str], contents: Mapping[str, str | bytes]) -> tuple[str, int]:
    """Write files to a new directory that only this user can enter. Returns the directory and the descriptor of its
    lock (repository/override_files.py).

    `places` are paths and parameters as from `place_files`, `contents` the files by parameter, as bytes or as text in
    base64. The caller must `remove_files` the directory, or close the descriptor when another process has locked it.
    Raises InvalidArgumentError for invalid base64, InternalError if the system refuses to write.
    """
    try:
        directory, lock = override_files.make()
        try:
            for path, parameter in places.items():
                target = Path(directory, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                content = contents[parameter]
                target.write_bytes(_decode(parameter, content) if isinstance(content, str) else content)
        except BaseException:
            remove_files(directory)
            os.close(lock)
            raise
    except OSError as error:
        raise InternalError(
            f"the files that override the model's cannot be written: {os.strerror(error.errno or 0)}. Make room in the "
            "directory for temporary files, or name another one by $TMPDIR"
        ) from error
    return directory, lock


def _decode(parameter: str, text: str) -> bytes:
    try:
        # Line breaks may be part of base64. Other characters, which Triton ignores, are refused: the file would be
        # damaged.
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise InvalidArgumentError(f"Invalid file parameter '{parameter}': expected base64, {error}") from error


def remove_files(directory: str) -> None:
    """Remove a directory that `write_files` has made."""
    shutil.rmtree(directory, ignore_errors=True)


#: The most bytes of a configuration, which is sent in one message (ours; most have kilobytes).
MAX_CONFIG_BYTES = 4 << 20


def check_config(config: str | None) -> None:
    """Raise InvalidArgumentError if a configuration is too long."""
    if config is not None and len(config.encode("utf-8", "replace")) > MAX_CONFIG_BYTES:
        raise InvalidArgumentError(f"Load parameter 'config' has more than the maximum of {MAX_CONFIG_BYTES} bytes")


def load(ask: Callable[[str, dict[str, Any]], Any], name: str, config: str | None, contents: dict[str, Any]) -> None:
    """Ask the supervisor to load a model, or its newest version; returns once the model serves. Raises ShoalError.

    `contents` are files by parameter, as bytes or as text in base64; the dictionary is cleared once they are written.
    """
    places = place_files(contents)
    if places and config is None:
        raise InvalidArgumentError("Load parameter 'config' must be specified for model file override")
    directory, lock = write_files(places, contents) if places else (None, None)
    contents.clear()  # loading takes long, and files may be large
    try:
        ask("load", {"model": name, "config": config, "directory": directory})
    except NoAnswerError:
        raise  # without an answer the model may still be loading from that directory
    except BaseException:
        if directory is not None:
            remove_files(directory)  # the load was refused: the supervisor has not taken the directory over
        raise
    finally:
        if lock is not None:
            os.close(lock)
