"""Ends of a ring in processes of their own, for test_ring.py: `python -m tests.stress.ring_end FD…`.

It forks one for each line on standard input, "writer LIMIT SEED" or "reader LIMIT SEED", and prints its pid; to import
anew for each would take most of the test's time. "reap PID" prints an exit status. Record number n lies at position n
and all its words follow from n: a reader knows a torn, lost or doubled record when it sees one. An end exits with 0
when `limit` records have passed, with 1 and a sentence when anything else happened.
"""

import os
import random
import select
import sys

from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import HEAD_WORD, TAIL_WORD
from shoal.shm.ring import RingFullError, RingReader, RingWriter
from shoal.shm.segment import Segment, SegmentView

#: Odd, with all its bytes different from 0: two numbers never share a word, and rarely a byte of one.
SCATTER = 0x9E3779B97F4A7C15
DEADLINE_S = 20


def record_of(number: int) -> tuple[int, ...]:
    """Record `number`: the number itself, then fifteen words that follow from it."""
    return (number, *(number * SCATTER & 0xFFFFFFFFFFFFFFFF,) * 15)


def wait(bell: Doorbell, what: str) -> None:
    """Until the bell is heard; silence it. The peer may be dying and its successor starting meanwhile."""
    if not select.select([bell], [], [], DEADLINE_S)[0]:
        sys.exit(f"nobody rang for {DEADLINE_S} s: {what}")
    bell.clear()


def write(own: Segment, peer: SegmentView, data: Doorbell, space: Doorbell, started: Doorbell, limit: int) -> None:
    """Push records in groups of 1 to 64 until `limit` have been pushed by this process and its predecessors."""
    writer, number = RingWriter(own, peer), own.words[TAIL_WORD]
    data.ring()  # the predecessor may have died after the store of the tail and before its ring
    started.ring()
    while number < limit:
        try:
            for _ in range(min(random.randint(1, 64), limit - number)):
                writer.push(record_of(number))
                number += 1
        except RingFullError:
            if writer.publish():
                data.ring()
            wait(space, f"the ring is full at {number}")
        if writer.publish():
            data.ring()


def read(own: Segment, peer: SegmentView, data: Doorbell, space: Doorbell, started: Doorbell, limit: int) -> None:
    """Drain until `limit` records have been drained by this process and its predecessors; check each."""
    reader, number = RingReader(own, peer), own.words[HEAD_WORD]
    started.ring()
    while True:
        for record in reader.drain():
            if record != record_of(number):
                sys.exit(f"position {number} holds {record}")
            number += 1
        space.ring()
        if number >= limit:
            return
        wait(data, f"nothing to read at {number}")


def tell(number: int) -> None:
    os.write(sys.stdout.fileno(), b"%d\n" % number)


def main() -> None:
    writer_fd, writer_view_fd, reader_fd, reader_view_fd, data, space, started = map(int, sys.argv[1:])
    bells = Doorbell(data), Doorbell(space), Doorbell(started)
    for line in sys.stdin:
        word, *numbers = line.split()
        if word == "reap":
            tell(os.waitstatus_to_exitcode(os.waitpid(int(numbers[0]), 0)[1]))
            continue
        pid = os.fork()
        if pid:
            tell(pid)
            continue
        limit, seed = map(int, numbers)
        random.seed(seed)
        if word == "writer":
            write(Segment.attach(writer_fd), SegmentView.attach(reader_view_fd), *bells, limit)
        else:
            read(Segment.attach(reader_fd), SegmentView.attach(writer_view_fd), *bells, limit)
        return


if __name__ == "__main__":
    main()
