"""Python models that end, hang, print or swallow memory: each costs its own instance, says how, and is back."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.end_to_end.asking import infer
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, Server, imbalances, samples, serving_to_the_end, wait_until, worker_of
from tests.end_to_end.traffic import MODEL, Traffic

#: Does what it is told to, and counts as authors of models do.
CODE = """
import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kept = []
        family = pb_utils.MetricFamily(
            name="commands", description="Commands by their word", kind=pb_utils.MetricFamily.COUNTER
        )
        self.counters = {word: family.Metric(labels={"word": word}) for word in ("echo", "halt", "leak")}
        sizes = pb_utils.MetricFamily("command_chars", "Their lengths", pb_utils.MetricFamily.HISTOGRAM)
        self.sizes = sizes.Metric(labels={}, buckets=[4, 8])
        busy = pb_utils.MetricFamily("commands_running", "Commands now", pb_utils.MetricFamily.GAUGE)
        self.running = busy.Metric()
        self.families = family, sizes, busy  # their metrics go with them

    def execute(self, requests):
        responses = []
        for request in requests:
            command = pb_utils.get_input_tensor_by_name(request, "COMMAND").as_numpy().flat[0].decode()
            if command in self.counters:
                self.counters[command].increment(1)
            self.sizes.observe(len(command))
            self.running.increment(1)
            getattr(self, command, lambda: None)()
            self.running.increment(-1)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SAID", np_of(command))]))
        return responses

    def exit(self):
        os._exit(3)

    def halt(self):
        open(os.path.join(os.path.dirname(__file__), "gate")).close()  # a pipe: waits until the test opens it, too
        os._exit(3)

    def crash(self):
        ctypes.string_at(0)

    def hang(self):
        while True:
            signal.pause()

    def start(self):
        with subprocess.Popen(["sleep", "1000"]) as started:
            started.terminate()

    def print(self):
        for number in range(20_000):
            print(f"line {number} of very many that nobody can want to read")

    def print_for_ever(self):
        while True:
            print("on and on, without a new line" * 100, end="")
            print("on and on, in both streams", file=sys.stderr)

    def fail(self):
        raise KeyError("nothing here")

    def cancel(self):
        raise asyncio.CancelledError("given up")

    def interrupt(self):
        raise KeyboardInterrupt

    def allocate(self):
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
        try:
            bytearray(16 << 30)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def leak(self):
        self.kept.append(b"x" * (64 << 20))


def np_of(text):
    import numpy as np

    return np.array([text.encode()], np.object_)
"""
CONFIG = config_text("python", "COMMAND STRING 1", "SAID STRING 1", count=1)
LIMIT = 'parameters { key: "execution_timeout_ms" value { string_value: "2000" } }'
MOST_MEMORY = 'parameters { key: "max_rss" value { string_value: "300M" } }'
UP_AGAIN = b"instance 'victim_0_0' of model 'victim' is up again"


def write_models(repository: Path, more: str) -> Path:
    """The victim and its neighbour, "m"."""
    for name, config, code in (("victim", CONFIG + more, CODE), ("m", MODEL, "")):
        add_model(repository, name, config, code)
    return repository


def command(server: Server, word: str, model: str = "victim") -> str:
    """Have the victim do something; what it says."""
    return str(infer(server, model, {"COMMAND": np.array([word.encode()], np.object_)})["SAID"][0].decode())


def failure(server: Server, word: str) -> str:
    """Have it do what it cannot; the sentence of the 500."""
    with pytest.raises(InferenceServerException) as caught:
        command(server, word)
    assert caught.value.status() == "500"
    return str(caught.value.message())


@contextmanager
def victim_among_others(repository: Path, more: str) -> Iterator[Server]:
    """The server, with traffic to the neighbour that nothing may disturb; at rest everything is given back."""
    with serving_to_the_end(write_models(repository, more)) as server:
        with Traffic(server, 100) as neighbour:
            yield server
        assert not neighbour.faults
        assert neighbour.num_right > 0
        assert command(server, "echo") == "echo"
        server.ledger_once(lambda ledger: not imbalances(ledger))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Beside the victim, whose executions have a limit, one whose memory has."""
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "glutton", CONFIG + MOST_MEMORY, CODE)
    with victim_among_others(repository, LIMIT) as server:
        yield server


NOT_HEALTHY = (
    r"\[request id: <id_unknown>\] Failed to process the request\(s\) for model instance 'victim_0_0', message: Stub "
    r"process 'victim_0_0' is not healthy\. The worker of model 'victim' \(pid [0-9]+\) "
)


