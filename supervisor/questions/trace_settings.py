"""The verb `trace_settings`: clients read and change trace settings, which front ends and the tracer apply in order.

    change ─► front ends sample by it, and acknowledge ─► the tracer writes what came under the old settings ─► answer

So a client that has its answer finds the change in force in every process, and all traces from before in the files.
Runs in the supervisor.
"""

import logging
from collections.abc import Mapping
from typing import Any

from shoal.errors import ShoalError
from shoal.messages.to_client import TraceSettingsChanged
from shoal.supervisor.event_loop import Future, shared
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.tracer import TracerProcess
from shoal.tracer.command_line import TraceConfig
from shoal.tracer.settings import GLOBAL, OFF, TraceSettings, describe

_log = logging.getLogger(__name__)


class TraceControl:
    """The trace settings, and the tracer that they call for."""

    def __init__(self, star: Star, control_address: str, config: TraceConfig) -> None:
        self._config = config
        self._star = star
        self.tracer = TracerProcess(star, control_address, config, self._on_collected)
        # Changed by questions, and as traces are collected.
        self.settings = TraceSettings(config.setting)

    def start(self) -> None:
        """Begin to trace as the command line says."""
        setting = self._config.setting
        if setting.level != OFF and setting.fault:
            _log.warning("nothing is traced: %s", setting.fault)
        self._send_to_tracer()

    async def change(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Apply the requested changes; returns a model's settings, or those for all models if none is named."""
        model, changes = arguments["model"] or GLOBAL, arguments["changes"]
        if changes is not None:
            self.settings.change(model, changes)
            await self._put_in_force()
        return describe(self.settings.of(model), self._config.options)

    async def _put_in_force(self) -> None:
        await self._star.acknowledgements.announce(self._star.to_front_ends(self._message()))
        await shared(self._send_to_tracer())

    async def restore(self, layers: Mapping[str, Mapping[str, Any]]) -> None:
        """Apply the changes by an old server's clients; no effect if this server cannot trace by them."""
        for model in sorted(layers, key=len):  # GLOBAL first: models' settings build on it
            try:
                self.settings.change(model, dict(layers[model]))
            except ShoalError as error:
                _log.error("trace settings of before the upgrade are not in force: %s", error)
        if any(layers.values()):
            await self._put_in_force()

    def send_to(self, client: Participant) -> None:
        client.member.send(self._message())

    def _send_to_tracer(self) -> Future[None]:
        return self.tracer.set([setting for setting in self.settings.in_force.values() if setting.is_on])

    def _message(self) -> TraceSettingsChanged:
        """The message with all settings for a front end, with the tracer's socket where something is traced."""
        in_force = self.settings.in_force
        settings = {model: setting.fields for model, setting in in_force.items()}
        is_on = any(setting.is_on for setting in in_force.values())
        return TraceSettingsChanged(settings, self.tracer.inlet() if is_on else None)

    def _on_collected(self, revision: int, count: int) -> None:
        """Count traces collected under a setting; when its count is reached, front ends are sent the settings anew."""
        if self.settings.collected(revision, count):
            for client in self._star.front_ends:
                self.send_to(client)
