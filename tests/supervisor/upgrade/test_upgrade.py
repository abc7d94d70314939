"""upgrade.py: what clients may ask while a new server starts, and which of both servers has the state files."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.errors import UnavailableError
from shoal.messages.message import Message
from shoal.messages.to_client import CudaRegionRegistered, RegionUnregistered
from shoal.messages.upgrade import (
    MainProcessNamed,
    ModelsCarried,
    ModelsSettled,
    NewServerConnected,
    NewServerFails,
    NewServerServes,
    SettingsCarried,
    TakeOver,
    UpgradeEnded,
)
from shoal.supervisor.event_loop import EventLoop, Future, Task, resolve
from shoal.supervisor.state_file import SETTLE_S, StateWriter
from shoal.supervisor.upgrade.carried import OpenChanges
from shoal.supervisor.upgrade.upgrade import BY_HAND, NewServer, Origin, Upgrade, guarded
from tests.supervisor.clock import ClockLoop
from tests.supervisor.star_rig import StarRig
from tests.supervisor.test_state_file import numbers

#: Seconds that an upgrade waits for changes that are under way: half of --upgrade-timeout-secs.
HALF_S = 300


@pytest.mark.parametrize(
    ("verb", "arguments", "is_change"),
    [
        ("load", {"model": "m"}, True),
        ("trace_settings", {"model": "", "changes": {"trace_rate": "1"}}, True),
        ("trace_settings", {"model": "", "changes": None}, False),
        ("shadow", {"model": "m", "stop": True}, True),
        ("shadow", {"model": ""}, False),
        ("rollout", {"model": "m", "action": "abort", "plan": {}}, True),
        ("rollout", {"model": "m", "action": "", "plan": {}}, False),
        ("gauges", {}, False),
    ],
)
def test_what_the_new_server_would_not_know_of_is_refused(
    clock: ClockLoop, verb: str, arguments: dict[str, Any], is_change: bool
) -> None:
    """The new server has read the state of the old one, its files included, at its own start."""

    async def answer(_arguments: dict[str, Any]) -> str:
        return "answered"

    is_under_way = True
    asked = guarded({verb: answer}, lambda: is_under_way, lambda: None, OpenChanges(EventLoop(clock)))[verb]
    outcome = EventLoop(clock).begin(asked(arguments))
    clock.settle()
    if is_change:
        assert isinstance(outcome.exception(), UnavailableError)
    else:
        assert outcome.result() == "answered"
    is_under_way = False
    assert clock.run(asked(arguments)) == "answered"


class Upgrading:
    """An upgrade of a server that keeps numbers in a file; the test plays the new server."""

    def __init__(self, rig: StarRig, directory: Path) -> None:
        loop = rig.loop
        self.file = numbers(directory / "numbers.json")
        self.writer = StateWriter(self.file, loop)
        self.new = rig.start()
        self.ended = list[Any]()
        exited = loop.future()
        child: Any = SimpleNamespace(pid=1, exited=exited, signal=lambda _number: resolve(exited, 0))
        self.changes = OpenChanges(loop)
        carried: Any = SimpleNamespace(
            under_way=lambda: self.changes.verbs, changes_ended=self.changes.ended,
            models=lambda: ModelsCarried(None, [], [], [], None, [], 0), settings=lambda: SettingsCarried({}, {}),
            serving=list, follow=lambda _member: None, discard=lambda: None,
        )  # fmt: skip
        service: Any = SimpleNamespace(hand_over=lambda _pid: None)
        nothing: Any = None
        self.upgrade = Upgrade(rig.star, "@", BY_HAND, carried, nothing, nothing, service, [self.writer])
        self._server = NewServer(loop, child, loop.now_s() + 600)
        self.regions = list[Message]()
        self._server.join(self.new.member, NewServerConnected("x"), self.regions.append)

    def begin(self) -> None:
        self.upgrade._loop.start(self.upgrade._run(self._server, self.ended.append))

    def load(self) -> tuple[Future[None], Task[Any]]:
        """Begin a load that ends with the first future; the second one has its answer."""
        loaded: Future[None] = self.upgrade._loop.future()

        async def load(_arguments: dict[str, Any]) -> None:
            await loaded

        upgrade = self.upgrade
        verbs = guarded({"load": load}, lambda: upgrade.is_under_way, lambda: upgrade.overtakes, self.changes)
        return loaded, upgrade._loop.begin(verbs["load"]({}))

    @property
    def reason(self) -> str:
        """Why it has failed; "": it has not."""
        (ended,) = self.ended
        assert isinstance(ended, UpgradeEnded)
        return ended.reason


def test_a_new_server_is_sent_nothing_while_a_state_file_that_it_reads_is_being_written(
    rig: StarRig, tmp_path: Path
) -> None:
    """It read the contents before, and the old server wrote the last ones over its own later."""
    upgrading = Upgrading(rig, tmp_path)
    beside = tmp_path / f".numbers.json.{os.getpid()}"
    os.mkfifo(beside)
    for number in (1, 2):
        upgrading.writer.write([number])
        rig.settle()
    upgrading.begin()
    rig.clock.pass_time(SETTLE_S + 0.1)
    assert upgrading.new.heard() == []
    assert upgrading.reason == f"numbers: {tmp_path / 'numbers.json'} has not been written within 5 s"
    reader = os.open(beside, os.O_RDONLY | os.O_NONBLOCK)
    rig.clock.until(upgrading.writer._written.done)
    os.close(reader)
    assert upgrading.file.read() == [2]


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ([("m", 1), ("n", 2)], "the new server does not serve what this one does: 'n' version 2; see its log"),
        ([("m", 1)], "'n' version 2 has come up here while the new server loaded its models; upgrade again"),
    ],
)
def test_what_the_new_server_does_not_serve_ends_the_upgrade(
    rig: StarRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: list[tuple[str, int]], reason: str
) -> None:
    """A load that was under way when the upgrade began may end later; the new server's log says nothing of that."""
    upgrading, serving = Upgrading(rig, tmp_path), before
    monkeypatch.setattr(upgrading.upgrade._carried, "serving", lambda: serving)
    upgrading.begin()
    rig.clock.until(lambda: bool(upgrading.new.read()))
    serving = [("m", 1), ("n", 2)]
    upgrading.new.say(ModelsSettled([("m", 1)]))
    rig.clock.until(lambda: bool(upgrading.ended))
    assert upgrading.reason == reason


