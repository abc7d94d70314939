"""The dynamic batcher, by example: what Triton's documentation and its users' tests rely on."""

import pytest

from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.errors import UnavailableError
from tests.batcher.scheduling.bench import D_US, Bench, D, busy


class TestWithoutDelay:
    def test_an_idle_server_runs_the_first_request_alone(self) -> None:
        bench = Bench()
        bench.add(1)
        assert bench.take() == [[0]]
        assert bench.deadline is None

    def test_requests_merge_only_because_instances_are_busy(self) -> None:
        bench = busy()
        assert bench.trickle(1, 2, 1) == []
        assert bench.deadline is None
        assert bench.complete() == [[1, 2, 3]]

    def test_what_arrived_together_runs_together(self) -> None:
        bench = Bench(num_instances=2)
        bench.add(1, 1, 1)
        assert bench.take() == [[0, 1, 2]]

    def test_no_batch_exceeds_the_maximum(self) -> None:
        bench = Bench(num_instances=3)
        bench.add(4, 4, 4, 5)
        assert bench.take() == [[0, 1], [2], [3]]

    def test_a_full_payload_is_closed_and_the_next_one_filled(self) -> None:
        bench = busy()
        bench.trickle(4, 4, 1)
        assert bench.complete() == [[1, 2]]
        bench.trickle(1)
        assert bench.complete() == [[3, 4]]


class TestPreferredBatchSize:
    def test_preferred_sizes_are_cut_points(self) -> None:
        bench = Bench(preferred=(4, 8), num_instances=2)
        bench.add(1, 1, 1, 1, 1, 1)
        assert bench.take() == [[0, 1, 2, 3], [4, 5]]

    def test_the_largest_preferred_size_that_is_there_wins(self) -> None:
        bench = Bench(preferred=(4, 8), num_instances=2)
        bench.add(*[1] * 9)
        assert bench.take() == [[0, 1, 2, 3, 4, 5, 6, 7], [8]]

    def test_an_open_payload_is_cut_there_too(self) -> None:
        bench = busy(preferred=(4, 8))
        bench.trickle(1, 1, 1, 1, 1, 1)
        assert bench.complete() == [[1, 2, 3, 4]]
        assert bench.complete() == [[5, 6]]

    def test_more_than_the_largest_preferred_size_runs_alone_at_once(self) -> None:
        bench = Bench(preferred=(2, 4), delay_us=D_US, num_instances=2)
        bench.add(6)
        assert bench.take() == [[0]]
        bench.add(6, 1)
        assert bench.take() == [[1]]
        assert bench.deadline == D

    def test_the_batch_before_a_large_request_goes_at_once(self) -> None:
        bench = Bench(preferred=(4,), delay_us=D_US, num_instances=2)
        bench.add(1, 1, 6)
        assert bench.take() == [[0, 1], [2]]

    def test_a_payload_that_waits_may_outgrow_the_preferred_sizes(self) -> None:
        # With a delay a preferred size does not saturate: while no instance comes, the payload grows up to MAX.
        bench = busy(preferred=(4,), delay_us=D_US)
        bench.trickle(1, 1, 1, 1, 1, at=D)
        assert bench.complete(at=D) == [[1, 2, 3, 4, 5]]

    def test_a_model_without_batching_runs_each_request_alone(self) -> None:
        bench = Bench(max_batch_size=0, delay_us=D_US, num_instances=3)
        bench.add(1, 1, 1)
        assert bench.take() == [[0], [1], [2]]


