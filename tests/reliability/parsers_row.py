"""The row of all parsers: damaged inputs for each in this process, in turns of some time for each."""

import logging
import time

from tests.reliability.parsers import PARSERS, attack
from tests.reliability.row import Course

#: Inputs of all parsers together, and what one input of a parser that walks through states counts for: so many frames
#: or records.
WHOLE, SHORT = 1_000_000, 16_000
WALKS = {"http2": 8, "ring": 48}
#: Inputs of one turn; seconds after which a parser has had its share, in the whole form and in the short one.
TURN = 200
SHARE_S = (36, 2)


def run(course: Course) -> None:
    """Attack every parser until its share of the inputs, or of the time, is used."""
    logging.disable(logging.CRITICAL)  # some parsers log what they leave out
    share = course.pick(SHORT, WHOLE) // len(PARSERS)
    counts: dict[str, int] = {}
    faults: list[str] = []
    for name, parser in PARSERS.items():
        weight = WALKS.get(name, 1)
        end_s = time.monotonic() + course.pick(SHARE_S[1], SHARE_S[0])
        counts[name] = 0
        turn = max(1, TURN // weight)
        while counts[name] < share and time.monotonic() < end_s:
            faults += attack(parser, turn, course.seed * 1_000_003 + counts[name])
            counts[name] += turn * weight
        print(f"{name}: {counts[name]}", flush=True)
    print(*faults, sep="\n")
    told = ", ".join(f"{name} {number}" for name, number in counts.items())
    course.found("errors", f"{len(faults)} faults{''.join(f'; {each}' for each in faults[:2])}", is_met=not faults)
    total = sum(counts.values())
    course.found("number", f"{total:,}: {told}", is_met=total >= course.pick(2000, WHOLE))
