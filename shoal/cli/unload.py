"""The verb `unload`: a running server stops serving a model, once the model's accepted requests are answered."""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence

from shoal.cli.models import show_models
from shoal.cli.operate import OperatingParser, operate
from shoal.cli.remote import NoResponseError, RemoteServer, Row
from shoal.cli.verb import WHICH_MODEL

_DESCRIPTION = """\
Unload a model. Requests that it has accepted are still answered, new ones are refused; the command ends when the model
is gone. Needs --model-control-mode=explicit of the server."""

_EXAMPLES = """\
  shoal unload digits && rm -r models/digits
  shoal unload pipeline --dependents         # and the models that an ensemble is composed of

Options:
  --dependents           also unload what was loaded only because this model needs it
"""

#: Seconds between two questions whether the model is unloaded (ours).
INTERVAL_S = 0.1


def unload(argv: Sequence[str], *, environ: Mapping[str, str], pause: Callable[[float], None] = time.sleep) -> int:
    """Unload a model; returns the exit code. `pause` waits between two looks at the index."""

    def work(arguments: argparse.Namespace, server: RemoteServer) -> str:
        server.unload(arguments.model, unload_dependents=arguments.dependents)
        rows = _settled(server, arguments.model, arguments.timeout, pause)
        if not rows and not arguments.json:  # as in Triton, an unknown model counts as unloaded
            return f"The server has no model '{arguments.model}', or not any more. 'shoal models' lists what it has."
        return show_models(server, rows, as_json=arguments.json)

    parser = OperatingParser("unload", "<model> [options]", _DESCRIPTION, _EXAMPLES, timeout_s=600)
    parser.add_asked("model", WHICH_MODEL)
    parser.add_argument("--dependents", action="store_true")
    return operate(parser, argv, environ, work)


def _settled(server: RemoteServer, model: str, timeout_s: float, pause: Callable[[float], None]) -> list[Row]:
    """The model's rows of the index when none is UNLOADING any more; the server answers the request to
    unload when it has begun to. Raises NoResponseError after `timeout_s`."""
    for _ in range(int(timeout_s / INTERVAL_S) + 1):
        rows = [row for row in server.index() if row["name"] == model]
        if all(row.get("state") != "UNLOADING" for row in rows):
            return rows
        pause(INTERVAL_S)
    raise NoResponseError(f"'{model}' still answers what it has accepted, after {timeout_s:g} s.")
