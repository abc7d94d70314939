"""The verb `load`: a running server loads a model, or loads it again, and the result is shown."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.cli.models import show_models
from shoal.cli.operate import OperatingParser, operate
from shoal.cli.remote import RemoteServer
from shoal.cli.request_arguments import read_file
from shoal.cli.serve import CommandLineError
from shoal.cli.verb import WHICH_MODEL

_DESCRIPTION = """\
Load a model, or load it again after its files have changed. While the new version starts and warms up, the old one
serves; where the new one fails, the old one goes on serving. Needs --model-control-mode=explicit of the server."""

_EXAMPLES = """\
  shoal load digits
  shoal load digits --config digits.json     # with this configuration instead of config.pbtxt
  shoal load llm --timeout 1800              # a large model, from a slow disk

Options:
  --config <file>        a model configuration in JSON, as GET /v2/models/<model>/config prints it
"""


def load(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Load a model; returns the exit code."""
    parser = OperatingParser("load", "<model> [options]", _DESCRIPTION, _EXAMPLES, timeout_s=600)
    parser.add_asked("model", WHICH_MODEL)
    parser.add_argument("--config", type=Path)
    return operate(parser, argv, environ, _load)


def _load(arguments: argparse.Namespace, server: RemoteServer) -> str:
    server.load(arguments.model, None if arguments.config is None else _read(arguments.config))
    rows = [row for row in server.index() if row["name"] == arguments.model]
    return show_models(server, rows, as_json=arguments.json)


def _read(path: Path) -> str:
    try:
        return read_file(path).decode()
    except OSError as error:
        raise CommandLineError(f"--config: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CommandLineError(f"--config: {path} is no UTF-8.") from None