def test_a_new_server_is_sent_the_models_once_a_load_that_is_under_way_has_ended(rig: StarRig, tmp_path: Path) -> None:
    """Sent the models earlier, the new server would lack the loaded one, which ends an upgrade."""
    upgrading = Upgrading(rig, tmp_path)
    loaded, answer = upgrading.load()
    rig.settle()
    upgrading.begin()
    rig.clock.pass_time(HALF_S - 1)
    assert upgrading.new.heard() == []
    resolve(loaded, None)
    assert [type(each) for each in upgrading.new.heard()] == [ModelsCarried]
    assert answer.result() is None


def test_a_load_that_hangs_leaves_the_upgrade_half_of_its_time(rig: StarRig, tmp_path: Path) -> None:
    upgrading = Upgrading(rig, tmp_path)
    _, answer = upgrading.load()
    rig.settle()
    upgrading.begin()
    rig.clock.pass_time(HALF_S - 1)
    assert upgrading.new.heard() == []
    rig.clock.pass_time(1)
    assert [type(each) for each in upgrading.new.heard()] == [ModelsCarried]
    assert not answer.done()
    answer.cancel()


def test_a_new_server_that_ends_meanwhile_ends_the_upgrade(rig: StarRig, tmp_path: Path) -> None:
    upgrading = Upgrading(rig, tmp_path)
    loaded, answer = upgrading.load()
    rig.settle()
    upgrading.begin()
    rig.settle()
    upgrading.new.say(NewServerFails("it has failed"))
    rig.clock.until(lambda: bool(upgrading.ended))
    assert upgrading.reason == "it has failed"
    resolve(loaded, None)
    rig.settle()
    assert answer.result() is None


def test_files_of_loads_that_cannot_be_copied_end_the_upgrade(
    rig: StarRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upgrade never ended, and changes were refused for ever."""
    upgrading = Upgrading(rig, tmp_path)

    def models() -> ModelsCarried:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(upgrading.upgrade._carried, "models", models)
    upgrading.begin()
    rig.clock.until(lambda: bool(upgrading.ended))
    assert upgrading.reason == (
        "files that came with loads cannot be copied for the new server: [Errno 28] No space left on device"
    )
    assert not upgrading.upgrade.is_under_way


def test_what_changes_while_a_new_server_starts_ends_the_upgrade_and_is_kept(rig: StarRig, tmp_path: Path) -> None:
    """A rollout that was rolled back went on in the new server."""
    upgrading = Upgrading(rig, tmp_path)
    upgrading.writer.write([1])
    loaded, answer = upgrading.load()
    rig.settle()
    upgrading.begin()
    rig.clock.pass_time(HALF_S)
    rig.clock.until(lambda: bool(upgrading.new.read()))
    assert upgrading.file.read() == [1]
    resolve(loaded, None)
    upgrading.writer.write([2])
    upgrading.new.say(ModelsSettled([]))
    rig.clock.until(lambda: bool(upgrading.ended))
    assert upgrading.reason.startswith("numbers have changed since ")
    rig.settle()
    assert answer.result() is None
    rig.clock.until(upgrading.writer._written.done)
    assert upgrading.file.read() == [2]


def test_a_region_that_a_client_has_registered_at_a_new_server_is_not_lost_with_it(
    rig: StarRig, tmp_path: Path
) -> None:
    upgrading = Upgrading(rig, tmp_path)
    upgrading.begin()
    rig.clock.until(lambda: bool(upgrading.new.read()))
    upgrading.new.say(ModelsSettled([]))
    changes = [CudaRegionRegistered("r", 1, 0, b"h" * 64, 8), RegionUnregistered("system", "s")]
    for change in changes:
        upgrading.new.say(change)
    upgrading.new.say(NewServerFails("it has failed"))
    rig.clock.until(lambda: bool(upgrading.ended))
    assert upgrading.reason == "it has failed"
    assert upgrading.regions == changes


def test_a_new_server_that_has_not_taken_over_changes_nothing(rig: StarRig) -> None:
    """It listens before, and what it changed was lost where the upgrade failed after that."""
    nothing: Any = None
    origin = Origin(predecessor=cast(Any, object()))
    upgrade = Upgrade(rig.star, "@", origin, nothing, nothing, nothing, nothing, [])
    assert upgrade.is_under_way
    upgrade.allow()
    assert not upgrade.is_under_way


def test_a_server_that_was_replaced_writes_no_state_file(rig: StarRig, tmp_path: Path) -> None:
    """Nor does it answer a load that its models were sent without as one that is there."""
    upgrading, new = Upgrading(rig, tmp_path), StateWriter(numbers(tmp_path / "numbers.json"), rig.loop)
    loaded, answer = upgrading.load()
    rig.settle()
    upgrading.begin()
    rig.clock.pass_time(HALF_S)
    assert [type(each) for each in upgrading.new.heard()] == [ModelsCarried]
    resolve(loaded, None)
    upgrading.new.say(ModelsSettled([]))
    assert [type(each) for each in upgrading.new.heard()] == [SettingsCarried]
    upgrading.new.say(NewServerServes())
    assert [type(each) for each in upgrading.new.heard()] == [TakeOver]
    assert not answer.done()
    upgrading.new.channel.acknowledge(upgrading.new.unacknowledged.pop())
    upgrading.new.member.drain()
    assert [type(each) for each in upgrading.new.heard()] == [MainProcessNamed]
    assert upgrading.reason == ""
    rig.settle()
    assert isinstance(answer.exception(), UnavailableError)
    new.write([2])
    rig.clock.until(new._written.done)
    upgrading.writer.write([1])
    rig.settle()
    upgrading.writer.close()
    assert upgrading.file.read() == [2]
