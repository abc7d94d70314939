"""Queue policies as clients meet them: priorities, timeouts, bounds and the order of responses, told by the model.

Each model writes down what it executes, and stands still in request 100 until its gate is opened: what is sent
meanwhile queues up. What is expected here was seen of Triton 2.51, too, but for the metric of a full queue.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.end_to_end.asking import infer
from tests.end_to_end.figures import metric, statistics, wait_for_pending
from tests.end_to_end.gate import Gate
from tests.end_to_end.lifecycle import loaded
from tests.end_to_end.repositories import add_model, config_text, python_model
from tests.end_to_end.server import DEADLINE_S, Server, wait_until

HOLD = 100
HOUR_US = 3_600_000_000
LEVELS = "priority_levels: 3 default_priority_level: 2"
MODELS = {
    "levels": f"dynamic_batching {{ {LEVELS} }}",
    "thousand": """dynamic_batching { priority_levels: 1000 default_priority_level: 500
        priority_queue_policy { key: 999 value { max_queue_size: 1 } } }""",
    "brief": "dynamic_batching { default_queue_policy { default_timeout_microseconds: 20000 } }",
    "override": f"""dynamic_batching {{ default_queue_policy {{
        default_timeout_microseconds: {HOUR_US} allow_timeout_override: true }} }}""",
    "late": f"""dynamic_batching {{ default_queue_policy {{ timeout_action: DELAY
        default_timeout_microseconds: {HOUR_US} allow_timeout_override: true }} }}""",
    "bounded": f"dynamic_batching {{ {LEVELS} priority_queue_policy {{ key: 3 value {{ max_queue_size: 1 }} }} }}",
    "ordered": "dynamic_batching { preserve_ordering: true }",
    "plain": "",
    "pair": "",
}
#: Models of two instances.
PAIRS = ("ordered", "pair")
MODEL = python_model("""
    def initialize(self, args):
        self.path = args["model_repository"]

    def execute(self, requests):
        numbers = [pb_utils.get_input_tensor_by_name(each, "X") for each in requests]
        with open(f"{self.path}/told", "a") as file:
            file.write("".join([f"{int(each.as_numpy()[0, 0])}\\n" for each in numbers]))
        if any(each.as_numpy()[0, 0] == 100 for each in numbers):
            open(f"{self.path}/gate").close()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each.as_numpy())]) for each in numbers]
