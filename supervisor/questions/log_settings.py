"""What is logged, changed while the server runs: in force here and in every process before the client hears so.

There is one dict of these settings in the supervisor, and every process is sent it as it joins. It is changed in place,
so who joins later, or is sent its memory later, has what is in force then. Whether a change makes sense has been
judged by the front end that asks.
"""

from typing import Any, Protocol

from shoal import log
from shoal.messages import shared
from shoal.supervisor.memory.star import Star


class Logging(Protocol):
    """The owner of a process that is not in the star."""

    def configure_log(self) -> None:
        """The settings of the log have changed."""
        ...


class LogControl:
    """The verb `log_settings`."""

    def __init__(self, settings: shared.LogSettings, star: Star, *others: Logging) -> None:
        self._settings = settings
        self._star = star
        self._others = others

    async def change(self, arguments: dict[str, Any]) -> shared.LogSettings:
        """Put `changes` in force everywhere; all settings.

        Front ends and batcher acknowledge it. Workers, which may execute for a minute, the reader of repositories,
        which may download for an hour, and the tracer are told and not waited for: they hear it before what they do
        next.
        """
        self._settings.update(arguments["changes"])
        log.configure(**self._settings)
        for each in self._others:
            each.configure_log()
        now = self._settings.copy()
        message = shared.LogChanged(now)
        star = self._star
        for worker in star.workers.values():
            worker.member.send(message)
        listening = [client.member for client in star.front_ends]
        if star.batcher is not None:
            listening.append(star.batcher)
        await star.acknowledgements.announce([(member, message) for member in listening])
        return now
