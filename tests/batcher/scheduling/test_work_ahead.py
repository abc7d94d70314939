"""Work ahead: fast requests are given to a busy instance, unless what it runs is, or may be, a slow one."""

import heapq
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.batcher.scheduling.default import DefaultScheduler
from shoal.batcher.scheduling.instances import Instances
from shoal.batcher.scheduling.queue import QueuedRequest

MS, US = 1_000_000, 1000
FAST_US, TINY_US = 100, 20

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take"] * 6 + ["complete"] * 4 + ["clock", "add", "remove"]),
        st.integers(0, 3),
        st.sampled_from([0, 0, 0, 1 * US, 400 * US, MS, MS + 1, 100 * MS]),
        st.sampled_from([TINY_US * US] * 6 + [FAST_US * US, 2 * MS, 300 * MS]),
    ),
    max_size=80,
)


def practised(num_instances: int, compute_ns: int) -> Instances:
    instances = Instances()
    for instance in range(num_instances):
        instances.add(instance)
    for _ in range(40):
        instances.complete(instances.take(), 0, compute_ns)
    return instances


@settings(max_examples=300)
@given(num_instances=st.integers(1, 4), steps=STEPS)
def test_nothing_is_put_behind_a_slow_execution(num_instances: int, steps: list[tuple[str, int, int, int]]) -> None:
    instances = practised(num_instances, TINY_US * US)
    now_ns = calm_until_ns = 0
    begun_ns: dict[int, deque[int]] = {instance: deque() for instance in range(num_instances)}
    for name, number, step_ns, compute_ns in steps:
        now_ns += step_ns if name == "clock" else 0
        if name == "add" and number not in begun_ns:
            instances.add(number)
            begun_ns[number] = deque()
        elif name == "remove":
            instances.remove(number)
            begun_ns.pop(number, None)
        elif name == "complete" and begun_ns.get(number):
            instances.complete(number, now_ns, compute_ns)
            begun_ns[number].popleft()
            if begun_ns[number]:
                begun_ns[number][0] = now_ns
            if compute_ns > MS:
                calm_until_ns = max(calm_until_ns, now_ns + min(10 * compute_ns, 10_000 * MS))
        elif name == "take":
            taken = instances.take_or_work_ahead(now_ns)
            idle = [instance for instance, executions in begun_ns.items() if not executions]
            if taken is None:
                assert not idle
                continue
            if executions := begun_ns[taken]:
                assert len(executions) < 8
                assert len(begun_ns) == 1 or (now_ns >= calm_until_ns and now_ns - executions[0] <= MS)
            executions.append(now_ns)
        assert len(instances) == len(begun_ns)
        assert sorted(instances.idle) == sorted(each for each, executions in begun_ns.items() if not executions)


