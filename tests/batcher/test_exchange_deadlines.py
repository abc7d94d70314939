"""Deadlines in the exchange: one time in a request's record, which its model, its worker and a successor heed."""

import pytest

from shoal.batcher.exchange import Exchange
from shoal.batcher.scheduling.admission import CAUTION
from shoal.batcher.scheduling.default import DefaultScheduler
from shoal.batcher.scheduling.patience import PART, USELESS
from shoal.reasons import Reason, unpack_times
from shoal.shm.layout import BATCH_ITEM, CANCEL, DONE, REQUEST, B, P, pack_ref
from tests.batcher.star import (
    CLIENT,
    HEADER,
    INPUT_BLOCK,
    MODEL,
    SINGLE,
    WALL_OFFSET_NS,
    WORKER,
    End,
    Star,
    ask,
    cell,
    one_of_each,
    replies,
)

MS = 1_000_000
BATCHING = {"name": "m", "max_batch_size": 1, "dynamic_batching": {}}


def ask_by(client: End, number: int, deadline_ns: int, start_ns: int = 100) -> None:
    client.send(REQUEST, number, MODEL, INPUT_BLOCK, HEADER, 1, 0, 0, 0, 0, 0, start_ns, 0, 0, 0, deadline_ns)


def execute(star: Star, worker: End, now_ns: int) -> tuple[int, ...]:
    """The worker has answered the one request that it had."""
    (item,) = worker.received()
    worker.send(DONE, item[B.KEY], item[B.BATCH], 0, pack_ref(worker.owner, 2, 1), HEADER, 600, 610, 620, 630)
    star.exchange.step(now_ns)
    return item


def practised() -> tuple[Star, End, End, int]:
    """A worker that has executed requests in 10 ms each, and has one since the time that comes along."""
    star, client, worker = one_of_each(SINGLE)
    ask_by(client, 1, 10_000 * MS)
    star.exchange.step(0)
    for number in range(1, 8):
        ask(client, number + 1)
        execute(star, worker, number * 10 * MS)
    client.received()
    return star, client, worker, 70 * MS


@pytest.mark.parametrize("config", [SINGLE, BATCHING])
def test_who_is_queued_leaves_at_its_deadline_and_who_runs_does_not(config: dict[str, object]) -> None:
    star, client, _ = one_of_each(config)
    for number, deadline_ns in ((1, 900), (2, 2000), (3, 1500), (4, 0)):
        ask_by(client, number, deadline_ns)
    star.exchange.step(now_ns=500)
    assert star.exchange.next_deadline_ns() == 1500
    star.exchange.step(now_ns=1499)
    assert replies(client) == []
    star.exchange.step(now_ns=1500)
    assert replies(client) == [(3, Reason.TIMED_OUT)]
    star.exchange.step(now_ns=2001)
    assert replies(client) == [(2, Reason.TIMED_OUT)]
    model = star.model(MODEL)
    assert (cell(model, "failed_rejected"), cell(model, "fail_count"), cell(model, "pending_count")) == (2, 2, 1)


def test_the_worker_hears_of_the_deadline() -> None:
    star, client, worker = one_of_each(SINGLE)
    ask_by(client, 1, 7000)
    star.exchange.step(now_ns=500)
    (item,) = worker.received()
    assert item[12] == 7000


def test_models_without_deadlines_do_not_pay_for_them() -> None:
    star, client, _ = one_of_each(SINGLE)
    ask(client, 1, 2)
    star.exchange.step(now_ns=500)
    assert type(star.model(MODEL).scheduler) is DefaultScheduler


def test_a_model_whose_policy_rejects_heeds_deadlines_from_its_first_request_on() -> None:
    star = Star()
    policy = {"default_timeout_microseconds": 1000}
    plain, delaying, rejecting = [
        star.add_model(number, BATCHING | {"dynamic_batching": {"default_queue_policy": each}})
        for number, each in enumerate(({}, policy | {"timeout_action": "DELAY"}, policy), 1)
    ]
    schedulers = [type(each.scheduler).__name__ for each in (plain, delaying, rejecting)]
    assert schedulers == ["DynamicBatchScheduler", "PolicyBatchScheduler", "DeadlineScheduler"]
    scheduler = rejecting.scheduler
    rejecting.heed_deadlines()
    assert rejecting.scheduler is scheduler


@pytest.mark.parametrize(("deadline_ns", "expected_ns"), [(0, 5100), (4000, 4000), (9000, 5100)])
def test_the_servers_own_deadline_counts_from_the_beginning_and_the_smaller_one_holds(
    deadline_ns: int, expected_ns: int
) -> None:
    star = Star()
    star.exchange = Exchange(WALL_OFFSET_NS, 1000, deadline_ns=5000)
    star.add_model(MODEL, SINGLE)
    client = star.add_client(CLIENT)
    ask_by(client, 1, deadline_ns, start_ns=100)
    star.exchange.step(now_ns=3000)
    assert star.exchange.next_deadline_ns() == expected_ns


def test_who_would_be_late_is_refused_at_once_with_the_estimate() -> None:
    star, client, _, now_ns = practised()
    ask(client, 21, 22, 23, 24)
    ask_by(client, 25, now_ns + 30 * MS)
    ask_by(client, 26, now_ns + 100 * MS)
    star.exchange.step(now_ns)
    (reply,) = client.received()
    assert (reply[P.NUMBER], reply[P.REASON]) == (25, Reason.TOO_LATE)
    needed_s, left_s = unpack_times(reply[P.DETAIL])
    assert needed_s == pytest.approx(0.05 * CAUTION + 0.01)
    assert left_s == pytest.approx(0.03)
    assert cell(star.model(MODEL), "failed_rejected") == 1


