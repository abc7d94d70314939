"""An upgrade as the old server sees it: a new server is started beside it, and replaces it or is ended.

    SIGUSR2, `shoal upgrade` ─► started ─► its models have loaded ─► it listens on the same sockets, too ─► it answers
    ─► it is the server; the old one accepts no more, answers what it has accepted, and ends
    whatever fails, or takes too long: the new server is ended, and the old one goes on as if nothing had happened

The new server is a child, and dies with the old one until it has taken over. Runs in the supervisor.
"""

import json
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, get_args

from shoal.errors import UnavailableError
from shoal.messages import upgrade as messages
from shoal.messages.message import Message, on, table
from shoal.messages.to_client import RegionChange
from shoal.reasons import describe_exit
from shoal.supervisor.event_loop import EventLoop, Future, first, resolve, shared
from shoal.supervisor.memory.star import Star
from shoal.supervisor.pid_file import PidFile
from shoal.supervisor.processes.children import Child, ChildProgram, prepare
from shoal.supervisor.processes.guests import Guests
from shoal.supervisor.processes.listeners import Listeners
from shoal.supervisor.processes.members import Member
from shoal.supervisor.questions.questions import Verb
from shoal.supervisor.service import Service
from shoal.supervisor.state_file import StateWriter
from shoal.supervisor.upgrade.carried import CarriedState, OpenChanges
from shoal.supervisor.upgrade.launch import (
    DESCRIPTORS_VARIABLE,
    VARIABLE,
    Launch,
    name_of_first,
    why_not_replaceable,
)
from shoal.supervisor.upgrade.predecessor import CLIENT_SOCKET, PID_FILE, Predecessor
from shoal.supervisor.upgrade.room import find_room

_log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

#: How long a new server that has closed its connection may take to end (ours).
HANG_UP_S = 5.0
#: The verbs that change what a new server takes over from the old one at its start, or reads of its files; and the
#: verbs that do so only with a certain argument.
_CHANGES = frozenset(
    {
        "load", "unload", "register", "unregister", "scale", "log_settings",
        "ts_register", "ts_unregister", "ts_scale", "ts_set_default", "ts_register_workflow", "ts_unregister_workflow",
    }
)  # fmt: skip
_CHANGES_WITH = {"trace_settings": "changes", "rollout": "action", "shadow": "model"}


class UpgradeError(Exception):
    """Why an upgrade has failed; the old server goes on."""


class Origin(NamedTuple):
    """How this server came to be: the command line, the old server at an upgrade, and the file with its pid."""

    launch: Launch = Launch("", (), {})
    predecessor: Predecessor | None = None
    pid_file: PidFile | None = None


#: The origin of a server that no upgrade has started, and none can replace.
BY_HAND = Origin()


