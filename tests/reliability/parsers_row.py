"""The row of all parsers: damaged inputs for each in this process, in turns of some time for each."""

import logging
import time

from tests.reliability.parsers import PARSERS, attack
from tests.reliability.row import Course

#: Inputs of all parsers together, and the most of one parser.
WHOLE, SHORT = 1_000_000, 2_000
#: Inputs of one turn; seconds that each parser has, in the short form and in the whole one.
TURN = 200
SHARE_S = (2, 36)


def run(course: Course) -> None:
    """Attack every parser until its share of the time is used."""
    logging.disable(logging.CRITICAL)  # some parsers log what they leave out
    most = course.pick(SHORT, WHOLE)
    counts: dict[str, int] = {}
    faults: list[str] = []
    for name, parser in PARSERS.items():
        end_s = time.monotonic() + course.pick(*SHARE_S)
        counts[name] = 0
        turn = max(1, TURN // parser.weight)
        while counts[name] < most and time.monotonic() < end_s:
            faults += attack(parser, turn, course.seed * 1_000_003 + counts[name])
            counts[name] += turn * parser.weight
        print(f"{name}: {counts[name]}", flush=True)
    print(*faults, sep="\n")
    told = ", ".join(f"{name} {number}" for name, number in counts.items())
    course.found("errors", f"{len(faults)} faults{''.join(f'; {each}' for each in faults[:2])}", is_met=not faults)
    total = sum(counts.values())
    course.found("number", f"{total:,}: {told}", is_met=total >= course.pick(SHORT, WHOLE))
