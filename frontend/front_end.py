"""A front-end process: its place in the star, the server's state, and the supervisor's messages about them.

Lanes use it in their only thread, the roads behind a lock (transport.py).
"""

from dataclasses import dataclass

from shoal import fault, log
from shoal.control import Message
from shoal.frontend import tracing
from shoal.frontend.regions import Regions
from shoal.frontend.state import ServerState
from shoal.grpc_settings import GrpcSettings
from shoal.options import MetricsConfig
from shoal.shm.counters import CounterTableView
from shoal.shm.segment import SegmentView
from shoal.star.place import Place, take_place


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """What a process has after it joined."""

    state: ServerState
    place: Place

    def apply(self, message: Message, fds: list[int]) -> None:
        """Take a message into force, as the place."""
        self.place.apply(message, fds, self._apply_other)

    def _apply_other(self, message: Message, fds: list[int]) -> None:
        op = message["op"]
        if op == "started":
            self.state.started = True
        elif op == "exiting":
            self.state.exiting = True
        elif op == "log":
            log.configure(**message["log"])
            self.state.log_settings = message["log"]
        elif op == "trace_settings":
            self.state.tracing = tracing.changed(self.state.tracing, message, fds, self.state.models.names)
        elif op == "region":
            self.state.regions.add(message, fds[0])
        elif op == "region_gone":
            self.state.regions.remove(message["name"])
        elif op != "ping":  # its acknowledgement, from this process's own loop, is the answer
            raise ValueError(f"a front end does not know the message '{op}'")

    def settle(self, welcome: Message) -> None:
        """Hear of every model and every segment; from then on clients are told that this process answers."""
        self.place.channel.acknowledge(welcome)
        while not self.state.started:
            self.apply(*self.place.channel.receive())

    def close(self) -> None:
        """Hang up, where nothing is in flight any more."""
        if self.state.tracing is not None:
            self.state.tracing.outlet.close()
        self.place.channel.close()


def enter(name: str) -> tuple[FrontEnd, Message]:
    """Join the supervisor as a client of the star; what is left to do is `settle`, with the message that comes along.

    Raises EOFError when the supervisor is gone.
    """
    fault.install("road" if name.endswith("road") else "lane")
    place, welcome, counters = take_place("client", name=name)
    log.configure(**welcome["log"])
    settings = welcome["state"]
    settings["grpc"] = GrpcSettings(**settings["grpc"])
    settings["metrics_config"] = MetricsConfig(**settings["metrics_config"])
    are_allowed = settings.pop("allow_client_shm")
    settings["regions"] = Regions(are_allowed=are_allowed, max_string_bytes=settings["http_max_input_size"])
    table = CounterTableView(SegmentView.attach(counters))
    state = ServerState(**settings, log_settings=welcome["log"], counters=table, models=place.models)
    return FrontEnd(state, place), welcome


def join(name: str) -> FrontEnd:
    """Join the supervisor as a client of the star; returns when every model and every segment is known.

    Raises EOFError when the supervisor is gone.
    """
    front_end, welcome = enter(name)
    front_end.settle(welcome)
    return front_end
