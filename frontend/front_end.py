"""A front-end process: its place in the star, the server's state, and the handlers of the supervisor's messages about
these two.

A lane uses its FrontEnd in its only thread; the road's threads use theirs under a lock (road/transport.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shoal import fault, log
from shoal.api_keys import ApiKey, KeyLimits, KeyRing
from shoal.frontend import tracing
from shoal.frontend.regions import Regions
from shoal.frontend.state import ServerState
from shoal.frontend.upload_budget import UploadBudget
from shoal.grpc_settings import GrpcSettings
from shoal.messages import to_client
from shoal.messages.from_client import FrontEndConnected
from shoal.messages.message import Handlers, on, table
from shoal.messages.shared import LogChanged, Ping
from shoal.shared_settings import MetricsConfig
from shoal.shm.counters import CounterTableView
from shoal.shm.segment import SegmentView
from shoal.star.place import Place, take_place
from shoal.torchserve_settings import TorchServeSettings


@dataclass(frozen=True)
class FrontEnd:
    """A front-end process that has joined the star: the server's state and the process's place."""

    state: ServerState
    place: Place

    def apply(self, message: to_client.ToClient, seq: int) -> None:
        self.place.apply(message, seq, self.handlers)

    @cached_property
    def handlers(self) -> Handlers:
        """Handlers of the messages that concern front ends alone; messages to all clients are handled by the place."""
        state = self.state
        return table(
            on(to_client.ModelsKnown, self._start),
            on(to_client.ServerStopping, self._stop),
            on(to_client.ConnectionsEnding, self._drain),
            on(to_client.ExitTimeoutExpired, self._give_up),
            on(LogChanged, self._configure_log),
            on(to_client.TraceSettingsChanged, self._change_tracing),
            on(to_client.ApiKeysChanged, self._change_api_keys),
            on(to_client.CertificatesChanged, lambda _message: None),  # a lane with TLS reads the certificates itself
            on(to_client.RegionRegistered, state.regions.add),
            on(to_client.CudaRegionRegistered, state.regions.add_cuda),
            on(to_client.RegionUnregistered, lambda message: state.regions.remove(message.name, message.kind)),
            # Ping needs no handling: the message's acknowledgement shows the supervisor that this process's loop runs.
            on(Ping, lambda _message: None),
        )

    def _start(self, _message: to_client.ModelsKnown) -> None:
        self.state.started = True

    def _stop(self, _message: to_client.ServerStopping) -> None:
        self.state.exiting = True

    def _drain(self, _message: to_client.ConnectionsEnding) -> None:
        self.state.is_draining = True

    def _give_up(self, _message: to_client.ExitTimeoutExpired) -> None:
        self.state.gives_up = True

    def _configure_log(self, message: LogChanged) -> None:
        log.configure(**message.settings)
        self.state.log_settings = message.settings

    def _change_tracing(self, message: to_client.TraceSettingsChanged) -> None:
        state = self.state
        state.tracing = tracing.changed(state.tracing, message, state.models.names, state.timing_share)

    def _change_api_keys(self, message: to_client.ApiKeysChanged) -> None:
        self.state.api_keys = keys = key_ring(message.keys)
        self.state.key_uses.forget(keys.names)

    def settle(self, seq: int) -> None:
        """Apply messages until every model and segment is known; from then on this process answers that it is ready."""
        self.place.settle(seq, self.handlers)

    def close(self) -> None:
        """Close the tracing outlet and the connection to the supervisor. No request may be in flight."""
        if self.state.tracing is not None and self.state.tracing.outlet is not None:
            self.state.tracing.outlet.close()
        self.place.channel.close()


def join(name: str) -> FrontEnd:
    """Join the supervisor as a client of the star; returns when every model and every segment is known.

    Raises EOFError if the supervisor is gone.
    """
    fault.install("road" if name == "road" else "lane")
    place, welcome, seq = take_place(FrontEndConnected)
    log.describe(name)
    log.configure(**welcome.log)
    assert welcome.settings is not None, "this process is a front end"
    settings: dict[str, Any] = {**welcome.settings}
    settings["grpc"] = GrpcSettings(**settings["grpc"])
    settings["metrics_config"] = MetricsConfig(**settings["metrics_config"])
    settings["torchserve"] = TorchServeSettings(**settings["torchserve"])
    settings["upload_budget"] = UploadBudget(settings.pop("max_upload_bytes"))
    are_allowed = settings.pop("allow_client_shm")
    keys = settings["api_keys"]
    settings["api_keys"] = None if keys is None else key_ring(keys)
    settings["regions"] = Regions(
        are_allowed=are_allowed, has_gpus=settings.pop("has_gpus"), max_string_bytes=settings["http_max_input_size"]
    )
    counters = CounterTableView(SegmentView.attach(welcome.counters))
    state = ServerState(**settings, log_settings=welcome.log, counters=counters, models=place.models)
    if state.timing_share:
        state.tracing = tracing.Tracing({}, None, state.models.names, state.timing_share)
    front_end = FrontEnd(state, place)
    front_end.settle(seq)
    return front_end


def key_ring(rows: Sequence[Sequence[Any]]) -> KeyRing:
    """The API keys in a message of the supervisor."""
    return KeyRing(
        [
            ApiKey(name, digest, tuple(scopes), tuple(models), KeyLimits(*limits))
            for name, digest, scopes, models, limits in rows
        ]
    )
