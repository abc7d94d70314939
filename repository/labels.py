"""The label files of a model's outputs, with one label per line, for the classification extension.

Runs in the poller; front ends are sent the labels and never open the files. A label file is read up to a bound, and
never from outside the model's directory.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.errors import InvalidArgumentError
from shoal.model_config.files import inside, read

#: The most bytes of all label files of a model (ours). Its labels travel in one control message, which
#: carries 64 MiB; ImageNet's 21,841 labels have 0.8 MB.
MAX_BYTES = 16 << 20

Labels = dict[str, tuple[str, ...]]


def read_labels(model_dir: Path, config: Mapping[str, Any]) -> Labels:
    """The labels of each output that has a label_filename, by the output's name and in the order of the lines.

    `config` is the finished configuration. Raises InvalidArgumentError for a file that lies outside `model_dir`,
    directly or by a link, and for any file but a regular one of UTF-8 text within MAX_BYTES.
    """
    labels: Labels = {}
    left = MAX_BYTES
    for output in config["output"]:
        filename: str = output["label_filename"]
        if filename:
            what = f"label file path '{filename}' for output '{output['name']}' in model '{config['name']}'"
            data = _read(inside(model_dir, filename, f"{what} is outside model directory"), left, what)
            left -= len(data)
            labels[output["name"]] = _lines(data, what)
    return labels


def _read(path: Path, max_nbytes: int, what: str) -> bytes:
    try:
        data = read(path, max_nbytes + 1)
    except OSError as error:
        raise InvalidArgumentError(
            f"{what} cannot be read: {error.strerror}; put a text file with one label a line at '{path}' "
            "that the server's user can read, or remove label_filename from the configuration"
        ) from error
    if len(data) > max_nbytes:
        raise InvalidArgumentError(
            f"{what} is too large: the label files of a model may have {MAX_BYTES} bytes in all; shorten the labels"
        )
    return data


def _lines(data: bytes, what: str) -> tuple[str, ...]:
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{what} is not UTF-8 at byte {error.start}; save the file as plain UTF-8 text"
        ) from error
    if not lines[-1]:
        lines.pop()  # the last line ends with a newline, behind which no line begins
    return tuple(lines)
