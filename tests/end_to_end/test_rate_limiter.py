"""The rate limiter as clients meet it: models that share a resource, told by the models themselves.

Each writes down when it executes, and stands still in request 100 until its gate is opened.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.end_to_end.asking import infer
from tests.end_to_end.figures import wait_for_pending
from tests.end_to_end.gate import Gate
from tests.end_to_end.repositories import add_model, python_model
from tests.end_to_end.server import DEADLINE_S, Server, descendants, only, serving_to_the_end, title, wait_until

HOLD = 100
ONE = 'resources { name: "SLOT" global: true count: 1 }'
#: Name → its rate_limiter, and how many instances.
MODELS = {
    "often": (f"{ONE} priority: 1", 1),
    "seldom": (f"{ONE} priority: 2", 2),
    "free": ("", 1),
    "whole": ('resources { name: "PAIR" count: 1 }', 1),
    "half": ('resources { name: "PAIR" count: 1 } priority: 2', 1),
    "greedy": ('resources { name: "SLOT" global: true count: 2 }', 1),
    "local": ('resources { name: "SLOT" count: 1 }', 1),
    "misspelt": ('resources { name: "slot" global: true count: 1 }', 1),
}
MODEL = python_model("""
    def initialize(self, args):
        self.path = args["model_repository"]

    def execute(self, requests):
        start_ns = time.monotonic_ns()
        numbers = [int(pb_utils.get_input_tensor_by_name(each, "X").as_numpy()[0]) for each in requests]
        with open(f"{self.path}/begun", "a") as file:
            file.write(f"{os.getpid()}\\n")
        if 100 in numbers:
            open(f"{self.path}/gate").close()
        with open(f"{self.path}/told", "a") as file:
            file.write(f"{start_ns} {time.monotonic_ns()}\\n")
        return [pb_utils.InferenceResponse() for _ in requests]
""")


class Story:
    """The server and its models."""

    def __init__(self, server: Server, repository: Path, pool: ThreadPoolExecutor) -> None:
        self.server = server
        self.repository = repository
        self._gates = {model: Gate(repository / model / "gate") for model in MODELS}
        self.pool = pool

    def ask(self, model: str, number: int = 0) -> None:
        infer(self.server, model, {"X": np.full(1, number, np.int32)})

    def send(self, model: str, number: int = 0) -> "Future[None]":
        return self.pool.submit(self.ask, model, number)

    def hold(self, model: str) -> tuple["Future[None]", int]:
        """An instance of it executes until its gate is opened: the request, and the instance's process."""
        num_begun = len(self.begun(model))
        held = self.send(model, HOLD)
        wait_until(lambda: len(self.begun(model)) != num_begun)
        return held, self.begun(model)[-1]

    def opened(self, model: str) -> AbstractContextManager[None]:
        """What holds an instance of the model, or comes to, goes on within."""
        return self._gates[model].opened()

    def begun(self, model: str) -> list[int]:
        path = self.repository / model / "begun"
        return [int(line) for line in path.read_text().splitlines()] if path.exists() else []

    def told(self, *models: str) -> list[tuple[int, int, str]]:
        """When they executed: from, to, and which."""
        lines = [(line, each) for each in models for line in (self.repository / each / "told").read_text().splitlines()]
        return sorted([(*map(int, line.split()), each) for line, each in lines])  # type: ignore[misc]  # two numbers

    def refusal(self, model: str) -> str:
        with triton.InferenceServerClient(self.server.url) as client, pytest.raises(InferenceServerException) as error:
            client.load_model(model)
        return str(error.value)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    repository = tmp_path_factory.mktemp("models")
    for name, (limiter, count) in MODELS.items():
        add_model(
            repository,
            name,
            f"""
            backend: "python"
            input {{ name: "X" data_type: TYPE_INT32 dims: [ 1 ] }}
            output {{ name: "Y" data_type: TYPE_INT32 dims: [ 1 ] }}
            instance_group {{ kind: KIND_CPU count: {count} rate_limiter {{ {limiter} }} }}
            parameters {{ key: "idempotent" value {{ string_value: "true" }} }}
            """,
            MODEL,
        )
    flags = ["--rate-limit=execution_count", "--rate-limit-resource=SLOT:1", "--rate-limit-resource=PAIR:1"]
    flags += only("often", "seldom", "free", "whole", "half")
    with serving_to_the_end(repository, *flags) as server, ThreadPoolExecutor(40) as pool:
        yield Story(server, repository, pool)


