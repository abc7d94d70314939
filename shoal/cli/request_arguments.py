"""The kinds of arguments that several verbs take: requests, parameters, counts, files to write, flags of a server."""

import argparse
import errno
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.cli.serve import CommandLineError
from shoal.cli.verb import VerbParser

#: The most bytes that are read from a pipe or device: as many as a request may have by the default of
#: --max-request-bytes.
MAX_PIPED_NBYTES = 2 << 30


def name_and_value(text: str) -> tuple[str, str]:
    """The parts of `<name>=<value>`. Raises ArgumentTypeError for any other text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"expected <name>=<value>, got '{text}'")
    return name, value


def count(text: str) -> int:
    """A whole number, at least one. Raises ArgumentTypeError for any other text."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got '{text}'")
    return int(text)


def add_requests(parser: VerbParser, question: str, sample: str | None = None, *, is_whole: bool = True) -> None:
    """Add the arguments of a verb that is given requests to a model. `question` is the error if no model is given,
    `sample` the default of --sample. With `is_whole`, the arguments include outputs and parameters."""
    parser.add_asked("model", question)
    parser.add_argument("inputs", nargs="*", default=[], type=name_and_value)
    parser.add_argument("--data", "--input-data", type=Path)
    parser.add_argument("--sample", choices=("zeros", "ones", "random"), default=sample)
    if is_whole:
        parser.add_argument("--output", action="append", default=[])
        parser.add_argument("--parameter", action="append", default=[], type=name_and_value)


def divided(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments of a verb, and the arguments behind `--`, which are those of a `shoal serve`."""
    at = [*argv, "--"].index("--")
    return list(argv[:at]), list(argv[at + 1 :])


def read_file(path: Path) -> bytes:
    """The bytes of a file, or of a pipe or device. Raises OSError, also for a pipe or device with more than
    MAX_PIPED_NBYTES: /dev/zero has no end."""
    with path.open("rb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file.read()
        found = bytearray()
        while piece := file.read(1 << 20):
            found += piece
            if len(found) > MAX_PIPED_NBYTES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return bytes(found)


def writable(text: str) -> Path:
    """The path of a file that a verb writes at its end. Raises ArgumentTypeError where the file cannot be written,
    before the verb spends time on its work."""
    path = Path(text)
    directory = path.absolute().parent
    if path.is_dir() or not directory.is_dir() or not os.access(path if path.exists() else directory, os.W_OK):
        raise argparse.ArgumentTypeError(f"'{text}' cannot be written")
    return path


def write(path: Path, text: str) -> None:
    """Write a file whose path `writable` has accepted. Raises CommandLineError where that fails, as on a full disk."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandLineError(f"'{path}' cannot be written: {error.strerror}") from None


def parameter(text: str) -> Any:
    """The value of a request parameter: a number or a truth value where the text is one in JSON, or else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) else text