class NewServer:
    """The process of a new server, and its reports."""

    def __init__(self, loop: EventLoop, child: Child, ends_s: float) -> None:
        self.child = child
        self._loop = loop
        self._ends_s = ends_s
        self.version = ""
        # Changed as messages come.
        self.member: Member | None = None
        self._reports: dict[type[Message], Future[Message]] = {}
        self._failed: Future[str] = loop.future()

    def join(
        self, member: Member, message: messages.NewServerConnected, on_region: Callable[[RegionChange], None]
    ) -> None:
        """Take in the process, which has connected; `on_region` applies a change of clients' regions."""
        self.member = member
        self.version = message.version
        member.listen(
            table(
                on(messages.ModelsSettled, self._note),
                on(messages.NewServerServes, self._note),
                *[on(kind, on_region) for kind in get_args(RegionChange)],
                on(messages.NewServerFails, lambda failure: resolve(self._failed, failure.reason)),
            )
        )
        member.on_malformed = lambda error: resolve(self._failed, f"it sent what this version does not know: {error}")
        self._note(message)

    def _note(self, message: Message) -> None:
        resolve(self._report(type(message)), message)

    def _report(self, kind: type[M]) -> Future[M]:
        return self._reports.setdefault(kind, self._loop.future())  # type: ignore[return-value]  # by its own type

    def fail(self, reason: str) -> None:
        """Give up the upgrade for a reason of the old server's."""
        resolve(self._failed, reason)

    async def reported(self, kind: type[M], what: str) -> M:
        """The new server's report of a type, once it comes. Raises UpgradeError where the process has ended or failed
        before, or the upgrade takes too long. `what` follows "it has not", as in "loaded its models"."""
        report = self._report(kind)
        await self.done(report, what)
        return report.result()

    async def done(self, step: Future[Any], what: str) -> None:
        """Return when a step is done. Raises UpgradeError as `reported` does."""
        exited = self.child.exited
        left_s = max(0.0, self._ends_s - self._loop.now_s())
        done = await first(step, exited, self._failed, limit_s=left_s)
        if exited in done and self.member is not None:
            self.member.drain()  # the process may have said why it ends
        if step in done and exited not in done and self.member is not None and self.member.is_open:
            return
        if self._failed.done():
            raise UpgradeError(self._failed.result())
        if self.member is not None and not self.member.is_open:
            await first(exited, limit_s=HANG_UP_S)
        if exited.done():
            code = describe_exit(exited.result())
            raise UpgradeError(
                f"the new server (pid {self.child.pid}) {code} before it had {what}; see its lines above"
            )
        raise UpgradeError(f"the new server (pid {self.child.pid}) has not {what} within --upgrade-timeout-secs")

    async def end(self, limit_s: float) -> None:
        """End the process: it answers requests that it may have accepted; after `limit_s` it is killed."""
        self.child.signal(signal.SIGTERM)
        if not await first(self.child.exited, limit_s=limit_s):
            self.child.signal(signal.SIGKILL)
            await first(self.child.exited)
        if self.member is not None:
            self.member.hang_up()


