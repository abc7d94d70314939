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
    now_ns, added, running, left = 0, dict[int, tuple[int, int]](), dict[int, int](), set[int]()
    asked, batch_rows = dict[int, tuple[int, int]](), random.choice((0, 1, 4, 8))
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
            asked[key] = random.randint(1, 3), random.choice((0, 0, 0, 7))
            is_added = queue.add(key, nbytes, now_ns, *asked[key])
            assert is_added == (waiting < MAX_WAITING and used + nbytes <= max_nbytes)
            if is_added:
                added[key] = nbytes, now_ns
            num_refused += not is_added
        elif step == 3 and running:
            done = random.choice([*running])
            del running[done]
            queue.end(done)
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
            taken = queue.take(primary, shadow, batch_rows)
            waits = [each for each in added if each not in left and each not in running]
            may = not (primary.num_pending or shadow.num_pending) and shadow.num_idle
            if may and primary.num_idle > len(set(running.values())) and waits:
                assert taken == waits[: len(taken)], "in the order of their arrival"
                shapes, rows = {asked[each][1] for each in taken}, [asked[each][0] for each in taken]
                assert len(shapes) == 1
                assert len(taken) == 1 or sum(rows) <= batch_rows
                if rest := waits[len(taken) :]:
                    assert asked[rest[0]][1] not in shapes or sum(rows) + asked[rest[0]][0] > batch_rows
                running |= dict.fromkeys(taken, taken[0])
                num_taken += len(taken)
            else:
                assert taken == []
        used = sum(added[each][0] for each in added.keys() - left)
        assert queue.nbytes == used <= max_nbytes
        assert len(queue) == len(added) - len(left)
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


def test_one_batch_runs_for_each_idle_instance_of_the_primary() -> None:
    queue = ShadowQueue(1.0, 100)
    for key in range(5):
        queue.add(key, 1, 0)
    assert queue.take(Load(0, 2), Load(0, 2)) == [0]
    assert queue.take(Load(0, 2), Load(0, 1), 3) == [1, 2, 3]
    assert queue.take(Load(0, 2), IDLE) == []
    for key in (1, 2):
        queue.end(key)
    assert queue.take(Load(0, 2), IDLE) == [], "request 3 of that batch runs"
    queue.end(3)
    assert queue.take(Load(0, 2), IDLE) == [4]
