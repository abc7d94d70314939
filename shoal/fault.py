"""Fault points, for tests and drills: end, stop or delay a process exactly between two steps of a request.

    SHOAL_FAULT=worker.begun:kill          every worker, also one started in place of another, when it begins a batch
    SHOAL_FAULT=worker.opened[poison]:segfault    a worker that opens the request whose id is `poison`
    SHOAL_FAULT=lane.submitted:delay=0.2,batcher.read:stop
    SHOAL_FAULT=/DIRECTORY                 a file there named after a step, with an action in it, fires once and is gone

A point is the moment at the end of a method that does the step: each store that another process can see has a method
of its own, which says `if IS_ARMED: reached(STEP)`. Explicit calls act in compiled modules, too, whose callers would
not notice a method that is replaced. `install` is called once in a process.
"""

import functools
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

VARIABLE = "SHOAL_FAULT"

#: Whether this process, or the one that it was forked from, was started with fault points. Where it is not, a point is
#: one look at this constant.
IS_ARMED: Final = bool(os.environ.get(VARIABLE))

_CLIENT = ("allocated", "mapped", "submitted", "published", "rung", "replied", "released")
#: The steps of each kind of process.
STEPS: Final = {
    "lane": _CLIENT,
    "road": _CLIENT,
    "batcher": (
        "read", "accepted", "dispatched", "published", "rung", "answered", "counted", "acknowledged", "introduced",
        "resumed",
    ),
    "worker": ("taken", "begun", "opened", "mapped", "written", "pushed", "published", "rung", "ended"),
}  # fmt: skip
_FAULT = re.compile(r"(?P<step>[a-z]+\.[a-z]+)(\[(?P<id>[^\]]*)\])?:(?P<action>.+)")


def _hang(_seconds: str) -> None:
    while True:
        signal.pause()


#: Actions at a fault point; the argument is the text behind `=`.
ACTIONS: dict[str, Callable[[str], object]] = {
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "abort": lambda _: os.abort(),
    "segfault": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda code: os._exit(int(code or 0)),
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": _hang,
    "delay": lambda seconds: time.sleep(float(seconds)),
}


#: The steps of this process at which something happens, set by `install`; each is called with the step's result.
_watched: Final[dict[str, Callable[[Any], None]]] = {}


def reached(step: str, result: Any = None) -> None:
    """Report that this process has done a step: acts if `install` has set an action for it. `result` is the step's
    result."""
    if (act := _watched.get(step)) is not None:
        act(result)


def install(kind: str) -> None:
    """Watch the steps that $SHOAL_FAULT names, in a process of this kind: lane, road, batcher or worker.

    Raises ValueError where the variable is malformed.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return
    if text.startswith("/"):
        for step in STEPS[kind]:
            _watched[step] = functools.partial(_fire_once, Path(text) / f"{kind}.{step}")
        return
    for fault in text.split(","):
        found = _FAULT.fullmatch(fault)
        if found is None or found["action"].partition("=")[0] not in ACTIONS or not _is_step(found["step"]):
            raise ValueError(f"${VARIABLE} has '{fault}'; expected STEP:ACTION as in worker.begun:kill")
        step_kind, _, step = found["step"].partition(".")
        if step_kind == kind:
            _watched[step] = functools.partial(_fire, found["action"], found["id"])


def _is_step(name: str) -> bool:
    kind, _, step = name.partition(".")
    return step in STEPS.get(kind, ())


def _fire(action: str, request_id: str | None, result: Any) -> None:
    if request_id is None or any(request.id == request_id for request in result):
        _act(action)


def _fire_once(path: Path, _result: Any) -> None:
    try:
        action = path.read_text()
        path.unlink()
    except FileNotFoundError:
        return
    _act(action)


def _act(action: str) -> None:
    name, _, argument = action.strip().partition("=")
    ACTIONS[name](argument)