class Upgrade:
    """The upgrade of this server: at most one at a time, and one that succeeds."""

    def __init__(
        self,
        star: Star,
        address: str,
        origin: Origin,
        carried: CarriedState,
        listeners: Listeners,
        guests: Guests,
        service: Service,
        state_writers: Sequence[StateWriter[Any]],
    ) -> None:
        """`address` is the supervisor's; the new server inherits the sockets of `listeners` and of `guests`, and reads
        the files of `state_writers`."""
        self._loop = star.loop
        self._options = star.options
        self._acknowledgements = star.acknowledgements
        self._address = address
        self._origin = origin
        self._carried = carried
        self._listeners = listeners
        self._guests = guests
        self._service = service
        self._state_writers = state_writers
        for writer in state_writers:
            writer.is_held = origin.predecessor is not None
        # Changed by ask, allow, join and close, and as an upgrade goes on.
        self._has_place = origin.predecessor is None  # this server may not be ended in favour of an old one any more
        self._new: NewServer | None = None
        self._why_not = "this server does not serve yet"  # why no upgrade can begin now
        #: Of the last new server that was sent the models: whether it has taken over, once that is decided.
        self.overtakes: Future[bool] | None = None
        #: Done, with its pid, when a new server has taken over: this one has to end.
        self.handed_over: Future[int] = star.loop.future()

    @property
    def is_under_way(self) -> bool:
        """Whether a new server is being brought up or has taken over, or this server has yet to take over: what clients
        change here would be lost with a server that is ended."""
        return self._new is not None or not self._has_place

    def allow(self) -> None:
        """Take requests for an upgrade from now on: the server serves, and its state files are its own."""
        self._why_not, self._has_place = "", True
        for writer in self._state_writers:
            writer.release()

    async def close(self) -> None:
        """Allow no upgrade any more, since the server stops; returns when a new server that was being brought up has
        ended, or has taken over in that very moment."""
        new, self._why_not = self._new, messages.STOPPING
        if new is not None and not self.handed_over.done():
            new.fail(self._why_not)
            await first(new.child.exited, self.handed_over, limit_s=self._options.exit_timeout_secs)

    # --- the request ---

    def on_signal(self) -> None:
        """Upgrade, on SIGUSR2."""
        self._begin(lambda _message: None)

    def on_command(self, member: Member) -> None:
        """Upgrade, on behalf of the command `shoal upgrade`."""
        member.listen_only({})
        self._begin(member.send)

    def _begin(self, send: Callable[[Message], None]) -> None:
        reason = self._refusal()
        new = None if reason else self._start()
        if isinstance(new, NewServer):
            self._new = new
            _log.info("upgrade: the installed version is started beside this server, as process %d", new.child.pid)
            send(messages.UpgradeBegun(new.child.pid, self._options.upgrade_timeout_secs))
            self._loop.start(self._run(new, send))
            return
        reason = reason or str(new)
        _log.error("upgrade: refused: %s", reason)
        send(messages.UpgradeEnded(0, "", reason))

    def _refusal(self) -> str:
        if self.handed_over.done():
            return f"process {self.handed_over.result()} has taken this server's place already"
        if self._new is not None:
            return f"an upgrade is under way: process {self._new.child.pid} is being brought up"
        old = self._origin.predecessor
        if old is not None and not old.has_ended:
            return f"process {old.pid}, whose place this server has taken, has not ended yet"
        reason = self._why_not or why_not_replaceable(os.getpid(), os.getppid(), name_of_first())
        return reason or find_room(os.getpid())

    def _start(self) -> NewServer | OSError:
        sockets = self._sockets()
        launch = self._origin.launch
        facts = {"address": self._address, "pid": os.getpid(), "names": list(sockets), "takes_regions": True}
        facts["limit_s"] = self._options.upgrade_timeout_secs
        environment = {**launch.inherited, VARIABLE: json.dumps(facts)}
        descriptors = {DESCRIPTORS_VARIABLE: list(sockets.values())}
        program = ChildProgram("new server", (), environment, descriptors, command=launch.command)
        try:
            child = prepare(self._loop, program, captured=False)
            child.execute()
        except OSError as error:
            return error
        return NewServer(self._loop, child, self._loop.now_s() + self._options.upgrade_timeout_secs)

    def _sockets(self) -> dict[str, int]:
        """The descriptors that a new server inherits, by name."""
        pid_file = self._origin.pid_file
        found = {name: listener.fileno() for name, listener in self._listeners.items()}
        others = {CLIENT_SOCKET: self._guests.socket_fd, PID_FILE: None if pid_file is None else pid_file.descriptor}
        return found | {name: fd for name, fd in others.items() if fd is not None}

    def join(self, member: Member, message: messages.NewServerConnected) -> None:
        if self._new is None or self._new.child.pid != member.pid:
            member.hang_up()
            return
        self._new.join(member, message, self._carried.restore_region)

    # --- the upgrade ---

    async def _run(self, new: NewServer, send: Callable[[Message], None]) -> None:
        try:
            await self._bring_up(new)
        except UpgradeError as error:
            _log.error("upgrade: failed: %s. %s", error, self._after_failure(new.child.pid))
            await new.end(self._options.exit_timeout_secs)
            self._carried.discard()
            for writer in self._state_writers:
                writer.release()
            self._new = None
            if self.overtakes is not None:
                resolve(self.overtakes, False)
            send(messages.UpgradeEnded(new.child.pid, new.version, str(error)))
            return
        pid = new.child.pid
        _log.info("upgrade: process %d (shoal %s) serves in this server's place, which now ends", pid, new.version)
        self._service.hand_over(pid)
        if self._origin.pid_file is not None:
            self._origin.pid_file.write(pid)
        assert new.member is not None
        new.member.send(messages.MainProcessNamed())
        send(messages.UpgradeEnded(pid, new.version, ""))
        self.handed_over.set_result(pid)
        assert self.overtakes is not None
        self.overtakes.set_result(True)
        if self._why_not:  # this server was told to stop meanwhile: that order is for the server that serves now
            new.child.signal(signal.SIGTERM)

    def _after_failure(self, pid: int) -> str:
        return f"Process {pid} is ended, too" if self._why_not else "This server goes on as before"

    async def _bring_up(self, new: NewServer) -> None:
        await new.reported(messages.NewServerConnected, "read its command line")
        assert new.member is not None
        await self._await_changes(new)
        await self._hold_state()
        self.overtakes = self._loop.future()
        try:
            models = self._carried.models()
        except OSError as error:
            raise UpgradeError(f"files that came with loads cannot be copied for the new server: {error}") from error
        served = set(self._carried.serving())
        new.member.send(models)
        settled = await new.reported(messages.ModelsSettled, "loaded its models")
        missing = set(self._carried.serving()) - set(map(tuple, settled.serving))
        if lost := missing & served:
            raise UpgradeError(f"the new server does not serve what this one does: {_list(lost)}; see its log")
        if missing:  # loads that were under way when the models were sent
            raise UpgradeError(
                f"{_list(missing)} has come up here while the new server loaded its models; upgrade again"
            )
        self._check_state()
        self._carried.follow(new.member)
        new.member.send(self._carried.settings())
        await new.reported(messages.NewServerServes, "started its front ends")
        self._check_state()
        taken_over = self._acknowledgements.announce([(new.member, messages.TakeOver())])
        await new.done(taken_over, "taken over")

    async def _await_changes(self, new: NewServer) -> None:
        """Wait for the changes and loads that are under way, since the new server would lack what ends after it was
        sent the models. The wait ends after half of --upgrade-timeout-secs, because a load may hang. Raises
        UpgradeError if the new server ends first."""
        if not (under_way := self._carried.under_way()):
            return
        limit_s = self._options.upgrade_timeout_secs / 2
        _log.info("upgrade: waits for what is under way, for %g s at most: %s", limit_s, ", ".join(under_way))
        ended, over = self._loop.begin(self._carried.changes_ended()), self._loop.future()
        self._loop.after(ended, lambda: resolve(over, None))
        self._loop.call_after(limit_s, lambda: resolve(over, None))
        try:
            await new.done(over, "been sent its models")
        finally:
            ended.cancel()

    async def _hold_state(self) -> None:
        """Have the state files written to their ends, and not again: the new server reads them at its start, which
        waits for the first message. Raises UpgradeError where a disk is too slow."""
        for writer in self._state_writers:
            try:
                await writer.hold()
            except TimeoutError as error:
                raise UpgradeError(str(error)) from error

    def _check_state(self) -> None:
        """Raise UpgradeError where the new server has read what no longer holds, such as a rollout that has been rolled
        back since."""
        for writer in self._state_writers:
            try:
                writer.check_held()
            except ValueError as error:
                raise UpgradeError(f"{error} by the new server; upgrade again") from error


