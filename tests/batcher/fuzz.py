"""A guest that writes anything into its segment, beside a client that must not notice.

    python -m tests.batcher.fuzz 1000000

Half of the records are random, half nearly right; tails, heads and records are overwritten at random. The batcher must
not raise, must answer the other client's every request with the right block, and must hold nothing in the end.
"""

import random
import sys
import time

from shoal.messages.from_batcher import ProcessDistrusted
from shoal.shm import layout
from shoal.shm.layout import B
from tests.batcher.star import CLIENT, HEADER, MODEL, WORKER, End, Star

GUEST = 41
#: Words that lie at the borders of what is checked.
BORDERS = (0, 1, 2, 4, 5, 63, 64, 65, 1 << 20, (1 << 32) - 1, 1 << 32, (1 << 40) - 1, 1 << 40, 1 << 63, (1 << 64) - 1)


class Fuzz:
    """One star for the whole run; the guest comes back after each end."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._star = Star()
        model = self._star.add_model(MODEL, {"name": "m", "max_batch_size": 0})
        model.max_rows = 4
        self._client = self._star.add_client(CLIENT)
        self._worker = self._star.add_worker(WORKER, model)
        self._guest = self._star.add_client(GUEST, is_guest=True)
        self._now_ns = time.monotonic_ns()
        # Changed by every round.
        self._number = 0
        self._guest_number = 0
        self._blocks = 0
        self._held: dict[int, int] = {}  # the client's: number → block
        self.num_distrusted = 0
        self.num_answered = 0

    def run(self, num_records: int) -> None:
        """Write so many records, a few at a time."""
        left = num_records
        while left > 0:
            count = self._random.randrange(1, 9)
            left -= count
            for _ in range(count):
                self._push(self._record())
            self._damage()
            self._guest.writer.publish()
            self._round()
        self._settle()

    def _record(self) -> tuple[int, ...]:
        choose = self._random
        if choose.random() < 0.5:
            return tuple(choose.choice((*BORDERS, choose.getrandbits(64), choose.getrandbits(16))) for _ in range(16))
        self._guest_number += 1
        words = [choose.choice((1, 1, 1, 2, 3, 9, 11)), self._guest_number, MODEL, layout.pack_ref(GUEST, 3, 1), HEADER,
                 1, 0, 0, 0, 0, 0, self._now_ns, 0, 0, 0, 0]  # fmt: skip
        if choose.random() < 0.3:
            words[choose.randrange(16)] = choose.choice(BORDERS)
        return tuple(words)

    def _push(self, record: tuple[int, ...]) -> None:
        if self._guest.writer.num_free > 0:
            self._guest.writer.push(record)

    def _damage(self) -> None:
        """Overwrite a word of the head page or of the ring, as only the guest itself can."""
        chance = self._random.random()
        words = self._guest.own.words
        if chance < 0.02:
            words[self._random.randrange(8, 64)] = self._random.choice(BORDERS)
        elif chance < 0.1:
            start = layout.RING_OFFSET // 8
            words[self._random.randrange(start, start + 64 * 16)] = self._random.choice(BORDERS)

    def _round(self) -> None:
        """The client asks, the worker answers, everybody is looked at."""
        self._number += 1
        self._client.send(1, self._number, MODEL, layout.pack_ref(CLIENT, 3, 1), HEADER, 1, 0, 0, 0, 0, 0, self._now_ns)
        self._step()
        expected: dict[int, int] = {}
        while items := [item for item in self._worker.received() if item[0] == 5]:
            for item in items:
                self._blocks += 1
                block = layout.pack_ref(WORKER, self._blocks % 1000, self._blocks // 1000)
                expected[item[B.KEY]] = block
                self._worker.send(7, item[B.KEY], item[B.BATCH], 0, block)
            self._step()
        replies = self._client.received()
        key = CLIENT << 40 | self._number
        assert [reply[:4] for reply in replies] == [(4, self._number, 0, expected[key])], replies
        self.num_answered += 1
        assert self._star.exchange.holders.is_held(expected[key])
        self._client.send(3, self._number)
        if self._random.random() < 0.9:
            self._guest.received()

    def _step(self) -> None:
        self._now_ns += 1000
        self._star.exchange.step(self._now_ns)
        for report in self._star.reports():
            assert report == ProcessDistrusted(GUEST)
            self.num_distrusted += 1
            self._guest = self._come_back()

    def _come_back(self) -> End:
        self._guest_number = 0
        self._star.drop_client(GUEST)
        return self._star.add_client(GUEST, is_guest=True)

    def _settle(self) -> None:
        """Without the guest nothing is open, and nothing is held."""
        self._star.exchange.remove_client(GUEST)
        for _ in range(3):
            for item in self._worker.received():
                if item[0] == 5:
                    self._worker.send(7, item[B.KEY], item[B.BATCH], 0, 0)
            self._step()
        assert self._star.exchange.num_open == 0
        assert len(self._star.exchange.holders) == 0


def main(num_records: int) -> None:
    """A long run."""
    start_s = time.monotonic()
    fuzz = Fuzz(seed=num_records)
    fuzz.run(num_records)
    print(  # noqa: T201 - its result
        f"{num_records} records in {time.monotonic() - start_s:.0f} s: the guest was ended {fuzz.num_distrusted} "
        f"times, {fuzz.num_answered} requests of another client were answered"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