@pytest.mark.parametrize(
    ("word", "said", "logged"),
    [
        ("exit", r"exited with code 3 while executing them\.", "exited with code 3 while it was executing batch"),
        ("crash", r"was killed by signal 11 \(SIGSEGV\) while executing them\.", "in crash"),
        (
            "hang",
            r"was ended because the execution took longer than the limit of 2000 ms\. If the model needs it, raise the "
            "parameter 'execution_timeout_ms'",
            "because it was over the execution limit of 2000 ms",
        ),
        (
            "print_for_ever",
            "was ended because the execution took longer than the limit of 2000 ms",
            " lines were dropped",
        ),
    ],
)
def test_what_ends_an_instance_is_named_and_the_instance_is_back(
    server: Server, word: str, said: str, logged: str
) -> None:
    server.log = b""
    with ThreadPoolExecutor(1) as pool:
        sentence = pool.submit(failure, server, word)
        assert server.read_log(UP_AGAIN)
        assert re.match(NOT_HEALTHY + said, sentence.result(DEADLINE_S))
    assert logged.encode() in server.log
    assert command(server, "echo") == "echo"


def test_a_crash_shows_where_in_the_model_it_was(server: Server) -> None:
    server.log = b""
    failure(server, "crash")
    assert server.read_log(UP_AGAIN)
    assert re.search(rb'victim/1/model\.py", line [0-9]+ in crash\n', server.log)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("fail", r"KeyError: 'nothing here'.*At:.*/victim/1/model\.py\([0-9]+\): fail"),
        ("cancel", r"CancelledError: given up.*At:.*/victim/1/model\.py\([0-9]+\): cancel"),
        ("interrupt", r"KeyboardInterrupt: .*At:.*/victim/1/model\.py\([0-9]+\): interrupt"),
        ("allocate", r"MemoryError: .*At:.*/victim/1/model\.py\([0-9]+\): allocate"),
    ],
)
def test_an_exception_costs_its_request_only(server: Server, word: str, said: str) -> None:
    worker = worker_of(server, "victim_0_0")
    sentence = failure(server, word)
    beginning = r"Failed to process the request\(s\) for model 'victim_0_0', message: "
    assert re.match(beginning + said, sentence, re.DOTALL), sentence
    assert command(server, "echo") == "echo"
    assert worker_of(server, "victim_0_0") == worker


def test_a_model_ends_a_program_that_it_has_started(server: Server) -> None:
    assert command(server, "start") == "start"


def test_who_prints_without_end_is_heard_for_a_while_and_answers(server: Server) -> None:
    server.log = b""
    assert command(server, "print") == "print"  # though nobody reads the log meanwhile
    assert server.read_log(b" lines were dropped")
    assert len(server.log) < 1 << 20


def test_it_is_recycled_that_swallows_memory_and_no_request_fails(server: Server) -> None:
    for _ in range(5):
        assert command(server, "leak", "glutton") == "leak"
    assert server.read_log(b"of memory, the model's 'max_rss' is 300 MiB")
    assert server.read_log(b"instance 'glutton_0_0' of model 'glutton' is up again")
    assert command(server, "leak", "glutton") == "leak"


def shown_once(server: Server, expected: dict[str, float]) -> dict[str, float]:
    """The first scrape with these figures: what a model counts is told within a tenth of a second."""
    shown: list[dict[str, float]] = []

    def is_shown() -> bool:
        shown.append(samples(server.metrics_port))
        return shown[-1].items() >= expected.items()

    wait_until(is_shown, lambda: (expected, shown[-1]))
    return shown[-1]


def test_what_a_model_counts_is_shown_and_outlives_its_instances(tmp_path: Path) -> None:
    more = 'instance_group { count: 1 kind: KIND_CPU name: "other" }'
    with victim_among_others(tmp_path, more) as server, ThreadPoolExecutor(1) as pool:
        assert samples(server.metrics_port)['commands{word="halt"}'] == 0
        for _ in range(6):
            command(server, "echo")
        gate = tmp_path / "victim" / "1" / "gate"
        os.mkfifo(gate)
        failed = pool.submit(failure, server, "halt")
        shown_once(server, {'commands{word="halt"}': 1, "commands_running": 1})
        opened = os.open(gate, os.O_RDWR)  # waits for nobody, and is there until the model has opened it
        failed.result(DEADLINE_S)
        os.close(opened)
        assert server.read_log(b" of model 'victim' is up again")
        command(server, "leak")
        expected: dict[str, float] = {
            'commands{word="echo"}': 6, 'commands{word="halt"}': 1, 'commands{word="leak"}': 1,
            "command_chars_count": 8, "command_chars_sum": 6 * 4 + 4 + 4,
            'command_chars_bucket{le="4"}': 8, 'command_chars_bucket{le="8"}': 8, 'command_chars_bucket{le="+Inf"}': 8,
            "commands_running": 0,
        }  # fmt: skip
        shown = shown_once(server, expected)
        assert {name: value for name, value in shown.items() if name.startswith("command")} == expected
