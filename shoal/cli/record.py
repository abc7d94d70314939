"""The verb `record`: a running server begins, or ends, recording the requests to a model."""

import argparse
import json
from collections.abc import Mapping, Sequence

from shoal.cli.colour import printable_lines
from shoal.cli.operate import OperatingParser, operate
from shoal.cli.remote import RemoteServer
from shoal.cli.serve import CommandLineError
from shoal.cli.verb import WHICH_MODEL, model_name

_DESCRIPTION = """\
Have a running server record the requests to a model for a time, into files in its own folder: that of --record, or
one of the server's user. The command returns at once and prints the folder. Without a model it prints what is recorded
now.

  --for <time>           how long, as 30s, 10m, 2h (default: 10m)
  --sample <share>       the share of the batches that is written, as 0.1 or 10% (default: 1); failures always are, and
                         everything of the ten seconds before an instance dies
  --max <size>           what the folder may take, as 2GiB; the oldest file goes
  --stop                 end the recording of the model"""

_EXAMPLES = """\
  shoal record digits --for 10m --sample 0.1 --max 2GiB
  shoal record digits --stop
  shoal record                                # what is recorded, and where
"""


def record(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Begin, end or list recordings; returns the exit code."""
    parser = OperatingParser("record", "[<model>] [options]", _DESCRIPTION, _EXAMPLES, timeout_s=60)
    parser.add_argument("model", nargs="?", type=model_name)
    parser.add_argument("--for", dest="time")
    parser.add_argument("--sample")
    parser.add_argument("--max")
    parser.add_argument("--stop", action="store_true")
    return operate(parser, argv, environ, _record)


def _record(arguments: argparse.Namespace, server: RemoteServer) -> str:
    given = {"for": "0" if arguments.stop else arguments.time, "sample": arguments.sample, "max": arguments.max}
    settings = {name: value for name, value in given.items() if value is not None}
    if arguments.model is None and settings:
        raise CommandLineError(WHICH_MODEL)
    recordings = server.recording({"model": arguments.model, **settings} if arguments.model else None)
    if arguments.json:
        return json.dumps(recordings)
    lines = [f"into {recordings['folder']}, at most {recordings['max_bytes'] / 2**30:.3g} GiB"]
    for each in recordings["recording"]:
        left = "" if each["left_s"] is None else f", for another {each['left_s']:.0f} s"
        lines.append(f"  {', '.join(each['models'])}: {100 * each['sample']:g} % of the batches{left}")
    return printable_lines("\n".join(lines)) if recordings["recording"] else "nothing is recorded"