class TestDelay:
    def test_waits_for_the_delay_and_not_longer(self) -> None:
        bench = Bench(delay_us=D_US)
        bench.add(1, 1, at=1000)
        assert bench.take(at=1000) == []
        assert bench.deadline == 101_000
        assert bench.take(at=100_999) == []
        assert bench.take(at=101_000) == [[0, 1]]
        assert bench.deadline is None

    def test_counts_from_the_oldest_request(self) -> None:
        bench = Bench(delay_us=D_US)
        bench.trickle(1, at=0)
        bench.trickle(1, at=60_000)
        bench.trickle(1, at=90_000)
        assert bench.deadline == 100_000
        assert bench.take(at=100_000) == [[0, 1, 2]]

    def test_counts_anew_when_the_oldest_is_cancelled(self) -> None:
        bench = Bench(delay_us=D_US)
        bench.trickle(1, at=0)
        bench.trickle(1, at=60_000)
        assert bench.scheduler.cancel(0)
        assert bench.deadline == 160_000
        assert bench.take(at=100_000) == []
        assert bench.take(at=160_000) == [[1]]

    def test_a_preferred_size_ends_the_wait(self) -> None:
        bench = Bench(preferred=(4, 8), delay_us=D_US)
        assert bench.trickle(1, 1, 1) == []
        assert bench.trickle(1) == [[0, 1, 2, 3]]

    def test_the_largest_preferred_size_not_the_maximum_ends_the_wait(self) -> None:
        bench = Bench(preferred=(3,), delay_us=D_US)
        assert bench.trickle(2) == []
        assert bench.trickle(3) == [[0]]
        assert bench.complete() == [[1]]

    def test_when_the_delay_is_exceeded_preferred_sizes_no_longer_cut(self) -> None:
        bench = Bench(preferred=(4, 8), delay_us=D_US)
        bench.add(*[1] * 6)
        assert bench.take(at=D) == [[0, 1, 2, 3, 4, 5]]

    def test_an_over_age_payload_that_waits_is_joined_without_further_delay(self) -> None:
        bench = busy(delay_us=D_US)
        bench.trickle(1, at=D)
        assert bench.deadline == 2 * D
        assert bench.take(at=2 * D) == []
        bench.trickle(1, at=2 * D)
        assert bench.deadline is None
        assert bench.complete(at=2 * D) == [[1, 2]]

    def test_a_payload_of_preferred_size_is_not_topped_up_with_young_requests(self) -> None:
        bench = busy(preferred=(4, 8), delay_us=D_US)
        bench.trickle(1, 1, 1, 1, 1, at=D)
        assert bench.deadline == 2 * D
        assert bench.complete(at=D) == [[1, 2, 3, 4]]
        assert bench.complete(at=2 * D - 1) == []
        assert bench.take(at=2 * D) == [[5]]

    def test_a_sleep_next_to_a_payload_ends_with_the_payload(self) -> None:
        # Asleep until 6 more rows make the payload of 2 one of 8; once it is gone, 2 rows are enough.
        bench = busy(preferred=(2, 8), delay_us=D_US)
        bench.trickle(1, 1, 1, at=D)
        assert bench.complete(at=D) == [[1, 2]]
        assert bench.complete(at=D) == []
        assert bench.trickle(1, at=D) == [[3, 4]]

    def test_a_sleep_ends_when_one_that_waits_is_cancelled(self) -> None:
        # Asleep until the 2 rows have become 4; once they are gone, 1 row is enough.
        bench = Bench(preferred=(1, 4), delay_us=D_US)
        assert bench.trickle(2) == []
        assert bench.scheduler.cancel(0)
        assert bench.trickle(1) == [[1]]

    def test_a_payload_that_lost_its_preferred_size_is_topped_up_at_once(self) -> None:
        bench = busy(preferred=(4, 8), delay_us=D_US)
        bench.trickle(1, 1, 1, 1, 1, at=D)
        assert bench.scheduler.cancel(2)
        assert bench.complete(at=D) == [[1, 3, 4, 5]]

    def test_a_payload_of_preferred_size_grows_to_the_next_one(self) -> None:
        bench = busy(preferred=(4, 8), delay_us=D_US)
        bench.trickle(*[1] * 8, at=D)
        assert bench.complete(at=D) == [[1, 2, 3, 4, 5, 6, 7, 8]]


