"""batcher/scheduling/shadow_queue.py: generated schedules; a mirrored request never runs beside one that waits."""

from random import Random

import pytest

from shoal.batcher.scheduling.shadow_queue import MAX_WAITING, PATIENCE_NS, Load, ShadowQueue

IDLE = Load(0, 1)


def _leave(left: set[int], key: int) -> None:
    assert key not in left, "each leaves once"
    left.add(key)


def run(seed: int) -> tuple[int, int, int]:
    """A schedule of arrivals, loads, ends and time; returns how many requests ran, expired and were refused."""
    random = Random(seed)
    max_nbytes = random.choice((100, 1000))
    queue = ShadowQueue(1.0, max_nbytes)
    now_ns, added, running, left = 0, dict[int, tuple[int, int]](), set[int](), set[int]()
    num_taken = num_expired = num_refused = 0
    for key in range(200):
        now_ns += random.choice((0, 1000, PATIENCE_NS // 10, PATIENCE_NS))
        for expired in queue.expire(now_ns):
            assert added[expired][1] + PATIENCE_NS <= now_ns
            _leave(left, expired)
            num_expired += 1
        step = random.randrange(6)
        if step < 3:
            nbytes = random.choice((1, 10, 90))
            used = sum(added[each][0] for each in added.keys() - left)
            waiting = len(added) - len(left) - len(running)
            is_added = queue.add(key, nbytes, now_ns)
            assert is_added == (waiting < MAX_WAITING and used + nbytes <= max_nbytes)
            if is_added:
                added[key] = nbytes, now_ns
            num_refused += not is_added
        elif step == 3 and running:
            done = running.pop()
            queue.end(done)
            _leave(left, done)
        elif step == 4:
            waits = [each for each in added if each not in left and each not in running]
            if waits and random.randrange(3) == 0:
                gone = random.choice(waits)
                assert queue.remove(gone)
                assert not queue.remove(gone)
                _leave(left, gone)
        else:
            primary = Load(random.choice((0, 0, 1)), random.randrange(3))
            shadow = Load(random.choice((0, 0, 1)), random.randrange(2))
            taken = queue.take(primary, shadow)
            waits = [each for each in added if each not in left and each not in running]
            may = not (primary.num_pending or shadow.num_pending) and shadow.num_idle
            if may and primary.num_idle > len(running) and waits:
                assert taken is not None
                assert taken == waits[0], "in the order of their arrival"
                running.add(taken)
                num_taken += 1
            else:
                assert taken is None
        used = sum(added[each][0] for each in added.keys() - left)
        assert queue.nbytes == used <= max_nbytes
        assert len(queue) == len(added) - len(left) <= MAX_WAITING + 2
        deadline_ns = queue.next_deadline_ns()
        waits = [each for each in added if each not in left and each not in running]
        assert deadline_ns == (added[waits[0]][1] + PATIENCE_NS if waits else None)
    return num_taken, num_expired, num_refused


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_every_request_leaves_once_and_none_beside_one_that_waits(first: int) -> None:
    taken, expired, refused = (
        sum(each) for each in zip(*[run(seed) for seed in range(first, first + 10)], strict=True)
    )
    assert min(taken, expired, refused) > 20


def test_the_share_is_kept() -> None:
    for share in (0.0, 0.1, 0.5, 1.0):
        queue = ShadowQueue(share, 1)
        chosen = [queue.chooses(7 << 40 | number) for number in range(10_000)]
        assert abs(sum(chosen) - 10_000 * share) <= 20
        longest = max(map(len, "".join("x" if each else " " for each in chosen).split()), default=0)
        assert longest <= {0.0: 0, 0.1: 1, 0.5: 2, 1.0: 10_000}[share]


def test_one_runs_for_each_idle_instance_of_the_primary() -> None:
    queue = ShadowQueue(1.0, 100)
    for key in range(3):
        queue.add(key, 1, 0)
    assert queue.take(Load(0, 2), Load(0, 2)) == 0
    assert queue.take(Load(0, 2), Load(0, 1)) == 1
    assert queue.take(Load(0, 2), IDLE) is None
    queue.end(0)
    assert queue.take(Load(0, 2), IDLE) == 2
