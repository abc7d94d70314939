"""The program that becomes a worker in an environment of its own: makes the environment if it is missing, then execs.

    supervisor ── exec ──► python -m shoal.environments.enter ORDER ── exec, same pid ──► <interpreter> <links> NAME
                                              └─ without an environment: joins, reports the error, and the load fails

An environment is made by the instance's own process, so that no other process waits for it; the time limit of a start
covers it.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal import control, log
from shoal.environments.cache import Cache
from shoal.environments.resolve import resolve
from shoal.environments.server_packages import link_packages
from shoal.environments.wanted import Wanted
from shoal.errors import InternalError, ShoalError
from shoal.messages.from_worker import WorkerConnected
from shoal.messages.message import Kinds
from shoal.messages.shared import Refused
from shoal.messages.to_worker import LoadModel
from shoal.process import die_with_parent, ignore_group_signals, set_title

# Not __name__: run with -m, this module is __main__, and the log is configured for shoal.
_log = logging.getLogger("shoal.environments.enter")


def program(
    wanted: Wanted, model: str, instance_name: str, directory: Path, log_settings: Mapping[str, Any]
) -> list[str]:
    """The module to run, and its argument: an order to make the `wanted` environment and become the instance."""
    order = {
        "wanted": wanted._asdict(),
        "model": model,
        "instance_name": instance_name,
        "cache": str(directory),
        "log": dict(log_settings),
    }
    return ["shoal.environments.enter", json.dumps(order)]


def main(text: str) -> int:
    """Carry out an order; returns the exit status where the worker could not be started."""
    die_with_parent()
    ignore_group_signals()
    order = json.loads(text)
    log.describe("worker", model=order["model"], instance=order["instance_name"])
    log.configure(**order["log"])
    name: str = order["instance_name"]
    set_title(f"environment of {name}")
    cache = Cache(Path(order["cache"]))

    def log_line(line: str) -> None:
        print(f"model '{order['model']}': {line}", flush=True)  # noqa: T201 - the supervisor passes a worker's output on

    try:
        environment = resolve(Wanted(**order["wanted"]), cache, os.environ, log_line)
        cache.prepare()
        packages = link_packages(cache.root)
        _log.info("worker %s runs in the environment '%s'", name, environment.directory)
        # -P is new in Python 3.11, and not needed: the program is a directory, which comes first in the path. The name
        # is for `ps`: the environment need not have setproctitle.
        command = [str(environment.interpreter), "-s", "-u", str(packages), name]
        os.execve(environment.interpreter, command, environment.variables)
    except ShoalError as error:
        return _fail(error)
    except OSError as error:
        return _fail(InternalError(f"worker {name} cannot be started in its environment: {error}"))


def _fail(error: ShoalError) -> int:
    """Report an error to the supervisor, as a worker does that cannot load."""
    try:
        channel = control.join(WorkerConnected(int(os.environ["SHOAL_INSTANCE"])))
        channel.receive(Kinds(LoadModel))
        channel.send(Refused(error.wire, str(error)))
    except control.GONE:
        return 1  # the supervisor is gone
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
