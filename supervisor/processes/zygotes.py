"""The zygotes as the supervisor sees them: one for each kind of process that has one, started when first needed.

    exec ─► importing: orders wait ─ready─► forking ─dead─► started again after a pause; meanwhile all are exec'd
                                    └unfit─► all of this kind are exec'd

    base, exec'd ─┬─► zygote of a kind ─┬─► process of that kind          all share the pages of what base has imported
                  ├─► …                 ├─► …
                  │                     └─► the next batchers, when base has ended
                  ├─► a batcher
                  └─► the front ends' arbiter

No call here blocks: a child has been requested when `spawn` returns, and starts when the zygote has forked it or, where
that fails or takes too long, is exec'd. shoal/zygote.py is the zygote's own side. Runs in the supervisor.
"""

import logging
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from shoal.control import ADDRESS_VARIABLE, Channel
from shoal.messages.to_zygote import (
    FROM_FORKED,
    FROM_ZYGOTE,
    ORDERS_VARIABLE,
    SUPERVISOR_VARIABLE,
    Begin,
    Descriptor,
    Fork,
    ZygoteReady,
)
from shoal.open_files import explain_start
from shoal.reasons import describe_exit
from shoal.supervisor.event_loop import EventLoop, first, resolve, shared
from shoal.supervisor.failure_domains import contained
from shoal.supervisor.processes import niceness
from shoal.supervisor.processes.children import Child, ChildProgram, prepare
from shoal.supervisor.processes.restarts import Pauses

_log = logging.getLogger(__name__)

_WORKER = "shoal.workers.worker"
#: The kind of TorchServe's workers whose handlers use torch (repository/torchserve/torch_use.py): other workers do
#: without torch's memory.
TORCHSERVE_WITH_TORCH = "torchserve with torch"
#: The kind whose zygote forks those of all other kinds.
BASE = "base"
#: Kind → the modules that its zygote imports. A worker's kind is its backend. Backends that are missing here may start
#: threads at import.
MODULES = {
    # what front ends, workers of every backend and the batcher import, or all but one of these
    BASE: (
        "numpy",
        "hashlib",
        "shoal.star.models",
        "shoal.star.outgoing",
        _WORKER,
        "shoal.batcher.main",
    ),
    "embedding": (_WORKER, "shoal.workers.backends.embedding.backend"),
    "fil": (_WORKER, "scipy.sparse"),  # not treelite: its OpenMP reads the environment once, in the child
    "identity": (_WORKER, "shoal.workers.backends.identity"),
    "onnxruntime": (_WORKER, "shoal.workers.backends.onnxruntime"),
    "openvino": (_WORKER, "shoal.workers.backends.openvino"),
    "python": (_WORKER, "shoal.workers.backends.python.backend"),  # no user's module is imported
    "pytorch": (_WORKER, "shoal.workers.backends.pytorch.backend"),
    "tensorflow": (_WORKER, "shoal.workers.backends.tensorflow"),
    "torchserve": (_WORKER, "shoal.workers.backends.torchserve"),
    TORCHSERVE_WITH_TORCH: (
        _WORKER,
        "shoal.workers.backends.torchserve",
        "shoal.workers.backends.torchserve.with_torch",
    ),
}
#: Kinds with so much in memory that no batcher should have it in its address space, and a fork takes longer.
_LARGE = ("openvino", "pytorch", "tensorflow", TORCHSERVE_WITH_TORCH)
#: A zygote whose imports or next fork take longer is killed (ours; imports usually take 0.3 s, with torch 2 s, and a
#: fork 5 ms, but a zygote's priority is low: where six times as many processes run as there are cores, a fork was seen
#: to take 0.7 s, and an exec half a minute; beside two busy loops on two cores, torch a minute).
IMPORT_S, FORK_S = 300.0, 10.0
#: Seconds after which the base zygote of a server that loads no more models ends, once the server serves (ours).
BASE_S = 10.0


