"""The verb `trace_settings`: what is traced, as clients ask and set it, and in which order the processes are told.

    change ─► front ends sample anew, and say so ─► the tracer writes what came under the old settings ─► answer

So a client that has its answer finds the change in force in every process, and all there was before in the files. Runs
in the supervisor.
"""

import dataclasses
import logging
from typing import Any

from shoal.messages.to_client import TraceSettingsChanged
from shoal.supervisor.event_loop import EventLoop, Future, shared
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.tracer import TracerProcess
from shoal.tracer.command_line import TraceConfig
from shoal.tracer.settings import GLOBAL, OFF, TraceSettings, describe

_log = logging.getLogger(__name__)


class TraceControl:
    """The settings, and the tracer that they call for."""

    def __init__(
        self, loop: EventLoop, control_address: str, log_settings: dict[str, Any], config: TraceConfig, star: Star
    ) -> None:
        self._config = config
        self._star = star
        self.tracer = TracerProcess(
            loop, control_address, log_settings, config, star.acknowledgements, self._on_collected
        )
        # Changed by questions, and as traces are collected.
        self._settings = TraceSettings(config.setting)

    def start(self) -> None:
        """Trace what the command line wants traced."""
        setting = self._config.setting
        if setting.level != OFF and setting.fault:
            _log.warning("nothing is traced: %s", setting.fault)
        self._send_to_tracer()

    async def close(self) -> None:
        """No front end is left: have everything written."""
        await self.tracer.close()

    async def change(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """A model's settings, or those of all models if none is named, after the requested changes."""
        model, changes = arguments["model"] or GLOBAL, arguments["changes"]
        if changes is not None:
            self._settings.change(model, changes)
            message = self._message()
            await self._star.acknowledgements.announce([(each.member, message) for each in self._star.front_ends])
            await shared(self._send_to_tracer())
        return describe(self._settings.of(model), self._config.options)

    def send_to(self, client: Participant) -> None:
        """Send a front end that has joined the settings in force."""
        client.member.send(self._message())

    def _send_to_tracer(self) -> Future[None]:
        return self.tracer.set([setting for setting in self._settings.in_force.values() if setting.is_on])

    def _message(self) -> TraceSettingsChanged:
        """What front ends hear; they are given the way to the tracer where there is something to send."""
        in_force = self._settings.in_force
        settings = {model: dataclasses.asdict(setting) for model, setting in in_force.items()}
        is_on = any(setting.is_on for setting in in_force.values())
        return TraceSettingsChanged(settings, self.tracer.inlet() if is_on else None)

    def _on_collected(self, revision: int, count: int) -> None:
        """Nothing is left to be collected under a setting: tell those who sample."""
        if self._settings.collected(revision, count):
            for client in self._star.front_ends:
                self.send_to(client)
