"""Log settings, changed while the server runs: in force in front ends and the batcher when the client has its answer.

The supervisor has one dict of these settings, which every process is sent as it joins. The dict is changed in place, so
a process that joins later, or is sent its memory later, gets the settings of that moment. The front end that asks has
checked the change.
"""

from typing import Any, Protocol

from shoal import log
from shoal.messages import shared
from shoal.supervisor.memory.star import Star


class Logging(Protocol):
    """The owner of a process outside the star; sends that process changed log settings."""

    def configure_log(self) -> None:
        """Send the process the changed log settings."""
        ...


class LogControl:
    """The verb that changes log settings. `settings` are the arguments of log.configure."""

    def __init__(self, settings: shared.LogSettings, star: Star, *others: Logging) -> None:
        self.settings = settings
        self._star = star
        self._others = others

    async def change(self, arguments: dict[str, Any]) -> shared.LogSettings:
        """Put the arguments' `changes` in force in all processes; returns all settings.

        Front ends and the batcher acknowledge the change. Workers, which may execute for a minute, the poller, which
        may download for an hour, and the tracer are sent the change and not waited for: they apply it before their next
        task.
        """
        self.settings.update(arguments["changes"])
        log.configure(**self.settings)
        for each in self._others:
            each.configure_log()
        now = self.settings.copy()
        message = shared.LogChanged(now)
        star = self._star
        for worker in star.workers.values():
            worker.member.send(message)
        await star.acknowledgements.announce([*star.to_front_ends(message), *star.to_batcher(message)])
        return now
