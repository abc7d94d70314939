"""Batching by goal, by example and by comparison. What holds for every scheduler is in test_scheduler.py."""

import pytest

from shoal.batcher.scheduling.batch_account import summary
from shoal.batcher.scheduling.goal import GoalBatchScheduler, GoalPolicyScheduler
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.scheduler import from_config
from tests.batcher.scheduling.goal_comparison import (
    SHAPES,
    Case,
    by_goal,
    closed_loop,
    compare,
    fixed,
    goodput,
    unbatched,
)  # fmt: skip
from tests.batcher.scheduling.simulation import CURVES, MS, Curve


class Server:
    """A scheduler by goal with one instance, and a model that takes as long as a curve says."""

    def __init__(self, curve: Curve, target_ms: int = 50, **batching: object) -> None:
        config = {
            "max_batch_size": 32,
            "dynamic_batching": batching,
            "parameters": {"latency_target_ms": {"string_value": str(target_ms)}},
        }
        scheduler = from_config(config, 1000)
        assert isinstance(scheduler, GoalBatchScheduler)
        self.scheduler = scheduler
        self.curve = curve
        self.now_ns = 0
        self.num_added = 0
        scheduler.add_instance(0)

    def add(self, *shape_keys: int) -> None:
        for shape_key in shape_keys:
            self.scheduler.add(QueuedRequest(self.num_added, 1, shape_key, self.now_ns), self.now_ns)
            self.num_added += 1

    def take(self) -> int:
        """The rows of the batch that begins now; 0: none does."""
        batch = self.scheduler.take(self.now_ns)
        return 0 if batch is None else batch.rows

    def finish(self, rows: int) -> None:
        self.now_ns += int(self.curve(rows) * MS)
        self.scheduler.complete(0, self.now_ns, int(self.curve(rows) * MS))

    def teach(self, *sizes: int) -> None:
        """Batches of these sizes, by requests that come together, the last of a burst after the batch has begun."""
        for size in sizes:
            self.now_ns += 1000 * MS
            self.scheduler.goal.curve.learn(size, int(self.curve(size) * MS))

    @property
    def last_reason(self) -> str:
        return str(summary(self.scheduler.account)["last_batches"][-1]["reason"])


ALL_SIZES = [size for size in range(1, 33) for _ in range(8)]


def test_an_idle_instance_takes_what_is_there_at_once() -> None:
    server = Server(CURVES["flat"])
    for _ in range(30):
        server.now_ns += 20 * MS
        server.add(0)
        assert server.take() == 1
        assert server.scheduler.next_deadline_ns() is None
        server.finish(1)
    assert server.last_reason == "instance_idle"


def test_what_waited_for_the_instance_goes_together() -> None:
    server = Server(CURVES["flat"])
    server.teach(*ALL_SIZES)
    server.add(0)
    assert server.take() == 1
    server.add(*[0] * 20)
    server.finish(1)
    assert server.take() == 20


@pytest.mark.parametrize(
    ("curve", "more", "shapes", "taken", "reason"),
    [
        ("linear", {}, [0] * 5, 1, "no_gain"),
        ("steps", {}, [0] * 13, 8, "no_gain"),
        ("affine", {"target_ms": 9}, [0] * 30, 16, "latency_target"),  # 11.5 ms, all together
        ("affine", {"target_ms": 1000}, [0] * 40, 32, "full"),
        ("flat", {}, [0, 0, 1, 0], 2, "shapes_differ"),
    ],
    ids=["batching that does not pay", "a step that costs too much", "it would be late", "a full batch", "shapes"],
)
def test_where_a_batch_ends(curve: str, more: dict[str, int], shapes: list[int], taken: int, reason: str) -> None:
    server = Server(CURVES[curve], **more)
    server.teach(*ALL_SIZES)
    server.add(*shapes)
    assert (server.take(), server.last_reason) == (taken, reason)