@pytest.mark.parametrize("compute_us", [TINY_US, FAST_US])
def test_nothing_more_goes_to_an_instance_that_is_at_one_execution_for_a_millisecond(compute_us: int) -> None:
    instances = practised(2, compute_us * US)
    given_at_once = [instances.take_or_work_ahead(0) for _ in range(3)]
    assert given_at_once == ([0, 0, 0] if compute_us == TINY_US else [0, 1, 0])
    instances.complete(0, MS // 2, compute_us * US)  # the next one of it begins
    later = [instances.take_or_work_ahead(MS + 1) for _ in range(3)]
    assert later == [0, 0, 0]
    at_last = [instances.take_or_work_ahead(2 * MS) for _ in range(3)]
    assert at_last == ([1, 1, 1] if compute_us == TINY_US else [None] * 3)


def test_after_a_slow_execution_several_instances_do_not_work_ahead_for_ten_times_as_long() -> None:
    instances = practised(2, TINY_US * US)
    assert instances.take() == 0
    instances.complete(0, 0, 3 * MS)
    for _ in range(81):
        instances.complete(instances.take(), 0, TINY_US * US)
    assert [instances.take_or_work_ahead(30 * MS - 1) for _ in range(3)] == [0, 1, None]
    instances.complete(0, 30 * MS - 1, TINY_US * US)
    assert [instances.take_or_work_ahead(30 * MS) for _ in range(3)] == [1, 1, 1]


def test_an_only_instance_works_ahead_whatever_it_runs() -> None:
    instances = practised(1, TINY_US * US)
    assert instances.take_or_work_ahead(0) == 0
    assert [instances.take_or_work_ahead(300 * MS) for _ in range(8)] == [0] * 7 + [None]


# --- a simulated model with one client whose requests are slow ---


class ClosedLoop:
    """Clients that ask again a while after they were answered, and instances that execute what they have in its order.

    The first client's requests take `slow_ns`, the others' `fast_ns`; to hand something over takes HAND_OVER_NS.
    """

    HAND_OVER_NS = 20 * US

    def __init__(self, num_instances: int, num_clients: int, pause_ns: int, fast_ns: int, slow_ns: int) -> None:
        self.scheduler = DefaultScheduler(1000)
        self.rings: dict[int, deque[tuple[int, int]]] = {instance: deque() for instance in range(num_instances)}
        for instance in self.rings:
            self.scheduler.add_instance(instance)
        self.pause_ns, self.fast_ns, self.slow_ns = pause_ns, fast_ns, slow_ns
        self.num_requests = 0
        self.clients: dict[int, int] = {}
        #: When, in which order, who asks (None: it ends), at which instance, and how long it took.
        self.events: list[tuple[int, int, int | None, int, int]] = []
        for client in range(num_clients):  # one after the other; the slow one when the model is known to be fast
            self.put(client * 7 * US if client else 50 * MS, client)
        self.latencies_ns: list[int] = []
        self.num_ahead = 0

    def put(self, when_ns: int, client: int | None, instance: int = 0, took_ns: int = 0) -> None:
        self.num_requests += 1
        heapq.heappush(self.events, (when_ns, self.num_requests, client, instance, took_ns))

    def run(self, end_ns: int) -> None:
        while self.events[0][0] < end_ns:
            now_ns, number, client, instance, took_ns = heapq.heappop(self.events)
            if client is not None:
                self.clients[number] = client
                self.scheduler.add(QueuedRequest(number, 1, 0, now_ns), now_ns)
            else:
                self.end(instance, took_ns, now_ns)
            while (batch := self.scheduler.take(now_ns)) is not None:
                ring = self.rings[batch.instance]
                ring.append((batch.requests[0].key, batch.requests[0].arrival_ns))
                if len(ring) == 1:
                    self.begin(batch.instance, now_ns + self.HAND_OVER_NS)
                else:
                    self.num_ahead += 1
        # What has not been answered yet has waited until now.
        for ring in self.rings.values():
            self.latencies_ns += [end_ns - arrival_ns for key, arrival_ns in ring if self.clients[key]]

    def begin(self, instance: int, now_ns: int) -> None:
        key, _ = self.rings[instance][0]
        took_ns = self.fast_ns if self.clients[key] else self.slow_ns
        self.put(now_ns + took_ns, None, instance, took_ns)

    def end(self, instance: int, took_ns: int, now_ns: int) -> None:
        key, arrival_ns = self.rings[instance].popleft()
        client = self.clients.pop(key)
        self.scheduler.complete(instance, now_ns, took_ns)
        if client:
            self.latencies_ns.append(now_ns - arrival_ns)
        self.put(now_ns + self.pause_ns, client)
        if self.rings[instance]:
            self.begin(instance, now_ns)


@pytest.mark.parametrize(
    ("fast_us", "num_clients", "pause_us"), [(TINY_US, 13, 150), (FAST_US, 13, 150), (TINY_US, 25, 20_000)]
)
def test_one_client_with_slow_requests_leaves_the_others_fast(fast_us: int, num_clients: int, pause_us: int) -> None:
    loop = ClosedLoop(4, num_clients, pause_us * US, fast_us * US, 300 * MS)
    loop.run(2000 * MS)
    latencies_ns = sorted(loop.latencies_ns)
    assert pause_us > 1000 or loop.num_ahead > 1000, "fast ones work ahead"
    assert latencies_ns[len(latencies_ns) * 99 // 100] < 2 * MS
    # Behind the first slow one there may be some: nothing told of it.
    assert sum(each > 10 * MS for each in latencies_ns) <= 7
