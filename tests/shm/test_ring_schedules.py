"""A ring that begins small under generated schedules: both ends act between each other's loads and stores of shared
words, either end dies at any of them and has a successor, memory for the full ring comes and goes, and a reader reads
without having acknowledged.

The model is the list of records by position: what lies below the tail was published, and a reader gets exactly that,
from its head on.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from shoal.shm.layout import CLIENT, LINK, Geometry, LayoutError
from shoal.shm.ring import RingFullError, RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView

MakePair = Callable[[int, int, Geometry], tuple[Segment, SegmentView]]
TAIL, HEAD, WIDENED = 8, 16, 64
SMALL, FULL = 4, 11
NUM_SCHEDULES, NUM_STEPS = 300, 80  # 0.7 s


class DiedError(Exception):
    """The end that acts was killed."""


class Shared:
    """Words of a segment, as one process sees them: `happens` is called before each load and after each store."""

    def __init__(self, words: memoryview, happens: Callable[[], None]) -> None:
        self._words = words
        self._happens = happens

    def __getitem__(self, index: int) -> int:
        self._happens()
        return self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._words[index] = value
        self._happens()


class Schedule:
    """One ring, its two ends, and what has become of each record."""

    def __init__(self, make: MakePair, seed: int) -> None:
        self.chance = random.Random(seed)
        self.own, self.own_view = make(CLIENT, 5, Geometry(FULL, 0, SMALL))
        self.peer, self.peer_view = make(LINK, 1, Geometry(0, 0))
        self.tail, self.head = self.own.words, self.peer.words
        start = self.chance.choice([0, 3, 2**40 + 1])
        self.tail[TAIL] = self.head[HEAD] = start
        for mapping, is_writer in ((self.own, 1), (self.peer_view, 1), (self.peer, 0), (self.own_view, 0)):
            happens = self.during_write if is_writer else self.during_read
            mapping.words = cast("memoryview", Shared(mapping.words, happens))
        self.own.make_ring_present = lambda: self.has_memory  # type: ignore[method-assign]
        # Changed by the steps.
        self.has_memory = True
        self.acting = ""  # the end whose step is under way; a step within a step is done at one go
        self.records: dict[int, int] = {}  # by position, those of dead writers replaced by their successors'
        self.seen: Counter[str] = Counter()
        self.serial = 0
        self.writer, self.reader = RingWriter(self.own, self.peer_view), RingReader(self.peer, self.own_view)
        self.read_to = start

    def during_write(self) -> None:
        self._between("write", self.read)

    def during_read(self) -> None:
        self._between("read", self.write)

    def _between(self, acting: str, other: Callable[[], None]) -> None:
        if self.acting != acting:
            return
        dice = self.chance.random()
        if dice < 0.04:
            raise DiedError
        if dice < 0.3:
            self.acting = "within"
            other()
            self.acting = acting

    def run(self) -> None:
        for _ in range(NUM_STEPS):
            self.acting, step = self.chance.choice([("write", self.write), ("read", self.read)])
            acting = self.acting
            try:
                step()
            except DiedError:
                self.acting = ""
                self.seen[f"died in {acting}"] += 1
                if acting == "write":
                    self.succeed_writer()
                else:
                    self.succeed_reader()
        self.acting = ""
        self.writer.publish()
        self.drain()
        self.reader.acknowledge()  # what was read before
        assert self.head[HEAD] == self.tail[TAIL] == self.writer.position

    def write(self) -> None:
        dice = self.chance.random()
        if dice < 0.05:
            self.has_memory = not self.has_memory
        elif dice < 0.1:
            self.succeed_writer()
        elif dice < 0.15:
            self.seen["widened before it must be"] += self.writer.widen()
        elif dice < 0.7:
            for _ in range(self.chance.randint(1, SMALL)):
                self.push()
        else:
            self.writer.publish()

    def push(self) -> None:
        self.serial += 1
        position, head, was_small = self.writer.position, self.head[HEAD], self.writer.is_small
        self.records[position] = self.serial
        try:
            self.writer.push((self.serial,) * 16)
        except RingFullError:
            capacity = SMALL if self.writer.is_small else FULL
            assert position - head >= capacity, "refused though there was room"
            assert not self.writer.is_small or not self.has_memory, "not widened though there was memory"
            self.seen["refused"] += 1
            del self.records[position]
        else:
            self.seen["widened by need"] += was_small and not self.writer.is_small

    def read(self) -> None:
        dice = self.chance.random()
        if dice < 0.1:
            self.succeed_reader()
        elif dice < 0.4:
            self.take(self.reader.read)
        elif dice < 0.6:
            self.reader.acknowledge()
        else:
            self.drain()

    def drain(self) -> None:
        self.take(self.reader.drain)

    def take(self, read: Callable[[], Any]) -> None:
        """Each record read is the one that was published at its position, none is left out, none comes twice."""
        published_before, start = self.tail[TAIL], self.read_to
        found = [record[0] for record in read() if record == (record[0],) * 16]
        self.read_to += len(found)
        assert published_before <= self.read_to <= self.tail[TAIL]
        assert found == [self.records[position] for position in range(start, self.read_to)]

    def succeed_writer(self) -> None:
        self.writer = RingWriter(self.own, self.peer_view)
        assert self.writer.position == self.tail[TAIL]

    def succeed_reader(self) -> None:
        self.reader = RingReader(self.peer, self.own_view)
        self.read_to = self.head[HEAD]


def test_nothing_is_lost_doubled_or_torn_while_a_ring_is_widened(segment_pair: MakePair) -> None:
    seen: Counter[str] = Counter()
    for number in range(NUM_SCHEDULES):
        schedule = Schedule(segment_pair, number)
        schedule.run()
        seen += schedule.seen
    kinds = {"died in write", "died in read", "widened before it must be", "widened by need", "refused"}
    assert kinds == {kind for kind in kinds if seen[kind] >= 10}, seen


def test_a_writer_that_lies_in_every_word_costs_its_reader_no_more_than_both_rings(segment_pair: MakePair) -> None:
    chance = random.Random(20)
    refused = read = 0
    for _ in range(2000):
        own, view = segment_pair(CLIENT, 5, Geometry(FULL, 0, SMALL))
        peer, _ = segment_pair(LINK, 1, Geometry(0, 0))
        peer.words[HEAD] = start = chance.choice([0, 5, 2**40])

        def lie(words: memoryview = own.words, start: int = start) -> None:
            near = max(0, start + chance.randint(-3, 20))
            words[chance.choice([TAIL, WIDENED])] = chance.choice([0, near, near, near, chance.getrandbits(64)])

        view.words = cast("memoryview", Shared(view.words, lie))
        reader = RingReader(peer, view)
        before = peer.words[HEAD]
        for _ in range(4):
            try:
                found = reader.read()
            except LayoutError:
                refused += 1
                assert peer.words[HEAD] == before
                break
            assert len(found) <= SMALL + FULL
            read += len(found)
            reader.acknowledge()
            assert peer.words[HEAD] - before == len(found)
            before = peer.words[HEAD]
    assert refused > 100
    assert read > 100