def _list(versions: set[tuple[str, int]]) -> str:
    return ", ".join(f"'{name}' version {version}" for name, version in sorted(versions))


def guarded(
    verbs: Mapping[str, Verb],
    is_under_way: Callable[[], bool],
    overtakes: Callable[[], Future[bool] | None],
    changes: OpenChanges,
) -> dict[str, Verb]:
    """Verbs that refuse changes during an upgrade, in both servers: the new one begins with what was in force at its
    start, and may be ended before it has taken over. An upgrade waits for the `changes` that are under way; a change
    that takes longer is answered with an error once the new server has taken over."""

    def guard(name: str, verb: Verb) -> Verb:
        async def ask(arguments: dict[str, Any]) -> Any:
            if not (name in _CHANGES or (name in _CHANGES_WITH and arguments[_CHANGES_WITH[name]])):
                return await verb(arguments)
            if is_under_way():
                raise UnavailableError("the server is being upgraded, and changes nothing meanwhile; try again later")
            before = overtakes()
            with changes.counted(name):
                answer = await verb(arguments)
            overtaken = overtakes()
            if overtaken is not None and overtaken is not before and await shared(overtaken):
                raise UnavailableError(
                    "the server has been upgraded meanwhile, and the new one may not know of this change; look, and "
                    "ask again"
                )
            return answer

        return ask

    return {name: guard(name, verb) for name, verb in verbs.items()}