class TestPickUp:
    """Two payloads wait, of 5 rows and 1: the delay and the shapes decide whether an instance merges them."""

    def waiting(self, shape_key: int = 0) -> Bench:
        bench = busy(preferred=(4,), delay_us=D_US)
        bench.trickle(1, 1, 1, 1, 1, at=D)
        bench.add(1, at=D, shape_key=shape_key)
        return bench

    def test_merges_what_has_waited_longer_than_the_delay(self) -> None:
        bench = self.waiting()
        assert bench.take(at=2 * D) == []
        assert bench.complete(at=2 * D + 1) == [[1, 2, 3, 4, 5, 6]]

    def test_leaves_what_has_not(self) -> None:
        bench = self.waiting()
        assert bench.complete(at=2 * D) == [[1, 2, 3, 4, 5]]
        assert bench.complete(at=2 * D) == [[6]]

    def test_leaves_what_differs_in_shape(self) -> None:
        bench = self.waiting(shape_key=1)
        assert bench.take(at=2 * D) == []
        assert bench.complete(at=2 * D + 1) == [[1, 2, 3, 4, 5]]

    def test_leaves_what_another_shape_came_after(self) -> None:
        bench = Bench(preferred=(4,), delay_us=D_US, num_instances=2)
        assert bench.trickle(8, 8) == [[0], [1]]
        bench.trickle(1, 1, 1, 1, 1, 1)
        bench.add(1, shape_key=6)
        assert bench.take() == []
        assert bench.complete(at=D + 1) == [[2, 3, 4, 5, 6]]
        assert bench.complete(at=D + 1) == [[7]]

    def test_adds_nothing_to_what_another_shape_came_after(self) -> None:
        bench = Bench(delay_us=D_US, num_instances=2)
        assert bench.trickle(8, 8) == [[0], [1]]
        for shape_key in (0, 6, 0):
            bench.add(1, shape_key=shape_key)
        assert bench.take() == []
        assert bench.scheduler.cancel(3)
        assert bench.complete(at=D + 1) == [[2]]
        assert bench.complete(at=D + 1) == [[4]]

    def test_leaves_what_would_exceed_the_maximum(self) -> None:
        bench = busy(preferred=(4,), delay_us=D_US)
        bench.trickle(5, 3, 1, at=D)
        assert bench.complete(at=2 * D + 1) == [[1]]
        assert bench.complete(at=2 * D + 1) == [[2, 3]]

    def test_without_a_delay_nothing_is_merged(self) -> None:
        bench = busy(preferred=(4,))
        bench.trickle(1, 1, 1, 1, 1)
        assert bench.complete(at=10**9) == [[1, 2, 3, 4]]


class TestShapes:
    def test_another_shape_ends_the_batch_and_nothing_is_rearranged(self) -> None:
        bench = Bench(num_instances=3)
        for shape_key in (5, 5, 6, 5):
            bench.add(1, shape_key=shape_key)
        assert bench.take() == [[0, 1], [2], [3]]

    def test_another_shape_ends_the_wait(self) -> None:
        bench = Bench(delay_us=D_US, num_instances=2)
        bench.trickle(1, 1)
        bench.add(1, shape_key=6)
        assert bench.take() == [[0, 1]]
        assert bench.take(at=D) == [[2]]

    def test_another_shape_does_not_join_the_open_payload(self) -> None:
        bench = busy()
        bench.trickle(1)
        bench.add(1, shape_key=6)
        assert bench.take() == []
        bench.add(1)
        assert bench.complete() == [[1]]
        assert bench.complete() == [[2]]
        assert bench.complete() == [[3]]

    def test_a_preferred_size_still_cuts_before_another_shape(self) -> None:
        bench = Bench(preferred=(2,), max_batch_size=4, num_instances=3)
        bench.add(1, 1, 1)
        bench.add(1, shape_key=6)
        assert bench.take() == [[0, 1], [2], [3]]


class TestSlots:
    def test_two_payloads_are_formed_ahead_for_each_instance(self) -> None:
        bench = busy(delay_us=D_US)
        bench.add(8, 8, at=D)
        assert bench.take(at=D) == []
        bench.add(1, at=D)
        assert bench.take(at=D) == []
        assert bench.deadline is None  # no slot, so time changes nothing
        assert bench.complete(at=D) == [[1]]
        assert bench.deadline == 2 * D

    @pytest.mark.parametrize(
        "batching",
        [
            {"policy": {"max_queue_size": 10}},
            {"policy": {"default_timeout_microseconds": 10**9}},
            {"policy": {"allow_timeout_override": True}},
            {"priority_levels": 2, "default_priority_level": 1},
        ],
    )
    def test_with_a_queue_policy_nothing_is_formed_ahead(self, batching: dict[str, object]) -> None:
        bench = busy(preferred=(3,), delay_us=D_US, **batching)
        bench.trickle(2, 2, at=D)
        assert bench.complete(at=D) == [[1]]

    def test_what_is_formed_ahead_is_cut_otherwise(self) -> None:
        # The counterpart: a payload of 2 waits past its delay, and the next 2 rows join it beyond the preferred 3.
        bench = busy(preferred=(3,), delay_us=D_US)
        bench.trickle(2, at=D)
        bench.trickle(2, at=2 * D)
        assert bench.complete(at=2 * D) == [[1, 2]]

    def test_without_instances_everything_waits(self) -> None:
        bench = Bench(delay_us=D_US, num_instances=0)
        bench.add(8, 1)
        assert bench.take(at=10 * D) == []
        assert bench.deadline is None
        bench.scheduler.add_instance(3)
        assert bench.take(at=10 * D) == [[0]]


class TestBounds:
    def test_max_queue_size_counts_who_waits(self) -> None:
        bench = busy(policy={"max_queue_size": 2})
        bench.trickle(1, 1)
        with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
            bench.add(1)
        assert bench.scheduler.pending == 2
        assert bench.complete() == [[1, 2]]
        bench.add(1)

    def test_the_servers_bound_counts_payloads_too(self) -> None:
        bench = busy(max_total_queue=3)
        bench.trickle(1, 1, 1)
        with pytest.raises(UnavailableError, match=r"^Exceeds maximum queue size$"):
            bench.add(1)
        assert bench.scheduler.pending == 3
        assert bench.complete() == [[1, 2, 3]]


class TestLeaving:
    def test_a_request_in_a_payload_can_be_cancelled_a_running_one_not(self) -> None:
        bench = busy()
        bench.trickle(1, 2, 1)
        assert not bench.scheduler.cancel(0)
        assert bench.scheduler.cancel(2)
        assert not bench.scheduler.cancel(2)
        assert bench.scheduler.pending == 2
        assert bench.complete() == [[1, 3]]

    def test_the_rows_of_a_cancelled_request_are_free_again(self) -> None:
        bench = busy()
        bench.trickle(4, 3)
        assert bench.scheduler.cancel(1)
        bench.trickle(5)
        assert bench.complete() == [[2, 3]]

    def test_a_payload_whose_last_request_was_cancelled_is_gone(self) -> None:
        bench = busy()
        bench.trickle(1)
        assert bench.scheduler.cancel(1)
        assert bench.complete() == []
        bench.add(1, shape_key=6)
        assert bench.take() == [[2]]

    def test_a_removed_instance_gets_nothing_more(self) -> None:
        bench = Bench(num_instances=2)
        bench.add(8, 8, 8)
        assert bench.take() == [[0], [1]]
        bench.scheduler.remove_instance(0)
        assert bench.complete(instance=0) == []
        assert bench.complete(instance=1) == [[2]]

    def test_drain_returns_payloads_and_queue_in_order(self) -> None:
        bench = busy()
        bench.trickle(8, 8, 8)
        assert [request.key for request in bench.scheduler.drain()] == [1, 2, 3]
        assert bench.scheduler.pending == 0
        assert bench.complete() == []
        assert bench.trickle(1) == [[4]]

    def test_nothing_expires(self) -> None:
        bench = busy()
        bench.trickle(1)
        assert bench.scheduler.expire(10**18) == []
        assert bench.complete() == [[1]]


def test_a_request_that_is_accepted_again_is_the_oldest_that_waits() -> None:
    bench = busy(delay_us=D_US)
    bench.add(1, at=2 * D)
    assert bench.scheduler.oldest_ns() == 2 * D
    bench.scheduler.add_first(QueuedRequest(9, 1, 0, D))
    assert (bench.scheduler.oldest_ns(), bench.scheduler.pending) == (D, 2)
    assert bench.complete(at=2 * D) == [[9]]
    assert bench.scheduler.oldest_ns() == 2 * D