""")


class Story:
    """The server, and what happens to one of its models after another."""

    def __init__(self, server: Server, repository: Path, pool: ThreadPoolExecutor) -> None:
        self.server = server
        self._repository = repository
        self._gates = {model: Gate(repository / model / "gate") for model in MODELS}
        self._pool = pool

    def ask(self, model: str, number: int, **wishes: Any) -> int:
        """One request over a connection of its own; its answer."""
        given = {"X": np.full((1, 1), number, np.int32)}
        return int(infer(self.server, model, given, request_id=str(number), **wishes)["Y"][0, 0])

    def send(self, model: str, number: int, **wishes: Any) -> "Future[int]":
        """The same, meanwhile."""
        return self._pool.submit(self.ask, model, number, **wishes)

    def hold(self, model: str) -> "Future[int]":
        """An instance stands still when this returns."""
        held = self.send(model, HOLD)
        self.wait_for_told(model, 1)
        return held

    def queue_up(self, model: str, wishes: Sequence[dict[str, Any]]) -> list["Future[int]"]:
        """Requests 0, 1 …, accepted in this order."""
        sent = []
        for number, each in enumerate(wishes):
            sent.append(self.send(model, number, **each))
            wait_for_pending(self.server, model, 1 + number)
        return sent

    def let_go(self, model: str, sent: Sequence["Future[int]"]) -> list[int]:
        """The gate opens until all are answered; the requests in the order in which they were executed."""
        with self._gates[model].opened():
            for each in sent:
                each.result(DEADLINE_S)
        return self.told(model)

    def told(self, model: str) -> list[int]:
        path = self._repository / model / "told"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def wait_for_told(self, model: str, count: int) -> None:
        wait_until(lambda: len(self.told(model)) >= count, lambda: f"'{model}' has executed {self.told(model)}")


@pytest.fixture(scope="module")
def story(explicit: Server, shared: Path) -> Iterator[Story]:
    for name, scheduling in MODELS.items():
        add_model(
            shared,
            name,
            config_text("python", "X INT32 1", "Y INT32 1", scheduling, rows=1, count=2 if name in PAIRS else 1),
            MODEL,
        )
    with loaded(explicit, *MODELS) as server, ThreadPoolExecutor(16) as pool:
        yield Story(server, shared, pool)


def refusal(answer: "Future[int]") -> tuple[str, str]:
    error = answer.exception(DEADLINE_S)
    assert isinstance(error, InferenceServerException)
    return str(error.status()), error.message()


def counts(story: Story, model: str) -> tuple[int, int, float]:
    """Requests that succeeded and failed, and of these those that were rejected."""
    found = statistics(story.server, model)["inference_stats"]
    rejected = metric(story.server, "nv_inference_request_failure", model=model, reason="REJECTED")
    return found["success"]["count"], found["fail"]["count"], rejected


def test_the_first_level_is_served_first(story: Story) -> None:
    held = story.hold("levels")
    sent = story.queue_up("levels", [{"priority": priority} for priority in (3, 0, 1, 2, 7, 1)])
    assert story.let_go("levels", [held, *sent]) == [HOLD, 2, 5, 1, 3, 4, 0]


def test_levels_may_be_many(story: Story) -> None:
    held = story.hold("thousand")
    sent = story.queue_up("thousand", [{"priority": priority} for priority in (1000, 999, 0, 65, 1, 7000, 1000, 1)])
    with pytest.raises(InferenceServerException, match="Exceeds maximum queue size"):
        story.ask("thousand", 8, priority=999)
    assert story.let_go("thousand", [held, *sent]) == [HOLD, 4, 7, 3, 2, 5, 1, 0, 6]


def test_requests_expire_while_the_only_instance_stands_still(story: Story) -> None:
    held = story.hold("brief")
    refusals = [refusal(story.send("brief", number, timeout=HOUR_US)) for number in range(2)]
    assert refusals == [("503", "Request timeout expired")] * 2
    assert not held.done()
    assert metric(story.server, "nv_inference_pending_request_count", model="brief") == 0
    assert story.let_go("brief", [held]) == [HOLD]
    assert counts(story, "brief") == (1, 2, 2)


def test_a_request_may_shorten_its_timeout(story: Story) -> None:
    held = story.hold("override")
    sent = story.queue_up("override", [{}, {"timeout": 2 * HOUR_US}])
    assert refusal(story.send("override", 7, timeout=1)) == ("503", "Request timeout expired")
    assert story.let_go("override", [held, *sent]) == [HOLD, 0, 1]
    assert counts(story, "override") == (3, 1, 1)


def test_who_is_late_is_served_behind_the_others(story: Story) -> None:
    held = story.hold("late")
    sent = story.queue_up("late", [{"timeout": 1}, {"timeout": 1}, {}])
    assert story.let_go("late", [held, *sent]) == [HOLD, 2, 0, 1]
    assert counts(story, "late") == (4, 0, 0)


def test_a_level_has_a_bound_of_its_own(story: Story) -> None:
    held = story.hold("bounded")
    sent = story.queue_up("bounded", [{"priority": 3}, {}, {}])
    assert refusal(story.send("bounded", 7, priority=3)) == ("503", "[request id: 7] Exceeds maximum queue size")
    assert story.let_go("bounded", [held, *sent]) == [HOLD, 1, 2, 0]
    assert counts(story, "bounded") == (4, 1, 1)


def test_responses_wait_for_those_before_them(story: Story) -> None:
    held = story.hold("ordered")
    sent = [story.send("ordered", number) for number in range(3)]
    story.wait_for_told("ordered", 4)
    wait_until(lambda: counts(story, "ordered")[0] >= 3)
    assert not any(each.done() for each in sent)
    told = story.let_go("ordered", [held, *sent])
    assert (told[0], sorted(told[1:])) == (HOLD, [0, 1, 2])


def test_without_dynamic_batching_wishes_do_nothing(story: Story) -> None:
    held = story.hold("plain")
    sent = story.queue_up("plain", [{"timeout": 1, "priority": 2}, {"priority": 1}])
    assert story.let_go("plain", [held, *sent]) == [HOLD, 0, 1]


def test_fast_requests_are_not_put_behind_one_that_stands_still(story: Story) -> None:
    """Its instance worked ahead while executions were fast; the first that is slow tells that they may not be."""

    def hold_when_fast(count: int) -> "Future[int]":
        for number in range(60):  # as many as prove executions fast, on a machine that is not too busy for it
            assert story.ask("pair", number) == number
        held = story.send("pair", HOLD)
        story.wait_for_told("pair", count)
        return held

    story.let_go("pair", [hold_when_fast(61)])
    held = hold_when_fast(122)
    sent = [story.send("pair", number) for number in range(12)]
    assert [each.result(DEADLINE_S) for each in sent] == list(range(12))
    assert not held.done()
    story.let_go("pair", [held])
