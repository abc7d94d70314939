"""Time in which a process of a front end did not run: the machine was suspended, or the process was stopped. Pure.

Requests made no progress in that time, so it does not count when the server ends and gives open requests a limited
time; the supervisor does not count it either (supervisor/event_loop.py, `first_awake`).
"""

#: Seconds between two looks of a loop at the clock beyond which the process has stood still (ours: all loops look at
#: it at least once a second, and a process that waits for a core is less than a second late).
USUAL_S = 2.0


def standstill_s(looked_s: float, now_s: float) -> float:
    """The seconds of a standstill between two looks of a loop at the clock, in monotonic seconds."""
    return max(0.0, now_s - looked_s - USUAL_S)
