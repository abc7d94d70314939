"""The verb `scale`: a running server gives a model more or fewer instances, without dropping or delaying a request."""

import argparse
from collections.abc import Mapping, Sequence

from shoal.cli.models import show_instances
from shoal.cli.operate import OperatingParser, operate
from shoal.cli.remote import RemoteServer
from shoal.cli.serve import CommandLineError

_DESCRIPTION = """\
Give a model this many instances. New ones are warm before they get a request; those that go finish what they have. A
model's parameters min_instances and max_instances in config.pbtxt bound the number."""

_EXAMPLES = """\
  shoal scale digits=4
  shoal scale digits 4                       # the same
  shoal models digits                        # how busy they are
"""


def scale(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Scale a model; returns the exit code."""
    parser = OperatingParser("scale", "<model>=<instances> [options]", _DESCRIPTION, _EXAMPLES, timeout_s=600)
    parser.add_argument("what", nargs="*")
    return operate(parser, argv, environ, _scale)


def _scale(arguments: argparse.Namespace, server: RemoteServer) -> str:
    model, count = _understood(arguments.what)
    return show_instances(server.scale(model, count), as_json=arguments.json)


def _understood(words: Sequence[str]) -> tuple[str, int]:
    """A model and a number from `digits=4`, or `digits 4`. Raises CommandLineError."""
    model, count = words if len(words) == 2 else "".join(words[:1]).rpartition("=")[::2]
    if len(words) > 2 or not model or not (count.isascii() and count.isdecimal()):
        raise CommandLineError(f"Expected a model and a number of instances, as in digits=4, got '{' '.join(words)}'")
    return model, int(count)
