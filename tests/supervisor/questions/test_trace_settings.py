"""Who hears of new settings in which order, and the tracer's process, which is real; the test plays the front ends."""

import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.control import Channel, Listener
from shoal.errors import InvalidArgumentError
from shoal.messages.message import on, table
from shoal.messages.to_client import TraceSettingsChanged
from shoal.messages.to_tracer import TraceEnded, TracerConnected
from shoal.supervisor.processes.children import spawn
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.tracer import CLOSE_S
from shoal.supervisor.questions.trace_settings import TraceControl
from shoal.tracer.command_line import understand
from shoal.tracer.trace import STAMPS, Trace
from tests.supervisor.star_rig import Process, Sky


class Surroundings:
    """Tracing into a folder at a star of two front ends, of which nobody is joined that is not told."""

    def __init__(self, folder: Path, *said: tuple[str, str, str]) -> None:
        self.path = folder / "t"
        self.sky = Sky()
        self.loop = self.sky.loop
        self._listener = Listener.create()
        self.loop.on_readable(self._listener.fileno(), self._accept)
        config = understand([("triton", "file", str(self.path)), ("", "rate", "1"), *said], {})
        self.tracing = TraceControl(self.loop, self._listener.address, {}, config, self.sky.star)
        self.answers: list[dict[str, Any]] = []
        self.tracer: Member | None = None

    def _accept(self) -> None:
        accepted = self._listener.accept()
        assert accepted is not None
        member = Member(self.loop, *accepted, self.sky.star.acknowledgements)
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
        self.sky.clock.settle()
        if asked.done():
            asked.result()
        return self.answers

    def answer(self) -> dict[str, Any]:
        """The next answer, when everybody does what is theirs."""
        self.sky.settle()
        self.run_until(lambda: bool(self.answers))
        return self.answers.pop()

    def change(self, model: str, **changes: Any) -> dict[str, Any]:
        assert self.ask(model, changes) == []
        return self.answer()

    def run_until(self, condition: Callable[[], bool]) -> None:
        self.sky.clock.until(condition)

    def trace(self, request_id: str, process: Process | None = None) -> None:
        """A front end sends a trace by what it was told last."""
        process = process or self.sky.a
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
        closing = self.loop.begin(self.tracing.close())
        self.run_until(closing.done)
        self.loop.forget(self._listener.fileno())
        self._listener.close()
        self.sky.close()


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    made = Surroundings(tmp_path)
    yield made
    made.close()


def test_nothing_is_traced_and_no_process_there_until_somebody_wants_it(surroundings: Surroundings) -> None:
    surroundings.tracing.start()
    assert surroundings.tracer is None
    num_fds = len(surroundings.sky.a.fds)
    surroundings.tracing.tell(surroundings.sky.client_a)
    (told,) = surroundings.sky.a.heard()
    assert (type(told), told.settings[""]["level"]) == (TraceSettingsChanged, 0)
    assert len(surroundings.sky.a.fds) == num_fds
    (answer,) = surroundings.ask("m", None)
    assert answer == {
        "trace_level": ["OFF"], "trace_rate": "1", "trace_count": "-1", "log_frequency": "0",
        "trace_file": str(surroundings.path), "trace_mode": "triton",
    }  # fmt: skip


def test_a_change_is_answered_when_front_ends_and_tracer_have_it(surroundings: Surroundings) -> None:
    assert surroundings.ask("", {"level": 1}) == []
    sky = surroundings.sky
    (told,) = sky.a.heard()
    assert told.settings[""]["level"] == 1
    sky.acknowledge(sky.a)
    assert surroundings.tracer is None  # front ends first: what they still send is for the old settings
    assert surroundings.answer()["trace_level"] == ["TIMESTAMPS"]
    tracer = surroundings.tracer
    assert tracer is not None
    surroundings.trace("a")
    surroundings.trace("b", sky.b)
    assert surroundings.change("", level=0)["trace_level"] == ["OFF"]
    assert surroundings.written() == ["a", "b"]
    surroundings.run_until(lambda: not os.path.exists(f"/proc/{tracer.pid}"))


def test_the_tracer_hears_of_the_log(surroundings: Surroundings) -> None:
    surroundings.tracing.tracer.configure_log()  # nobody is there to hear it
    surroundings.change("", level=1)
    told = surroundings.tracer
    surroundings.tracing.tracer.configure_log()
    surroundings.change("", rate=2)
    assert surroundings.tracer is told  # and goes on


def test_what_is_refused_changes_nothing(surroundings: Surroundings) -> None:
    with pytest.raises(InvalidArgumentError, match="sample rate must be non-zero"):
        surroundings.ask("", {"level": 1, "rate": 0})
    surroundings.sky.settle()
    assert not isinstance(surroundings.sky.a.all_heard[-1], TraceSettingsChanged)
    assert surroundings.tracer is None


def test_the_last_of_a_count_is_told_to_those_who_sample(surroundings: Surroundings) -> None:
    surroundings.change("", level=1, count=2)
    for request_id in "abc":
        surroundings.trace(request_id)
    told = surroundings.sky.b.all_heard
    surroundings.run_until(lambda: bool(surroundings.sky.b.heard()))
    assert told[-1].settings[""]["count"] == 0
    assert surroundings.ask("", None).pop()["trace_count"] == "0"
    assert surroundings.written(".0") == ["a", "b"]


def test_a_tracer_that_dies_is_replaced_and_nothing_is_lost_on_the_way(surroundings: Surroundings) -> None:
    surroundings.change("", level=1)
    first = surroundings.tracer
    assert first is not None
    os.kill(first.pid, signal.SIGSTOP)
    surroundings.trace("a")
    os.kill(first.pid, signal.SIGKILL)
    surroundings.run_until(lambda: surroundings.tracer is not first)
    surroundings.trace("b")
    surroundings.change("m", level=0)
    assert surroundings.written() == ["a", "b"]
    numbers = {each["id"] for each in json.loads(surroundings.path.read_text())}
    assert numbers == {1 << 32 | 1, 1 << 32 | 2}


def test_off_and_on_again_before_it_is_off_keeps_the_tracer(surroundings: Surroundings) -> None:
    surroundings.change("", level=1)
    surroundings.trace("a")
    first = surroundings.tracer
    surroundings.ask("", {"level": 0})
    answers = surroundings.ask("", {"level": 1})
    surroundings.sky.settle()
    surroundings.run_until(lambda: len(answers) == 2)
    answers.clear()
    surroundings.trace("b")
    surroundings.change("m", level=0)
    assert surroundings.tracer is first
    assert surroundings.written() == ["a", "b"]


def test_on_again_after_off_goes_on_in_the_same_file(surroundings: Surroundings) -> None:
    for request_id in "ab":
        surroundings.change("", level=1)
        surroundings.trace(request_id)
        surroundings.change("", level=0)
    assert surroundings.written() == ["a", "b"]


def test_what_the_command_line_wants_is_traced_from_the_start_and_written_at_the_end(tmp_path: Path) -> None:
    surroundings = Surroundings(tmp_path, ("", "level", "TIMESTAMPS"), ("triton", "log-frequency", "9"))
    surroundings.tracing.start()
    surroundings.tracing.tell(surroundings.sky.client_a)
    surroundings.trace("a")
    surroundings.run_until(lambda: surroundings.tracer is not None)
    surroundings.close()
    assert surroundings.written(".0") == ["a"]


def test_a_tracer_that_is_not_needed_before_it_has_joined_ends(surroundings: Surroundings) -> None:
    surroundings.ask("", {"level": 1})
    surroundings.sky.settle()
    surroundings.ask("", {"level": 0})
    surroundings.sky.settle()
    surroundings.run_until(lambda: surroundings.tracer is not None and not surroundings.tracer.is_open)


def test_a_tracer_that_does_not_end_is_killed(surroundings: Surroundings) -> None:
    surroundings.change("", level=1)
    assert surroundings.tracer is not None
    os.kill(surroundings.tracer.pid, signal.SIGSTOP)
    closing = surroundings.loop.begin(surroundings.tracing.close())
    surroundings.sky.clock.pass_time(CLOSE_S - 0.1)
    assert not closing.done()
    surroundings.sky.clock.pass_time(0.2)
    surroundings.run_until(closing.done)


def test_a_level_without_a_file_is_told_and_traces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)
    surroundings = Surroundings(tmp_path, ("", "level", "TIMESTAMPS"), ("", "rate", "0"))
    surroundings.tracing.start()
    assert [record.getMessage() for record in caplog.records] == ["nothing is traced: sample rate must be non-zero"]
    assert surroundings.tracer is None
    surroundings.close()


def test_a_tracer_that_cannot_be_started_is_tried_again_and_nobody_waits_for_it(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [OSError("no more processes")]

    def refuse_once(*arguments: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return spawn(*arguments)

    monkeypatch.setattr("shoal.supervisor.processes.tracer.spawn", refuse_once)
    assert surroundings.change("", level=1)["trace_level"] == ["TIMESTAMPS"]
    surroundings.trace("a")
    surroundings.run_until(lambda: surroundings.tracer is not None)
    surroundings.change("", level=0)
    assert surroundings.written() == ["a"]
