"""The zygotes as the supervisor sees them: one for each kind of process that has one, exec'd when it is first needed.

    exec ─► importing: orders wait ─ready─► forking ─dead─► started again after a pause; meanwhile all are exec'd
                                    └unfit─► all of this kind are exec'd

To exec a process costs 0.1 to 0.3 s of CPU, most of it imports; a fork costs milliseconds, and shares the pages.
Nothing here blocks: a child has been asked for when `spawn` returns, and begins when the zygote has forked it or, where
that fails or takes too long, is exec'd. What a zygote is and does is told in shoal/zygote.py. Runs in the supervisor.
"""

import logging
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import replace

from shoal.control import ADDRESS_VARIABLE, Channel
from shoal.messages.to_zygote import FROM_FORKED, FROM_ZYGOTE, Begin, Fork, ZygoteReady
from shoal.reasons import describe_exit
from shoal.supervisor.event_loop import EventLoop, first, shared
from shoal.supervisor.failure_domains import contained
from shoal.supervisor.processes import niceness
from shoal.supervisor.processes.children import Child, ChildProgram, prepare, spawn
from shoal.supervisor.processes.restarts import HEALTHY_AFTER_S, backoff_s

_log = logging.getLogger(__name__)

_WORKER = "shoal.workers.worker"
#: Kind → what it imports. A worker's kind is its backend; those that are not here may start threads as they please.
MODULES = {
    "batcher": ("shoal.batcher.batcher",),
    "embedding": (_WORKER, "shoal.workers.backends.embedding"),
    "fil": (_WORKER, "scipy.sparse"),  # 0.3 of 0.33 s; treelite's OpenMP reads its environment once, so in the child
    "identity": (_WORKER, "shoal.workers.backends.identity"),
    "onnxruntime": (_WORKER, "shoal.workers.backends.onnxruntime"),
    "openvino": (_WORKER, "shoal.workers.backends.openvino"),
    "python": (_WORKER, "shoal.workers.backends.python"),  # and nothing of users'
    "pytorch": (_WORKER, "shoal.workers.backends.pytorch"),
    "tensorflow": (_WORKER, "shoal.workers.backends.tensorflow"),
}
#: A zygote that needs longer for its imports, or to fork the next, is killed (ours; usual are 0.3 s and 5 ms, but it is
#: nice: where six times as many run as there are cores a fork was seen to take 0.7 s, and an exec half a minute).
IMPORT_S, FORK_S = 60.0, 10.0


class Zygotes:
    """All of them."""

    def __init__(self, loop: EventLoop, control_address: str, modules: Mapping[str, tuple[str, ...]] = MODULES) -> None:
        self._loop = loop
        self._control_address = control_address
        self._modules = modules
        # Changed by spawn and give_way.
        self._zygotes: dict[str, Zygote] = {}
        self._is_serving = False

    def spawn(self, kind: str, program: ChildProgram, *, captured: bool = False) -> Child:
        """Start a process whose imports are those of `kind`: forked where there is a zygote, otherwise exec'd.

        Raises OSError where the system refuses.
        """
        if not self._is_serving:
            program = replace(program, gives_way=False)
        child = prepare(self._loop, program, captured=captured)
        try:
            self._begin(kind, child)
        except OSError:
            child.abandon()
            raise
        return child

    def _begin(self, kind: str, child: Child) -> None:
        if kind not in self._modules:
            child.execute()
            return
        if kind not in self._zygotes:
            self._zygotes[kind] = Zygote(self._loop, kind, self._modules[kind], self._control_address)
            if self._is_serving:
                self._zygotes[kind].give_way()
            with contained(self._zygotes[kind]):
                self._zygotes[kind].start()
        self._zygotes[kind].fork(child)

    def give_way(self) -> None:
        """From now on workers serve: their zygotes give way, and so do workers that are started (niceness.py)."""
        self._is_serving = True
        for zygote in self._zygotes.values():
            zygote.give_way()

    def stop(self) -> None:
        """End the zygotes; a process that is wanted later is exec'd."""
        for zygote in self._zygotes.values():
            zygote.stop()