def test_who_shares_a_resource_never_executes_at_once_and_turns_go_by_priority(story: Story) -> None:
    held, _ = story.hold("often")
    sent = [story.send(model) for model in ("often", "seldom") for _ in range(12)]
    for model in ("often", "seldom"):
        wait_for_pending(story.server, model, 12)
    with story.opened("often"):
        for each in (held, *sent):
            each.result(DEADLINE_S)
    told = story.told("often", "seldom")
    assert len(told) == 25
    assert all(end <= begin for (_, end, _), (begin, _, _) in pairwise(told))
    # Of the two instances of "seldom" each has half the turns of the one of "often".
    turns = [model for _, _, model in told[1:13]]
    assert turns.count("often") in (5, 6, 7)


def test_new_instances_take_turns_in_tritons_order(story: Story) -> None:
    """Triton counts loading and warming up: the instance of priority 1 has its two turns first."""
    held, _ = story.hold("whole")
    sent = [story.send(model) for model in ("whole", "half") for _ in range(11)]
    for model in ("whole", "half"):
        wait_for_pending(story.server, model, 11)
    with story.opened("whole"):
        for each in (held, *sent):
            each.result(DEADLINE_S)
    turns = [model for _, _, model in story.told("whole", "half")]
    assert turns[:18] == ["whole", "whole", "half"] * 6


def test_who_needs_nothing_runs_meanwhile(story: Story) -> None:
    held, _ = story.hold("seldom")
    story.send("free").result(DEADLINE_S)
    waiting = story.send("often")
    wait_for_pending(story.server, "often", 1)
    assert not waiting.done()
    with story.opened("seldom"):
        held.result(DEADLINE_S)
        waiting.result(DEADLINE_S)


def test_what_a_dead_instance_had_goes_to_others(story: Story) -> None:
    held, pid = story.hold("often")
    waiting = story.send("seldom")
    wait_for_pending(story.server, "seldom", 1)
    os.kill(pid, signal.SIGKILL)
    waiting.result(DEADLINE_S)
    with story.opened("often"):
        held.result(DEADLINE_S)  # it may run again


def test_a_batchers_successor_knows_who_executes(story: Story) -> None:
    held, _ = story.hold("often")
    waiting = [story.send("seldom"), story.send("often")]
    wait_for_pending(story.server, "seldom", 1)
    wait_for_pending(story.server, "often", 1)
    (batcher,) = [pid for pid in descendants(story.server.process.pid) if title(pid) == "shoal batcher"]
    os.kill(batcher, signal.SIGKILL)
    story.send("free").result(DEADLINE_S)  # there is another
    assert not any(each.done() for each in waiting)
    with story.opened("often"):
        for each in (held, *waiting):
            each.result(DEADLINE_S)
    told = story.told("often", "seldom")
    assert all(end <= begin for (_, end, _), (begin, _, _) in pairwise(told))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (
            "greedy",
            'Resource count for "SLOT" is limited to 1 which will prevent scheduling of one or more model instances, '
            "the minimum required count is 2",
        ),
        (
            "local",
            'Resource "SLOT" is present as both global and device-specific resource in the model configuration.',
        ),
        (
            "misspelt",
            'Resource count for "slot" is limited to 0 which will prevent scheduling of one or more model instances, '
            "the minimum required count is 1",
        ),
    ],
)
def test_what_there_is_not_enough_of_is_refused(story: Story, model: str, sentence: str) -> None:
    assert sentence in story.refusal(model)


def test_what_a_model_needed_goes_with_it(story: Story) -> None:
    with triton.InferenceServerClient(story.server.url) as client:
        for model in ("often", "seldom"):
            client.unload_model(model)
        wait_until(
            lambda: (
                ready_models(client) == ["free", "half", "whole"]
                and "UNLOADING" not in str(client.get_model_repository_index())
            )
        )
        client.load_model("local")
        story.ask("local")


def ready_models(client: triton.InferenceServerClient) -> list[str]:
    return [each["name"] for each in client.get_model_repository_index() if each.get("state") == "READY"]
