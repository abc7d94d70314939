"""Advice about a model's directory without a version: where the files lie, and where they belong.

A user who comes from a single file puts it into the model's directory, calls the version `v1`, or gives the model's
directory as the repository. Triton's error messages do not name these mistakes; the advice is appended to the
messages. Reads directories, in the poller.
"""

import os
from pathlib import Path

from shoal.errors import InvalidArgumentError
from shoal.file_kinds import exists, is_dir
from shoal.model_config.backends import PLATFORMS
from shoal.model_config.files import CONFIG_FILENAME
from shoal.repository.scan import is_version_name

_FILES = {row.filename for row in PLATFORMS}


def is_model(directory: Path) -> bool:
    """Whether a directory is that of a model, not a repository of models: it has a configuration, or a version."""
    if os.path.lexists(directory / CONFIG_FILENAME):  # also if the file is a link that points nowhere
        return True
    return is_dir(directory) and any(
        is_version_name(each.name) and (is_dir(each) or lost_link(each)) for each in directory.iterdir()
    )


def lost_link(path: Path) -> str:
    """The sentence about a link that leads nowhere, at a path or above it; "" where there is none."""
    for each in (path, *path.parents):
        if each.is_symlink() and not os.path.exists(each):  # Path.exists raises OSError for a link to itself
            return f"'{each}' is a link to '{os.readlink(each)}', which is not there"
    return ""


def explained(error: InvalidArgumentError, directory: Path) -> InvalidArgumentError:
    """The refusal of the model in this directory, with advice where the layout of its files is a cause."""
    advice = _advice(directory)
    return InvalidArgumentError(f"{str(error).rstrip('.')}. {advice}") if advice else error


def _advice(directory: Path) -> str:
    """Advice on what to move or rename so that the model has a version; "" if it has one, or cannot be read."""
    try:
        entries = {entry.name: is_dir(entry) for entry in sorted(directory.iterdir())}
        is_in_model = exists(directory.parent / CONFIG_FILENAME)
        has_models = any(is_folder and is_model(directory / name) for name, is_folder in entries.items())
    except OSError:
        return ""
    for name in entries:
        if is_version_name(name) and (lost := lost_link(directory / name)):
            return lost
    files = [name for name in entries if name in _FILES]
    if any(is_dir and is_version_name(name) for name, is_dir in entries.items()):
        return ""
    if is_version_name(directory.name) and (files or is_in_model):
        return (
            f"'{directory.parent}' looks like a model, not like a repository of models: name the directory above it, "
            f"--model-repository={directory.parent.parent}"
        )
    if has_models:
        return f"'{directory}' is a repository of models itself: name it, --model-repository={directory}"
    first = directory / "1"
    if files:
        return f"'{files[0]}' lies in the model's directory itself: move it into a version's, to '{first / files[0]}'"
    for name, is_folder in entries.items():
        number = name.lstrip("vV_-.")
        if is_folder and is_version_name(number):
            return (
                f"'{directory / name}' is no version, whose directory has a number for its name: rename it to "
                f"'{directory / number}'"
            )
    return f"'{directory}' has no version: make '{first}' for the model's file"
