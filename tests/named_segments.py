"""Segments that have a name in /dev/shm, which none should."""

import os
import re
import time

DEADLINE_S = 10.0


def named_segments() -> set[str]:
    """All of them. Each has its name for microseconds, also those of servers that other tests start meanwhile."""
    return {name for name in os.listdir("/dev/shm") if re.fullmatch("shoal-[0-9a-f]{32}", name)}


def left_behind(before: set[str]) -> set[str]:
    """Those that were not there before, and stay: whoever makes one may be stopped before it takes the name away."""
    end = time.monotonic() + DEADLINE_S
    found = named_segments() - before
    while found and time.monotonic() < end:
        found &= named_segments()
    return found