@pytest.mark.parametrize(("per_ms", "rows"), [(0.5, 16), (2.4, 25)])
def test_no_batch_is_in_time_at_the_cost_of_all_later_ones(per_ms: float, rows: int) -> None:
    """The oldest have 8 ms left, in which 16 rows are executed, 2 a ms; of 25 it would be 2.44."""
    server = Server(CURVES["affine"], target_ms=20)
    server.teach(*ALL_SIZES)
    goal, gap_ns = server.scheduler.goal, int(MS / per_ms)
    for _ in range(8000):
        server.now_ns += gap_ns
        goal.arrives(1, server.now_ns, finds_queued=True, finds_idle=False)
    waiting = [QueuedRequest(key, 1, 0, server.now_ns - 10 * MS + key * MS // 4) for key in range(32)]
    assert goal.rows_now(waiting, 32, 32, server.now_ns, is_full=True)[0] == rows


def test_the_last_of_a_burst_are_waited_for_and_not_longer() -> None:
    server = Server(CURVES["flat"])
    server.teach(*ALL_SIZES)
    begun = 0
    for _ in range(30):  # of which it learns that fifteen come within a millisecond of the first
        server.now_ns += 200 * MS
        server.add(0)
        begun = server.take()
        for _ in range(15):
            server.now_ns += MS // 20
            server.add(0)
            begun = begun or server.take()
        while not begun or server.scheduler.pending:
            server.now_ns += MS
            if begun:
                server.finish(begun)
            begun = server.take()
        server.finish(begun)
    assert begun >= 14
    server.now_ns += 200 * MS
    server.add(0)
    assert server.take() == 0
    deadline_ns = server.scheduler.next_deadline_ns()
    assert deadline_ns is not None
    assert server.now_ns < deadline_ns <= server.now_ns + 3 * MS
    server.now_ns = deadline_ns
    assert server.take() == 1
    assert server.last_reason == "expected_missing"


def test_the_last_row_of_a_full_batch_may_bring_too_little() -> None:
    server = Server(CURVES["flat"])
    server.teach(*ALL_SIZES)
    server.add(*[0] * 40)
    assert server.take() >= 31  # the last one brings less than can be measured


def test_a_request_whose_instance_died_runs_alone_and_first() -> None:
    server = Server(CURVES["flat"])
    server.teach(*ALL_SIZES)
    server.add(0, 0)
    server.scheduler.add_first(QueuedRequest(99, 1, 0, 0))
    assert server.take() == 1
    assert server.last_reason == "run_again"


def test_priorities_and_timeouts_hold() -> None:
    server = Server(CURVES["flat"], default_queue_policy={"default_timeout_microseconds": 1000})
    assert isinstance(server.scheduler, GoalPolicyScheduler)
    server.add(0)
    assert server.take() == 1
    server.add(0)
    assert server.scheduler.next_deadline_ns() == MS
    assert [request.key for request in server.scheduler.expire(MS)] == [1]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("curve", CURVES)
def test_it_is_near_the_best_fixed_setting(curve: str, shape: str) -> None:
    goal, best, setting = compare(Case(curve, 60, shape, 0.6), 0.4, 7)
    assert goal >= 0.9 * best, setting


@pytest.mark.parametrize(("curve", "target_ms", "phase_ms"), [("affine", 60, 300), ("flat", 20, 700)])
def test_it_is_so_on_a_machine_that_changes_its_speed(curve: str, target_ms: int, phase_ms: int) -> None:
    def slowness(now_ns: int) -> float:
        return 1.6 if now_ns // (phase_ms * MS) % 2 else 1.0

    case = Case(curve, target_ms, "steady", 0.6)
    goal, whole = [goodput(case, each, 2.0, 1, slowness) for each in (by_goal(target_ms), fixed(32, 0))]
    assert goal >= 0.9 * whole


@pytest.mark.parametrize(
    "curve", [lambda _rows: 1.0, lambda rows: 0.8 + 0.2 * rows, lambda rows: rows], ids=["flat", "affine", "linear"]
)
def test_a_fast_model_with_ten_clients_loses_nothing(curve: Curve) -> None:
    answered = [closed_loop(curve, scheduler, 10, 0.1, 1.0) for scheduler in (by_goal(50), unbatched())]
    assert answered[0] >= 0.98 * answered[1]
