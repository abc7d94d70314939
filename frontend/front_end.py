"""A front-end process in the star: its port, its bell, the server's state, and the supervisor's messages about them.

The lane uses it in its only thread, the road behind a lock (transport.py).
"""

from dataclasses import dataclass

from shoal import control, fault, log
from shoal.client.models import ModelTable
from shoal.control import Channel, Message
from shoal.frontend import tracing
from shoal.frontend.state import ServerState
from shoal.ledger import connections, ledger_message
from shoal.options import MetricsConfig
from shoal.shm.counters import CounterTableView
from shoal.shm.doorbell import Doorbell
from shoal.shm.port import Port
from shoal.shm.segment import Segment, SegmentView

#: Messages that make replies void which have not been collected: those that a dead worker gave name its segment, those
#: that a dead batcher gave are to requests that are told to its successor.
REPLIES_FIRST = frozenset({"segment_gone", "batcher"})


@dataclass(slots=True)
class FrontEnd:
    """What a process has after it joined."""

    state: ServerState
    port: Port
    bell: Doorbell
    channel: Channel
    request_timeout_s: float
    answer_timeout_s: float  # of the supervisor

    def apply(self, message: Message, fds: list[int]) -> None:
        """Take a message into force, and say so where that is wanted.

        Before one of REPLIES_FIRST, the replies that have come must be collected.
        """
        op = message["op"]
        if op == "segment":
            self.port.add_segment(message["owner"], SegmentView.attach(fds[0]))
        elif op == "segment_gone":
            self.port.remove_segment(message["owner"])
        elif op == "batcher":
            self.port.resubmit()
        elif op in ("model", "model_removed"):
            self.state.models.apply(message)
        elif op == "started":
            self.state.started = True
        elif op == "exiting":
            self.state.exiting = True
        elif op == "log":
            log.configure(**message["log"])
            self.state.log_settings = message["log"]
        elif op == "trace_settings":
            self.state.tracing = tracing.changed(self.state.tracing, message, fds)
        elif op == "ledger":
            self.channel.send(ledger_message(connections_open=connections(), **self.port.counts))
        elif op != "ping":  # its acknowledgement, from this process's own loop, is the answer
            raise ValueError(f"a front end does not know the message '{op}'")
        if "seq" in message:
            # What a lane has pushed by the table as it was is seen before this is: whoever hears that a reload is in
            # force here, and then has the batcher look at the rings, finds no request for the old version later. The
            # road's requests may have been looked up long before they are pushed; those are looked up again.
            self.port.flush()
            self.channel.acknowledge(message)


def join(name: str) -> FrontEnd:
    """Join the supervisor as a client of the star; returns when every model and every segment is known.

    Raises EOFError when the supervisor is gone.
    """
    fault.install("road" if name == "road" else "lane")
    channel = control.join("client", name=name)
    message, (own, link, bell, batcher_bell, counters) = channel.receive()
    log.configure(**message["log"])
    settings = message["state"]
    settings["metrics_config"] = MetricsConfig(**settings["metrics_config"])
    table = CounterTableView(SegmentView.attach(counters))
    models = ModelTable(namespacing=message["model_namespacing"])
    state = ServerState(**settings, log_settings=message["log"], counters=table, models=models)
    port = Port(Segment.attach(own), SegmentView.attach(link), Doorbell(batcher_bell), message["max_in_flight"])
    front_end = FrontEnd(
        state, port, Doorbell(bell), channel, message["request_timeout_s"], message["answer_timeout_s"]
    )
    channel.acknowledge(message)
    while not state.started:
        front_end.apply(*channel.receive())
    return front_end