class Zygote:
    """One of them, and the one after it."""

    def __init__(self, loop: EventLoop, kind: str, modules: tuple[str, ...], control_address: str) -> None:
        self.kind = kind
        self._loop = loop
        self._modules = modules
        self._control_address = control_address
        # Changed by give_way, and as it starts, gets ready and dies.
        self._gives_way = False
        self._child: Child | None = None
        self._channel: Channel | None = None
        self._is_ready = False
        self._is_over = False  # unfit, or told to stop
        self._waiting: list[Child] = []  # for its imports
        self._num_deaths = 0
        self._started_s = 0.0
        self._forked_s = 0.0

    @property
    def title(self) -> str:
        """For the log."""
        return f"zygote '{self.kind}'"

    def contain(self, _error: Exception) -> None:
        """As a failure domain: another takes its place, until then processes are exec'd."""
        if self._child is None:
            self._start_later()
        else:
            self._child.signal(signal.SIGKILL)
            self._hang_up()

    def start(self) -> None:
        """Exec it; where the system refuses, later."""
        if self._is_over or self._child is not None:
            return
        try:
            self._start()
        except OSError as error:
            pause_s = self._start_later()
            _log.error("zygote '%s' cannot be started: %s; it is tried again in %g s", self.kind, error, pause_s)

    def _start_later(self) -> float:
        has_been_healthy = self._loop.now_s() - self._started_s >= HEALTHY_AFTER_S
        self._num_deaths = 1 if has_been_healthy else self._num_deaths + 1
        pause_s = backoff_s(self._num_deaths)
        self._loop.call_after(pause_s, self.start)
        return pause_s

    def _start(self) -> None:
        self._started_s = self._loop.now_s()
        ours, theirs = _pair()
        # numpy's BLAS would start threads at import. Built-in backends compute with their framework, not with numpy.
        environment = {ADDRESS_VARIABLE: self._control_address, "OPENBLAS_NUM_THREADS": "1"}
        module = ["shoal.zygote", self.kind, str(theirs.fileno()), str(os.getpid()), *self._modules]
        fds, gives_way = [theirs.fileno()], self._gives_way
        try:
            child = spawn(self._loop, f"zygote {self.kind}", module, environment, pass_fds=fds, gives_way=gives_way)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._child, self._channel = child, Channel(ours)
        self._loop.on_readable(ours.fileno(), self._receive)
        self._loop.start(self._watch(child))

    def give_way(self) -> None:
        """Be nicer than those who serve, where those that it forks are not needed for that."""
        self._gives_way = _WORKER in self._modules
        if self._gives_way and self._child is not None:
            niceness.give_way(self._child.pid)

    def fork(self, child: Child) -> None:
        """Have `child` begin, as soon as the imports are done."""
        if self._channel is None:
            child.execute_instead()
        elif self._is_ready:
            self._order(self._channel, child)
        else:
            self._waiting.append(child)

    def stop(self) -> None:
        """End it for good. At a server's end no loop may be left to learn of its death, so hang up here."""
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
            self._is_ready = True
            waiting, self._waiting = self._waiting, []
            for child in waiting:
                self.fork(child)
        else:
            self._is_over = True
            self._hang_up()
            _log.warning("zygote '%s': %s; its processes are exec'd", self.kind, message.sentence)

    def _hang_up(self) -> None:
        """Its end, as the first of socket and pidfd tells: orders wait for it no more."""
        if self._channel is None:
            return
        self._loop.forget(self._channel.fileno())
        self._channel.close()
        self._channel = None
        self._is_ready = False
        waiting, self._waiting = self._waiting, []
        for child in waiting:
            child.execute_instead()

    async def _watch(self, process: Child) -> None:
        """A zygote that is not ready within IMPORT_S is killed; one that ends is followed by another."""
        if not (await first(process.exited, limit_s=IMPORT_S) or self._is_ready):
            process.signal(signal.SIGKILL)
        code = await shared(process.exited)
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
                Fork(child.program.module[0], dict(child.program.environment), theirs.fileno(), stdout, stderr)
            )
        except OSError:
            ours.close()
            child.execute_instead()
            return
        finally:
            theirs.close()
        self._loop.on_readable(ours.fileno(), lambda: self._begin(child, ours))
        ordered_s = self._loop.now_s()
        self._loop.call_after(FORK_S, lambda: self._check_begun(child, ours, ordered_s))

    def _begin(self, child: Child, link: socket.socket) -> None:
        """The child's pid is known, or never will be."""
        self._loop.forget(link.fileno())
        with link:
            try:
                message, _ = Channel(link).receive(FROM_FORKED)
                self._forked_s = self._loop.now_s()
                child.began(message.pid)
                Channel(link).send(Begin())
            except (EOFError, ProcessLookupError):
                child.execute_instead()
            except BrokenPipeError:
                return  # dead since; its pidfd says so

    def _check_begun(self, child: Child, link: socket.socket, since_s: float) -> None:
        """It has had FORK_S for this one since then, unless it was at another, as it forks one after the other."""
        if link.fileno() < 0:
            return
        if (forked_s := self._forked_s) > since_s:
            left_s = max(0.0, forked_s + FORK_S - self._loop.now_s())
            self._loop.call_after(left_s, lambda: self._check_begun(child, link, forked_s))
            return
        _log.error("zygote '%s' has not forked within %g s; it is killed", self.kind, FORK_S)
        self._loop.forget(link.fileno())
        link.close()
        child.execute_instead()
        if self._child is not None:
            self._child.signal(signal.SIGKILL)


def _pair() -> tuple[socket.socket, socket.socket]:
    """A connection: our end, which does not block, and the other."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs
