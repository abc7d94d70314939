"""The tracer's process: the test plays the supervisor and a front end, at real sockets and files."""

import dataclasses
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.control import ADDRESS_VARIABLE, Channel, Listener
from shoal.messages.shared import Acknowledged, LogChanged
from shoal.messages.to_tracer import TraceEnded, TracerConnected, TracerWelcomed, TracingChanged
from shoal.tracer.collector import Collector
from shoal.tracer.main import Tracer
from shoal.tracer.settings import TIMESTAMPS, TraceSetting
from shoal.tracer.trace import STAMPS, Trace, TracedTensor
from tests.messages import receive
from tests.tracer.receiver import receiving

DEADLINE_S = 60.0


class Supervisor:
    """It, and the other end of what front ends send to."""

    def __init__(self, options: dict[str, str] | None = None) -> None:
        self._listener = Listener.create()
        self._receiving, self._sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.traces = Channel(self._sending)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal.tracer.main"],
            env={**os.environ, ADDRESS_VARIABLE: self._listener.address},
            stderr=subprocess.PIPE,
        )
        assert select.select([self._listener.fileno()], [], [], DEADLINE_S)[0]
        accepted = self._listener.accept()
        assert accepted is not None
        self.channel, pid = accepted
        self.channel.setblocking(True)
        joined = receive(self.channel)[0]
        assert (joined, pid) == (TracerConnected(), self.process.pid)
        resource, traces = {"service.name": "x"}, self._receiving.fileno()
        self.channel.send(TracerWelcomed({}, 1, time.time() - 60, options or {}, resource, traces))
        self._seq = 0

    def set(self, *settings: TraceSetting) -> list[Any]:
        """Have them in force; what was said before that."""
        self._seq += 1
        message = [dataclasses.asdict(setting) for setting in settings]
        self.channel.send(TracingChanged(message), seq=self._seq)
        said = []
        while (heard := receive(self.channel)[0]) != Acknowledged(self._seq):
            said.append(heard)
        return said

    def send(
        self,
        request_id: str,
        revision: int = 1,
        dropped: int = 0,
        tensors: Sequence[TracedTensor] = (),
        children: Sequence[Sequence[int]] = (),
    ) -> None:
        trace = Trace(revision, True, "m", 1, request_id, list(range(11, 11 + len(STAMPS))), tensors, {})
        self.traces.send(TraceEnded(trace, children, [(5, "step")], dropped))

    def finish(self) -> str:
        """Hang up; what the tracer printed as an error until it ended."""
        self.channel.close()
        _, printed = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0
        return printed.decode()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.channel.close()
        for each in (self._receiving, self._sending, self._listener):
            each.close()


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    made = Supervisor()
    yield made
    made.close()


def request_ids(path: Path) -> list[Any]:
    return [each.get("request_id") for each in json.loads(path.read_text()) if "model_name" in each]


def test_what_was_sent_before_new_settings_is_in_the_files_when_they_are_in_force(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    setting = TraceSetting(TIMESTAMPS, 1, -1, 0, str(tmp_path / "t"), revision=1)
    assert supervisor.set(setting) == []
    for number in range(300):
        supervisor.send(str(number))
    assert supervisor.set() == []
    assert request_ids(tmp_path / "t") == [str(number) for number in range(300)]
    assert supervisor.finish() == ""


def test_counts_are_told_and_the_rest_is_written_at_the_end(supervisor: Supervisor, tmp_path: Path) -> None:
    path = tmp_path / "t"
    supervisor.set(TraceSetting(TIMESTAMPS, 1, 3, 0, str(path), revision=4))
    supervisor.send("a", revision=4)
    assert receive(supervisor.channel)[0].counts == [[4, 1]]
    for number in range(5):
        supervisor.send(str(number), revision=4)
    counted = sum([count for message in supervisor.set() for _, count in message.counts])
    assert counted == 2
    assert request_ids(tmp_path / "t.0") == ["a", "0", "1"]
    supervisor.set(TraceSetting(TIMESTAMPS, 1, -1, 9, str(path), revision=5))
    supervisor.send("b", revision=5)
    supervisor.finish()
    assert request_ids(tmp_path / "t.1") == ["b"]


def test_large_tensors_and_dropped_traces(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.set(TraceSetting(TIMESTAMPS, 1, -1, 0, str(tmp_path / "t"), revision=1))
    tensor = TracedTensor("TENSOR_QUEUE_INPUT", "A", "UINT8", [100_000], bytes(100_000))
    supervisor.send("a", dropped=3, tensors=[tensor])
    supervisor.set()
    described = json.loads((tmp_path / "t").read_text())[-1]["tensor"]
    assert described["data"] == ",".join("0" * 100_000)
    assert "3 traces were dropped, which came faster than they are written" in supervisor.finish()


def test_a_trace_that_cannot_be_read_is_passed_over(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.set(TraceSetting(TIMESTAMPS, 1, -1, 0, str(tmp_path / "t"), revision=1))
    supervisor.traces.send_encoded(b"\xc1", ())
    supervisor.send("a")
    supervisor.set()
    assert request_ids(tmp_path / "t") == ["a"]
    assert "a trace cannot be read: no message that is due" in supervisor.finish()


def child(key: int, parent: int = 0) -> tuple[int, ...]:
    """A step as front ends hand it on: key, parent, model, version, seven time points, whether it is a call."""
    return (key, parent, 5, 3, 20, 0, 0, 0, 0, 0, 30, 0)


def test_children_are_written_below_their_request(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.set(TraceSetting(TIMESTAMPS, 1, -1, 0, str(tmp_path / "t"), revision=1))
    supervisor.send("a", children=[child(2, 1), child(1)])
    supervisor.set()
    heads = [each for each in json.loads((tmp_path / "t").read_text()) if "model_name" in each]
    assert [(each["model_name"], each.get("parent_id")) for each in heads] == [("m", None), ("step", 1), ("step", 2)]
    assert [each["model_version"] for each in heads] == [1, 3, 3]


def test_few_traces_with_many_children_are_written_at_once(tmp_path: Path) -> None:
    """Their text is eight times as long as what front ends send."""
    receiving, sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    supervisors, _ = ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with receiving, sending, ends[0], ends[1]:
        receiving.setblocking(False)
        collector = Collector(1, 0.0, None)
        collector.set([TraceSetting(TIMESTAMPS, 1, -1, 0, str(tmp_path / "t"), revision=1)])
        tracer = Tracer(Channel(supervisors), Channel(receiving), collector)
        trace = Trace(1, True, "m", 1, "a", list(range(11, 11 + len(STAMPS))), (), {})
        front_end = Channel(sending)
        for _ in range(6):
            front_end.send(TraceEnded(trace, [child(key) for key in range(1, 1001)], [], 0))
        tracer._collect()
        assert request_ids(tmp_path / "t").count("a") == 2 * 1001
        tracer._collect()
        tracer._collect()
        assert request_ids(tmp_path / "t").count("a") == 6 * 1001


def test_it_heeds_the_settings_of_the_log(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.channel.send(LogChanged({"log_warning": False}))
    supervisor.set(TraceSetting(TIMESTAMPS, 1, -1, 0, str(tmp_path / "t"), revision=1))
    supervisor.send("a", dropped=3)
    supervisor.set()
    assert supervisor.finish() == ""


def test_spans_are_exported_at_the_end_at_the_latest() -> None:
    with receiving() as receiver:
        options = {
            "url": receiver.url, "bsp_max_queue_size": "2048", "bsp_schedule_delay": "60000",
            "bsp_max_export_batch_size": "512",
        }  # fmt: skip
        supervisor = Supervisor(options)
        try:
            supervisor.set(TraceSetting(TIMESTAMPS, 1, mode="opentelemetry", revision=1))
            before_ns = time.time_ns()
            supervisor.send("a")
            assert supervisor.finish() == ""
            spans = receiver.spans(3)
            assert [span.name for span in spans] == ["InferRequest", "m", "compute"]
            # The clock of the trace began when the machine did.
            assert abs(spans[0].start_ns - before_ns + time.monotonic_ns()) < DEADLINE_S * 1e9
        finally:
            supervisor.close()


def test_a_receiver_that_is_not_there_is_told_in_our_log() -> None:
    options = {
        "url": "http://127.0.0.1:9/v1/traces", "bsp_max_queue_size": "1", "bsp_schedule_delay": "10",
        "bsp_max_export_batch_size": "1",
    }  # fmt: skip
    supervisor = Supervisor(options)
    try:
        supervisor.set(TraceSetting(TIMESTAMPS, 1, mode="opentelemetry", revision=1))
        supervisor.send("a")
        assert supervisor.process.stderr is not None
        line = supervisor.process.stderr.readline().decode()
        assert line[0] in "EW"
        assert "127.0.0.1" in line or "dropping" in line
    finally:
        supervisor.close()