@pytest.mark.parametrize("is_limited", [False, True])
def test_requests_that_would_expire_in_the_queue_are_refused_at_once(is_limited: bool) -> None:
    star = Star(is_limited=is_limited)
    policy = {"default_timeout_microseconds": 30_000}
    model = star.add_model(MODEL, BATCHING | {"dynamic_batching": {"default_queue_policy": policy}})
    client, worker = star.add_client(CLIENT), star.add_worker(WORKER, model)
    ask(client, 1)
    star.exchange.step(now_ns=0)
    for number in range(1, 8):  # executions of 10 ms each; the eighth has begun
        ask(client, number + 1)
        execute(star, worker, number * 10 * MS)
    client.received()
    ask(client, *range(11, 21))
    star.exchange.step(now_ns=70 * MS)
    # Two wait for 20 and 30 ms, with CAUTION 25 and 37.5.
    assert replies(client) == [(number, Reason.TOO_LATE) for number in range(13, 21)]


def test_a_request_of_a_dead_batcher_keeps_its_deadline() -> None:
    star = Star()
    star.add_model(MODEL, SINGLE)
    client = star.add_client(CLIENT)
    ask_by(client, 1, 5000)
    star.exchange.step(now_ns=500)
    star.succeed()
    ask_by(client, 1, 5000)
    star.exchange.resume(now_ns=4000)
    assert star.exchange.next_deadline_ns() == 5000
    star.exchange.step(now_ns=5000)
    assert replies(client) == [(1, Reason.TIMED_OUT)]


def test_what_a_guest_says_of_its_deadline_is_about_itself() -> None:
    star = Star()
    star.add_model(MODEL, SINGLE)
    star.add_worker(WORKER, star.model(MODEL))
    guest = star.add_client(CLIENT, is_guest=True)
    for number, deadline_ns in ((1, 2**64 - 1), (2, 1), (3, 2**63)):
        ask_by(guest, number, deadline_ns)
    star.exchange.step(now_ns=500)
    assert replies(guest) == [(2, Reason.TIMED_OUT)]


def give_up(star: Star, client: End, worker: End, num_rounds: int, *, is_useless: bool) -> tuple[int, int]:
    """In each round of 400 ms a client hangs up whose request has waited for all of it, and an execution ends; its
    client hangs up in front of that only if the answer `is_useless`. Ends early once there is a limit. Returns
    the time in ns and the last number: two requests or more wait."""
    now_ns, last = 0, 4
    for number in range(1, 5):
        ask_by(client, number, 0, start_ns=now_ns)
    star.exchange.step(now_ns)
    given: list[tuple[int, ...]] = []
    for last in range(6, 6 + 2 * num_rounds, 2):
        ask_by(client, last - 1, 0, start_ns=now_ns)
        star.exchange.step(now_ns)
        now_ns += 400 * MS
        given += [each for each in worker.received() if each[0] == BATCH_ITEM]
        item = given.pop(0)
        client.send(CANCEL, last - 1)
        if is_useless:
            client.send(CANCEL, item[B.KEY] - star.exchange.clients[CLIENT].first_key)
        ask_by(client, last, 0, start_ns=now_ns)
        star.exchange.step(now_ns)
        times = now_ns - 400 * MS, now_ns - 400 * MS, now_ns, now_ns
        worker.send(DONE, item[B.KEY], item[B.BATCH], 0, pack_ref(worker.owner, 2, 1), HEADER, *times)
        star.exchange.step(now_ns)
        if star.model(MODEL).patience.limit_ns:
            break
    client.received()
    return now_ns, last


def test_requests_have_as_long_as_clients_have_waited_that_gave_up() -> None:
    star, client, worker = one_of_each(SINGLE)
    star.exchange.clients[CLIENT].is_front_end = True
    now_ns, last = give_up(star, client, worker, 2 * USELESS, is_useless=True)
    limit_ns = int(PART * 400 * MS)
    assert star.model(MODEL).patience.limit_ns == limit_ns
    ask_by(client, last + 1, 0, start_ns=now_ns)
    star.exchange.step(now_ns)
    star.exchange.step(now_ns + limit_ns)
    ended = [reason for number, reason in replies(client) if number == last + 1]
    assert ended == [Reason.TIMED_OUT]
    for number in range(1, last + 1):
        client.send(CANCEL, number)
        star.exchange.step(now_ns + limit_ns)
    ask_by(client, last + 2, 0, start_ns=now_ns + limit_ns)
    star.exchange.step(now_ns + limit_ns)
    assert star.model(MODEL).patience.limit_ns == 0


def test_clients_other_than_front_ends_say_nothing_about_patience() -> None:
    star, client, worker = one_of_each(SINGLE)
    give_up(star, client, worker, 2 * USELESS, is_useless=True)
    assert star.model(MODEL).patience.limit_ns == 0


def test_clients_that_hang_up_while_others_are_answered_set_no_limit() -> None:
    star, client, worker = one_of_each(SINGLE)
    star.exchange.clients[CLIENT].is_front_end = True
    give_up(star, client, worker, 4 * USELESS, is_useless=False)
    assert star.model(MODEL).patience.limit_ns == 0
