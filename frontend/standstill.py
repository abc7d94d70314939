"""Time in which a process of a front end did not run: the machine was suspended, or the process was stopped. Pure.

Its clients' requests did not go on in that time either, so it is no part of the time that they have when the server
ends; the supervisor counts in the same way (supervisor/event_loop.py, `first_awake`).
"""

#: Seconds between two looks of a loop that are no standstill (ours: all loops look at least once in a second, and one
#: whose process waits for a core is late by less).
USUAL_S = 2.0


def standstill_s(looked_s: float, now_s: float) -> float:
    """The seconds of a standstill between two looks of a loop, which are monotonic times."""
    return max(0.0, now_s - looked_s - USUAL_S)