class Zygotes:
    """The zygotes of the server, by kind."""

    def __init__(self, loop: EventLoop, control_address: str, modules: Mapping[str, tuple[str, ...]] = MODULES) -> None:
        self._loop = loop
        self._control_address = control_address
        self._modules = modules
        # Changed by spawn, lower_priority and end_base: the zygotes by kind; whether the server serves, and whether the
        # base zygote is to end.
        self._zygotes: dict[str, Zygote] = {}
        self._is_serving = self._is_base_to_end = False

    def spawn(self, kind: str, program: ChildProgram, *, captured: bool = False) -> Child:
        """Start a process whose imports are those of `kind`: forked where there is a zygote, otherwise exec'd.

        Raises OSError where the system refuses the process.
        """
        if not self._is_serving:
            program = replace(program, has_low_priority=False)
        child = prepare(self._loop, program, captured=captured)
        try:
            self._begin(kind, child)
        except OSError:
            child.abandon()
            raise
        return child

    def start(self) -> None:
        """Exec the base zygote, where there is one."""
        if BASE in self._modules:
            self._start(BASE)

    def _begin(self, kind: str, child: Child) -> None:
        if kind == BASE and BASE in self._zygotes:
            self._heir().fork(child)
            return
        if kind not in self._modules:
            child.execute()
            return
        if kind not in self._zygotes:
            self._start(kind)
        self._zygotes[kind].fork(child)

    def _heir(self) -> "Zygote":
        """The zygote that forks the base's children: the base, until it is to end or has ended."""
        base = self._zygotes[BASE]
        if base.lives and not self._is_base_to_end:
            return base
        return next((each for each in self._zygotes.values() if each.can_be_heir), base)

    def _start(self, kind: str) -> None:
        parent = self._zygotes.get(BASE) if kind != BASE else None
        zygote = self._zygotes[kind] = Zygote(self._loop, kind, self._modules[kind], self._control_address, parent)
        if self._is_serving:
            zygote.lower_priority()
        with contained(zygote):
            zygote.start()

    def lower_priority(self) -> None:
        """Lower the priority of workers' zygotes, and of processes that start later: the server has begun to serve."""
        self._is_serving = True
        for zygote in self._zygotes.values():
            zygote.lower_priority()

    def end_base(self) -> None:
        """End the base zygote after BASE_S, unless no other zygote could take its place: all processes run. The base
        takes 6 MiB, in pages of which all other processes have copies. A batcher or an arbiter that is started from now
        on is forked by a worker's zygote, which has the base's modules and its pages."""
        if BASE in self._zygotes:
            self._is_base_to_end = True
            self._loop.call_after(BASE_S, self._end_base)

    def _end_base(self) -> None:
        if any(each.can_be_heir for each in self._zygotes.values()):
            self._zygotes[BASE].stop()
        else:
            self._is_base_to_end = False

    def stop(self) -> None:
        """End all zygotes; processes started later are exec'd."""
        for zygote in self._zygotes.values():
            zygote.stop()


