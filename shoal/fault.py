"""Fault points: end, stop or delay a process exactly between two steps of a request. For tests and for drills.

    SHOAL_FAULT=worker.begun:kill          every worker, the first time it begins a batch, and each one after it
    SHOAL_FAULT=worker.opened[poison]:segfault    a worker that opens the request whose id is `poison`
    SHOAL_FAULT=lane.submitted:delay=0.2,batcher.read:stop
    SHOAL_FAULT=/DIRECTORY                 a file there named after a step, with an action in it, fires once and is gone

A point is the moment after a method has returned: all stores that another process can see stand in methods of their
own. Where the variable is not set nothing is wrapped, so points cost nothing. In any process, once, before the objects
that are watched are made.
"""

import functools
import importlib
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "SHOAL_FAULT"

#: What a front end's steps are: the name of each, and the method after which it lies.
_CLIENT = {
    "allocated": "shoal.shm.port:Port.allocate",
    "mapped": "shoal.star.oversize:ClientOversizeBlocks.allocate",
    "submitted": "shoal.shm.port:Port.submit",
    "published": "shoal.shm.ring:RingWriter.publish",
    "rung": "shoal.shm.doorbell:Doorbell.ring",
    "replied": "shoal.shm.port:Port.poll",
    "released": "shoal.shm.port:Port.release",
}
STEPS = {
    "lane": _CLIENT,
    "road": _CLIENT,
    "batcher": {
        "read": "shoal.shm.ring:RingReader.read",
        "accepted": "shoal.batcher.arrivals:Arrivals.accept",
        "dispatched": "shoal.batcher.dispatch:Dispatch._dispatch",
        "published": "shoal.shm.ring:RingWriter.publish",
        "rung": "shoal.shm.doorbell:Doorbell.ring",
        "answered": "shoal.batcher.exchange:Exchange._finish",
        "counted": "shoal.shm.counters:Row.publish",
        "acknowledged": "shoal.shm.ring:RingReader.acknowledge",
        "introduced": "shoal.batcher.peers:WorkerPeer.take_over",
        "resumed": "shoal.batcher.exchange:Exchange.resume",
    },
    "worker": {
        "taken": "shoal.workers.memory:Memory.take",
        "begun": "shoal.workers.memory:Memory.begin",
        "opened": "shoal.workers.loop:Loop._open",
        "mapped": "shoal.workers.oversize:WorkerOversizeBlocks.receive",
        "written": "shoal.workers.answers:WrittenAnswers.write",
        "pushed": "shoal.shm.ring:RingWriter.push",
        "published": "shoal.shm.ring:RingWriter.publish",
        "rung": "shoal.shm.doorbell:Doorbell.ring",
        "ended": "shoal.workers.memory:Memory.end",
    },
}
_FAULT = re.compile(r"(?P<step>[a-z]+\.[a-z]+)(\[(?P<id>[^\]]*)\])?:(?P<action>.+)")


def _hang(_seconds: str) -> None:
    while True:
        signal.pause()


#: What may happen at a step; the text behind `=` is handed over.
ACTIONS: dict[str, Callable[[str], object]] = {
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "abort": lambda _: os.abort(),
    "segfault": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda code: os._exit(int(code or 0)),
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "hang": _hang,
    "delay": lambda seconds: time.sleep(float(seconds)),
}


def install(kind: str) -> None:
    """Watch the steps that $SHOAL_FAULT names of a process of this kind: lane, road, batcher or worker.

    Raises ValueError where it cannot be understood.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return
    steps = STEPS[kind]
    if text.startswith("/"):
        for step, method in steps.items():
            _watch(method, functools.partial(_fire_once, Path(text) / f"{kind}.{step}"))
        return
    for fault in text.split(","):
        found = _FAULT.fullmatch(fault)
        if found is None or found["action"].partition("=")[0] not in ACTIONS or not _is_step(found["step"]):
            raise ValueError(f"${VARIABLE} has '{fault}'; expected STEP:ACTION as in worker.begun:kill")
        step_kind, _, step = found["step"].partition(".")
        if step_kind == kind:
            _watch(steps[step], functools.partial(_fire, found["action"], found["id"]))


def _is_step(name: str) -> bool:
    kind, _, step = name.partition(".")
    return step in STEPS.get(kind, {})


def _watch(method: str, reached: Callable[[Any], None]) -> None:
    """Have `reached` called with what the method returned, after each call that did something."""
    module, _, path = method.partition(":")
    owner, _, name = path.partition(".")
    cls = getattr(importlib.import_module(module), owner)
    original = getattr(cls, name)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if result is None or result:  # an empty ring, nothing to publish: nothing has happened
            reached(result)
        return result

    setattr(cls, name, watched)


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
