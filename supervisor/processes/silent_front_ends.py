"""Front ends that do not acknowledge what is announced: what all of them must know waits for each, so they are ended.

A front end runs our own code alone, and acknowledges within a millisecond. One that is stopped, or stands still, is
killed after SILENT_S; its arbiter forks another. One that only waits for a core is not to blame (silence.py). Runs in
the supervisor.
"""

import logging
from collections.abc import Callable

from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.silence import Observed, Silence, observe

_log = logging.getLogger(__name__)

#: How long a front end may sleep, or be stopped, with an announcement unacknowledged (ours).
SILENT_S = 1.0
#: Of one that computes, so much of its CPU time counts: the road's 64 threads take turns at the interpreter, 5 ms each,
#: and the one that acknowledges needs several turns (ours).
BUSY_SHARE = 0.1
#: Between two looks (ours).
LOOK_S = 0.25


class SilentFrontEnds:
    """Looks after all of a star's."""

    def __init__(self, loop: EventLoop, star: Star, observe: Callable[[int], Observed | None] = observe) -> None:
        self._loop = loop
        self._star = star
        self._observe = observe
        # Changed by each look: of those that something is missing of, what that is, and for how long they are silent.
        self._silent: dict[Member, tuple[int, Silence]] = {}

    def watch(self) -> None:
        """Look from now on."""
        self._loop.every(LOOK_S, self._look)

    def _look(self, late_s: float) -> None:
        if late_s > LOOK_S:
            self._silent.clear()  # this process itself was held up, and with it perhaps the machine
        self.look(self._loop.now_s())

    def look(self, now_s: float) -> None:
        """Kill whichever has been silent for too long."""
        before, self._silent = self._silent, {}
        for member in [front_end.member for front_end in self._star.front_ends]:
            missing = self._star.acknowledgements.oldest(member)
            if not missing:
                continue
            number, silence = before.get(member, (0, None))
            if silence is None or number != missing:
                silence = Silence(now_s, BUSY_SHARE)
                silence.look(now_s, self._observe(member.pid))
            elif silence.look(now_s, self._observe(member.pid)) >= SILENT_S:
                _log.error("the front end with pid %d has not moved for %g s; it is killed", member.pid, SILENT_S)
                if member.kill():
                    silence.reset(now_s)  # it may take a while to end: that is no reason to say so at every look
                else:
                    _log.error("it cannot be killed, as no file descriptor is left; it is tried again")
            self._silent[member] = missing, silence