class Zygote:
    """One kind's zygote and its successors, forked by the zygote `parent` where there is one."""

    def __init__(
        self, loop: EventLoop, kind: str, modules: tuple[str, ...], control_address: str, parent: "Zygote | None"
    ) -> None:
        self.kind = kind
        self.title = f"zygote '{kind}'"  # in the log
        self._loop = loop
        self._modules = modules
        self._control_address = control_address
        self._parent = parent
        # Changed by lower_priority, and as it starts, gets ready and dies.
        self._has_low_priority = False
        self._child: Child | None = None
        self._channel: Channel | None = None
        self.is_ready = False  # whether it takes orders
        self._is_over = False  # a zygote that cannot fork safely, or has been stopped
        self._waiting: list[Child] = []  # children to fork once the imports are done
        self._num_urgent = 0  # children under way for which the priority is raised
        self._pauses = Pauses()
        self._forked_s = 0.0

    @property
    def can_be_heir(self) -> bool:
        """Whether this zygote could fork the base's children now, about as fast as the base and with as little memory
        mapped."""
        return self.is_ready and self.kind != BASE and self.kind not in _LARGE

    @property
    def lives(self) -> bool:
        """Whether this zygote takes orders, or will once its imports are done."""
        return self._channel is not None

    def contain(self, _error: Exception) -> None:
        """Kill the zygote after an unexpected error; until another has taken its place, processes are exec'd."""
        if self._child is None:
            self._start_later()
        else:
            self._child.signal(signal.SIGKILL)
            self._hang_up()

    def start(self) -> None:
        """Start the zygote; where the system refuses, try again after a pause."""
        if self._is_over or self._child is not None:
            return
        try:
            self._start()
        except OSError as error:
            self._refused(error)

    def _refused(self, error: OSError) -> None:
        pause_s = self._start_later()
        _log.error(
            "zygote '%s' cannot be started: %s; it is tried again in %g s", self.kind, explain_start(error), pause_s
        )

    def _start_later(self) -> float:
        pause_s = self._pauses.ended(self._loop.now_s())
        self._loop.call_after(pause_s, self.start)
        return pause_s

    def _start(self) -> None:
        self._pauses.started(self._loop.now_s())
        ours, theirs = _pair()
        # numpy's BLAS would start threads at import. Built-in backends compute with their framework, not with numpy.
        environment = {
            ADDRESS_VARIABLE: self._control_address,
            SUPERVISOR_VARIABLE: str(os.getpid()),
            "OPENBLAS_NUM_THREADS": "1",
        }
        program = ChildProgram(
            f"zygote {self.kind}",
            ["shoal.zygote", self.kind, *self._modules],
            environment,
            {ORDERS_VARIABLE: [theirs.fileno()]},
            self._has_low_priority,
        )
        try:
            child = prepare(self._loop, program, captured=False)
            if self._parent is None:
                child.execute()
            else:
                self._parent.fork(child)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._child, self._channel = child, Channel(ours)
        self._loop.on_readable(ours.fileno(), self._receive)
        self._loop.start(self._watch(child))

    def lower_priority(self) -> None:
        """Lower the zygote's priority, unless its children are needed for the server to serve."""
        self._has_low_priority = _WORKER in self._modules
        if self._has_low_priority and self._child is not None:
            self._child.lower_priority()

    def fork(self, child: Child) -> None:
        """Fork a child as soon as the imports are done."""
        if self._channel is None:
            child.execute_instead()
        elif self.is_ready:
            self._order(self._channel, child)
        else:
            self._waiting.append(child)

    def stop(self) -> None:
        """End the zygote for good, and disconnect here: a server that ends may have no loop to learn of its death."""
        self._is_over = True
        if self._child is not None:
            self._child.signal(signal.SIGKILL)
        self._hang_up()

    def _receive(self) -> None:
        assert self._channel is not None
        try:
            message, _ = self._channel.receive(FROM_ZYGOTE)
        except EOFError:
            self._hang_up()
            return
        if isinstance(message, ZygoteReady):
            self.is_ready = True
            waiting, self._waiting = self._waiting, []
            for child in waiting:
                self.fork(child)
        else:
            self._is_over = True
            self._hang_up()
            _log.warning("zygote '%s': %s; its processes are exec'd", self.kind, message.sentence)

    def _hang_up(self) -> None:
        """Close the connection when its end or the process's is noticed; waiting children are exec'd."""
        if self._channel is None:
            return
        self._loop.forget(self._channel.fileno())
        self._channel.close()
        self._channel = None
        self.is_ready = False
        waiting, self._waiting = self._waiting, []
        for child in waiting:
            child.execute_instead()

    async def _watch(self, process: Child) -> None:
        """Kill a zygote that is not ready within IMPORT_S, and start another when one has ended."""
        if not (await first(process.exited, limit_s=IMPORT_S) or self.is_ready):
            process.signal(signal.SIGKILL)
        try:
            code = await shared(process.exited)
        except OSError as error:  # the parent cannot fork, and the system refuses an exec
            self._child = None
            self._hang_up()
            if not self._is_over:
                self._refused(error)
            return
        self._child = None
        self._hang_up()
        if self._is_over:
            return
        pause_s = self._start_later()
        _log.error(
            "zygote '%s' (pid %d) %s; it is started again in %g s, until then processes are exec'd",
            self.kind, process.pid, describe_exit(code), pause_s,
        )  # fmt: skip

    # --- one child ---

    def _order(self, channel: Channel, child: Child) -> None:
        try:
            ours, theirs = _pair()
        except OSError:
            child.execute_instead()
            return
        stdout, stderr = child.output_fds or (None, None)
        try:
            channel.send(
                Fork(list(child.program.module), dict(child.program.environment), theirs.fileno(), stdout, stderr)
            )
        except OSError:
            ours.close()
            child.execute_instead()
            return
        finally:
            theirs.close()
        self._loop.start(self._await_fork(child, ours, is_urgent=self._raise_priority(child)))

    def _raise_priority(self, child: Child) -> bool:
        """Restore this zygote's priority if it has a lower one than the child that it is to fork; returns whether it
        had."""
        if self._child is None or not self._has_low_priority or child.program.has_low_priority:
            return False
        self._num_urgent += 1
        niceness.restore_priority(self._child.pid)
        return True

    def _lower_again(self) -> None:
        """Lower this zygote's priority again once it has forked the last of the children that need a higher one."""
        self._num_urgent -= 1
        if self._child is not None and not self._num_urgent:
            niceness.lower_priority(self._child.pid)

    async def _await_fork(self, child: Child, link: socket.socket, *, is_urgent: bool) -> None:
        """Begin a child once its pid is known. The zygote has FORK_S for the fork, from the order on or, since a zygote
        forks one child at a time, from the zygote's last fork; after that the child is exec'd instead, and the zygote
        killed. The zygote's priority was raised for an urgent child, and is lowered again."""
        ordered_s, is_forked = self._loop.now_s(), self._loop.future()
        self._loop.on_readable(link.fileno(), lambda: resolve(is_forked, None))
        while (left_s := max(ordered_s, self._forked_s) + FORK_S - self._loop.now_s()) > 0:
            if await first(is_forked, limit_s=left_s):
                break
        self._loop.forget(link.fileno())
        if is_urgent:
            self._lower_again()
        with link:
            if not is_forked.done():
                _log.error("zygote '%s' has not forked within %g s; it is killed", self.kind, FORK_S)
                child.execute_instead()
                if self._child is not None:
                    self._child.signal(signal.SIGKILL)
                return
            try:
                message, _ = Channel(link).receive(FROM_FORKED)
                self._forked_s = self._loop.now_s()
                child.began(message.pid)
            except (EOFError, ProcessLookupError):
                child.execute_instead()
                return
            except OSError:
                return  # the child cannot be watched: `exited` says why, and it ends with its link
            with suppress(ConnectionError):  # the child has ended since; its pidfd reports that
                for variable, fds in child.passed.items():
                    for fd in fds:
                        Channel(link).send(Descriptor(variable, fd))
                Channel(link).send(Begin())
            child.close_passed()


def _pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection: the supervisor's, which does not block, and the zygote's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs
