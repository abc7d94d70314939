"""Who hears of new settings in which order, and the tracer's process, which is real; the test plays the front ends."""

import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.control import Channel, Listener
from shoal.errors import InvalidArgumentError
from shoal.messages.message import on, table
from shoal.messages.to_client import TraceSettingsChanged
from shoal.messages.to_tracer import TraceEnded, TracerConnected
from shoal.supervisor.processes import tracer as tracer_module
from shoal.supervisor.processes.children import spawn
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.outside_process import CLOSE_S
from shoal.supervisor.questions.trace_settings import TraceControl
from shoal.tracer.command_line import understand
from shoal.tracer.trace import STAMPS, Trace
from tests.supervisor.star_rig import Process, StarRig


class TracingHarness:
    """Tracing into a folder at a star of two front ends, of which nobody is joined that is not told."""

    def __init__(self, folder: Path, *said: tuple[str, str, str]) -> None:
        self.path = folder / "t"
        self.rig = StarRig()
        self.loop = self.rig.loop
        self._listener = Listener.create()
        self.loop.on_readable(self._listener.fileno(), self._accept)
        config = understand([("triton", "file", str(self.path)), ("", "rate", "1"), *said], {})
        self.tracing = TraceControl(self.rig.star, self._listener.address, config)
        self.answers: list[dict[str, Any]] = []
        self.tracer: Member | None = None

    def _accept(self) -> None:
        accepted = self._listener.accept()
        assert accepted is not None
        member = Member(self.loop, *accepted, self.rig.star.acknowledgements)
        member.listen(table(on(TracerConnected, lambda _message: self._join(member))))
        member.start()

    def _join(self, member: Member) -> None:
        self.tracer = member
        self.tracing.tracer.join(member)

    def ask(self, model: str, changes: dict[str, Any] | None) -> list[Any]:
        """The answers so far; front ends have yet to acknowledge."""

        async def flow() -> None:
            self.answers.append(await self.tracing.change({"model": model, "changes": changes}))

        asked = self.loop.begin(flow())
        self.rig.clock.settle()
        if asked.done():
            asked.result()
        return self.answers

    def answer(self) -> dict[str, Any]:
        """The next answer, when everybody does what is theirs."""
        self.rig.settle()
        self.run_until(lambda: bool(self.answers))
        return self.answers.pop()

    def change(self, model: str, **changes: Any) -> dict[str, Any]:
        assert self.ask(model, changes) == []
        return self.answer()

    def run_until(self, condition: Callable[[], bool]) -> None:
        self.rig.clock.until(condition)

    def trace(self, request_id: str, process: Process | None = None) -> None:
        """A front end sends a trace by what it was told last."""
        process = process or self.rig.a
        process.heard()
        told = [message for message in process.all_heard if isinstance(message, TraceSettingsChanged)][-1]
        channel = Channel(socket.socket(fileno=os.dup(process.fds[-1])))
        trace = Trace(told.settings[""]["revision"], True, "m", 1, request_id, [1] * len(STAMPS), [], {})
        channel.send(TraceEnded(trace, [], [], 0))
        channel.close()

    def written(self, end: str = "") -> list[str]:
        try:
            text = self.path.with_name(self.path.name + end).read_text()
        except FileNotFoundError:
            return []
        return [each["request_id"] for each in json.loads(text) if "request_id" in each]

    def close(self) -> None:
        closing = self.loop.begin(self.tracing.tracer.close())
        self.run_until(closing.done)
        self.loop.forget(self._listener.fileno())
        self._listener.close()
        self.rig.close()


@pytest.fixture
def tracing(tmp_path: Path) -> Iterator[TracingHarness]:
    made = TracingHarness(tmp_path)
    yield made
    made.close()


def test_without_a_setting_nothing_is_traced_and_no_tracer_runs(tracing: TracingHarness) -> None:
    tracing.tracing.start()
    assert tracing.tracer is None
    num_fds = len(tracing.rig.a.fds)
    tracing.tracing.send_to(tracing.rig.client_a)
    (told,) = tracing.rig.a.heard()
    assert (type(told), told.settings[""]["level"]) == (TraceSettingsChanged, 0)
    assert len(tracing.rig.a.fds) == num_fds
    (answer,) = tracing.ask("m", None)
    assert answer == {
        "trace_level": ["OFF"], "trace_rate": "1", "trace_count": "-1", "log_frequency": "0",
        "trace_file": str(tracing.path), "trace_mode": "triton",
    }  # fmt: skip


def test_a_change_is_answered_when_front_ends_and_tracer_have_it(tracing: TracingHarness) -> None:
    assert tracing.ask("", {"level": 1}) == []
    rig = tracing.rig
    (told,) = rig.a.heard()
    assert told.settings[""]["level"] == 1
    rig.acknowledge(rig.a)
    assert tracing.tracer is None  # front ends first: what they still send is for the old settings
    assert tracing.answer()["trace_level"] == ["TIMESTAMPS"]
    tracer = tracing.tracer
    assert tracer is not None
    tracing.trace("a")
    tracing.trace("b", rig.b)
    assert tracing.change("", level=0)["trace_level"] == ["OFF"]
    assert tracing.written() == ["a", "b"]
    tracing.run_until(lambda: not os.path.exists(f"/proc/{tracer.pid}"))


def test_the_tracer_hears_of_the_log(tracing: TracingHarness) -> None:
    tracing.tracing.tracer.configure_log()  # nobody is there to hear it
    tracing.change("", level=1)
    told = tracing.tracer
    tracing.tracing.tracer.configure_log()
    tracing.change("", rate=2)
    assert tracing.tracer is told  # and goes on


def test_what_is_refused_changes_nothing(tracing: TracingHarness) -> None:
    with pytest.raises(InvalidArgumentError, match="sample rate must be non-zero"):
        tracing.ask("", {"level": 1, "rate": 0})
    tracing.rig.settle()
    assert not isinstance(tracing.rig.a.all_heard[-1], TraceSettingsChanged)
    assert tracing.tracer is None


def test_the_last_of_a_count_is_told_to_those_who_sample(tracing: TracingHarness) -> None:
    tracing.change("", level=1, count=2)
    for request_id in "abc":
        tracing.trace(request_id)
    told = tracing.rig.b.all_heard
    tracing.run_until(lambda: bool(tracing.rig.b.heard()))
    assert told[-1].settings[""]["count"] == 0
    assert tracing.ask("", None).pop()["trace_count"] == "0"
    assert tracing.written(".0") == ["a", "b"]


def test_a_tracer_that_dies_is_replaced_and_nothing_is_lost_on_the_way(tracing: TracingHarness) -> None:
    tracing.change("", level=1)
    first = tracing.tracer
    assert first is not None
    os.kill(first.pid, signal.SIGSTOP)
    tracing.trace("a")
    os.kill(first.pid, signal.SIGKILL)
    tracing.run_until(lambda: tracing.tracer is not first)
    tracing.trace("b")
    tracing.change("m", level=0)
    assert tracing.written() == ["a", "b"]
    numbers = {each["id"] for each in json.loads(tracing.path.read_text())}
    assert numbers == {1 << 32 | 1, 1 << 32 | 2}


def test_off_and_on_again_before_it_is_off_keeps_the_tracer(tracing: TracingHarness) -> None:
    tracing.change("", level=1)
    tracing.trace("a")
    first = tracing.tracer
    tracing.ask("", {"level": 0})
    answers = tracing.ask("", {"level": 1})
    tracing.rig.settle()
    tracing.run_until(lambda: len(answers) == 2)
    answers.clear()
    tracing.trace("b")
    tracing.change("m", level=0)
    assert tracing.tracer is first
    assert tracing.written() == ["a", "b"]


@pytest.mark.parametrize("late_s", [(0, 0), (3600, 3600), (3600, 0)])
def test_on_again_after_off_goes_on_in_the_same_file(
    tracing: TracingHarness, monkeypatch: pytest.MonkeyPatch, late_s: tuple[int, int]
) -> None:
    """By a clock that has been set back, what the first tracer has written is older than the server; also once it has
    been set right again."""
    written_s = time.time()
    for request_id, set_back_s in zip("abc", (*late_s, 0), strict=True):
        tracing.change("", level=1)
        tracing.trace(request_id)
        tracing.change("", level=0)
        now_s = time.time() - set_back_s
        written_s = min(written_s, now_s)
        monkeypatch.setattr(tracer_module, "time", SimpleNamespace(time=lambda now_s=now_s: now_s))
        os.utime(tracing.path, (written_s, written_s))
    assert tracing.written() == ["a", "b", "c"]


def test_what_the_command_line_wants_is_traced_from_the_start_and_written_at_the_end(tmp_path: Path) -> None:
    tracing = TracingHarness(tmp_path, ("", "level", "TIMESTAMPS"), ("triton", "log-frequency", "9"))
    tracing.tracing.start()
    tracing.tracing.send_to(tracing.rig.client_a)
    tracing.trace("a")
    tracing.run_until(lambda: tracing.tracer is not None)
    tracing.close()
    assert tracing.written(".0") == ["a"]


def test_a_tracer_that_is_not_needed_before_it_has_joined_ends(tracing: TracingHarness) -> None:
    tracing.ask("", {"level": 1})
    tracing.rig.settle()
    tracing.ask("", {"level": 0})
    tracing.rig.settle()
    tracing.run_until(lambda: tracing.tracer is not None and not tracing.tracer.is_open)


def test_a_tracer_that_dies_unneeded_before_it_has_joined_keeps_no_client_waiting_and_is_not_replaced(
    tracing: TracingHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)
    tracing.ask("", {"level": 1})
    tracing.rig.settle()
    child = tracing.tracing.tracer._child
    assert child is not None
    child.signal(signal.SIGSTOP)
    tracing.ask("", {"level": 0})
    tracing.rig.settle()
    child.signal(signal.SIGKILL)
    tracing.run_until(lambda: len(tracing.answers) == 2)
    tracing.rig.clock.pass_time(60.0)
    assert tracing.tracer is None
    assert tracing.tracing.tracer._child is None
    assert "is started again" not in caplog.text
    tracing.answers.clear()
    tracing.change("", level=1)
    tracing.trace("a")
    tracing.change("", level=0)
    assert tracing.written() == ["a"]


def test_a_tracer_that_does_not_end_is_killed(tracing: TracingHarness) -> None:
    tracing.change("", level=1)
    assert tracing.tracer is not None
    os.kill(tracing.tracer.pid, signal.SIGSTOP)
    closing = tracing.loop.begin(tracing.tracing.tracer.close())
    tracing.rig.clock.pass_time(CLOSE_S - 0.1)
    assert not closing.done()
    tracing.rig.clock.pass_time(0.2)
    tracing.run_until(closing.done)


def test_a_level_without_a_file_is_told_and_traces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)
    tracing = TracingHarness(tmp_path, ("", "level", "TIMESTAMPS"), ("", "rate", "0"))
    tracing.tracing.start()
    assert [record.getMessage() for record in caplog.records] == ["nothing is traced: sample rate must be non-zero"]
    assert tracing.tracer is None
    tracing.close()


def test_a_tracer_that_cannot_be_started_is_tried_again_and_delays_no_change(
    tracing: TracingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [OSError("no more processes")]

    def refuse_once(*arguments: Any, **more: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return spawn(*arguments, **more)

    monkeypatch.setattr("shoal.supervisor.processes.outside_process.spawn", refuse_once)
    assert tracing.change("", level=1)["trace_level"] == ["TIMESTAMPS"]
    tracing.trace("a")
    tracing.run_until(lambda: tracing.tracer is not None)
    tracing.change("", level=0)
    assert tracing.written() == ["a"]
