"""Silent members: announcements wait for the batcher and for all front ends, so those that owe an acknowledgement for
too long are killed. The batcher is pinged while it owes no acknowledgement, as no request is served while it stands
still.

Both run only Shoal's own code, and acknowledge within a millisecond. A member that is stopped, or stands still, is
killed after SILENT_S; a standby takes the batcher's place, and the arbiter forks another front end. A member that only
waits for a core is not to blame (silence.py), nor a member whose acknowledgement has come and is not read yet. Runs in
the supervisor.
"""

import logging
from collections.abc import Callable, Iterator

from shoal.messages.shared import Ping
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.members import Member
from shoal.supervisor.processes.silence import Observed, Silence, observe

_log = logging.getLogger(__name__)

#: How long a member may sleep, or be stopped, with an announcement unacknowledged (ours).
SILENT_S = 1.0
#: The share of a computing front end's CPU time that counts: the road's 64 threads take turns at the interpreter, 5 ms
#: each, and the one that acknowledges needs several turns (ours).
BUSY_SHARE = 0.1
#: Seconds between two checks, and so between two pings (ours).
LOOK_S = 0.25


class SilentMembers:
    """Kills the batcher and front ends of a star that are silent for too long."""

    def __init__(self, star: Star, observe: Callable[[int], Observed | None] = observe) -> None:
        self._loop = star.loop
        self._star = star
        self._observe = observe
        # Changed by each check: the oldest announcement that a member has not acknowledged, with the number of its
        # messages still to be acknowledged, and the member's silence since the first check that has found so.
        self._silent: dict[Member, tuple[tuple[int, int], Silence]] = {}

    def watch(self) -> None:
        """Check all members every LOOK_S from now on."""
        self._loop.every(LOOK_S, self._look)

    def _look(self, late_s: float) -> None:
        if late_s > LOOK_S:
            self._silent.clear()  # this process itself was held up, and with it perhaps the machine
        self.look(self._loop.now_s())

    def look(self, now_s: float) -> None:
        """Kill every member that has been silent for too long, and ping the batcher."""
        acknowledgements, batcher = self._star.acknowledgements, self._star.batcher
        if batcher is not None and acknowledgements.oldest(batcher) is None:
            acknowledgements.announce([(batcher, Ping())])
        before, self._silent = self._silent, {}
        for member, title, busy_share in self._watched():
            owed = acknowledgements.oldest(member)
            if owed is None:
                continue
            owed_before, silence = before.get(member, (None, None))
            observed = self._observe(member.pid)
            if silence is None or owed_before != owed:
                silence = Silence(now_s, busy_share)
                silence.look(now_s, observed)  # CPU time used before does not count
            elif silence.look(now_s, observed) >= SILENT_S and not member.has_unread():
                state = "computed" if observed is not None and observed.is_runnable else "slept, or was stopped"
                why = f"it {state}, and owed the supervisor an acknowledgement"
                _log.error("%s (pid %d) has not moved for %g s; it is killed: %s", title, member.pid, SILENT_S, why)
                if member.kill():
                    silence.reset(now_s)  # the process may take a while to end, and is reported only once
                else:
                    _log.error("it cannot be killed, as no file descriptor is left; it is tried again")
            self._silent[member] = owed, silence

    def _watched(self) -> Iterator[tuple[Member, str, float]]:
        """Each member with its name in the log and the share of its CPU time that counts."""
        if self._star.batcher is not None:
            yield self._star.batcher, "the batcher", 1.0
        for front_end in self._star.front_ends:
            yield front_end.member, "the front end", BUSY_SHARE
