"""The batcher process: waits for its bell, lets the exchange handle what came.

Forked by a zygote, or exec'd as `python -m shoal.batcher.batcher`.
One thread, one epoll: the bell that every client and worker rings, and the control connection. Segments and bells
arrive as descriptors over the latter and are acknowledged once mapped. Where a batcher has died, the next one is told
of everybody first, and looks at no ring until all clients have said again what is open.
"""

import faulthandler
import select
import sys
import time
from collections.abc import Callable

from shoal import control, fault, log
from shoal.batcher.exchange import Exchange
from shoal.batcher.peers import Client, Model, Worker
from shoal.batcher.scheduling.scheduler import from_config
from shoal.control import GONE, Channel, Message
from shoal.ledger import ledger_message
from shoal.model_config.model_metrics import first_response_bounds
from shoal.process import die_with_parent, ignore_group_signals, set_title
from shoal.reasons import Reason
from shoal.shm.counters import CounterTable
from shoal.shm.doorbell import Doorbell
from shoal.shm.segment import Segment, SegmentView

#: Longest sleep. Nothing is due by then; it bounds what a lost wake-up could cost (there is no known way to lose one).
MAX_SLEEP_S = 10.0
#: Until it is looked whether a full ring has room again; reading one rings no bell (ours).
ROOM_SLEEP_S = 0.001


class Batcher:
    """The loop and the control messages; what they mean for requests is the exchange's business."""

    def __init__(
        self,
        channel: Channel,
        bell: Doorbell,
        counters: CounterTable,
        max_queue_size: int,
        *,
        counts_first_responses: bool,
        is_successor: bool,
    ) -> None:
        self._channel = channel
        self._bell = bell
        self._counters = counters
        self._max_queue_size = max_queue_size
        self._counts_first_responses = counts_first_responses
        self._exchange = Exchange(time.time_ns() - time.monotonic_ns())
        self._on: dict[str, Callable[[Message, list[int]], None]] = {
            "resume": self._on_resume,
            "client": self._on_client,
            "client_gone": self._on_client_gone,
            "model": self._on_model,
            "model_failed": self._on_model_failed,
            "model_gone": self._on_model_gone,
            "model_retire": self._on_model_retire,
            "ping": lambda _message, _fds: None,  # its acknowledgement, from this loop, is the answer
            "segment": self._on_segment,
            "segment_gone": self._on_segment_gone,
            "worker": self._on_worker,
            "worker_ready": self._on_worker_ready,
            "worker_gone": self._on_worker_gone,
            "worker_retire": self._on_worker_retire,
            "ledger": self._on_ledger,
            "log": lambda message, _fds: log.configure(**message["log"]),
        }
        # Changed by control messages: workers that are mapped but not ready yet; whether a dead batcher's place is
        # still being taken.
        self._starting: dict[int, Worker] = {}
        self._is_taking_over = is_successor

    def run(self) -> None:
        """Serve until the supervisor hangs up."""
        poller = select.epoll()
        poller.register(self._bell.fileno(), select.EPOLLIN)
        poller.register(self._channel.fileno(), select.EPOLLIN)
        exchange, bell, control_fd = self._exchange, self._bell, self._channel.fileno()
        while True:
            deadline_ns = exchange.next_deadline_ns()
            sleep_s = MAX_SLEEP_S
            if exchange.has_backlog:
                sleep_s = ROOM_SLEEP_S
            if deadline_ns is not None:
                sleep_s = min(sleep_s, max(0, deadline_ns - time.monotonic_ns()) / 1e9)
            events = poller.poll(sleep_s)
            bell.clear()
            if any(fd == control_fd for fd, _ in events):
                self._receive()
            if self._is_taking_over:
                continue
            exchange.step(time.monotonic_ns())
            if exchange.reports:
                self._report()

    def _receive(self) -> None:
        message, fds = self._channel.receive()
        self._on[message["op"]](message, fds)
        if "seq" in message:
            self._channel.acknowledge(message)

    def _report(self) -> None:
        for message in self._exchange.reports:
            self._channel.send(message)
        self._exchange.reports.clear()

    def _on_resume(self, _message: Message, _fds: list[int]) -> None:
        self._is_taking_over = False
        self._exchange.resume(time.monotonic_ns())

    def _on_client(self, message: Message, fds: list[int]) -> None:
        segment, link, bell = fds
        client = Client(message["owner"], Segment.attach(link), SegmentView.attach(segment), Doorbell(bell))
        if self._is_taking_over:
            client.reader.skip()
        self._exchange.clients[client.owner] = client

    def _on_client_gone(self, message: Message, _fds: list[int]) -> None:
        client = self._exchange.clients.get(message["owner"])
        self._exchange.remove_client(message["owner"])
        if client is not None:
            client.bell.close()

    def _on_model(self, message: Message, _fds: list[int]) -> None:
        scheduler = from_config(message["config"], self._max_queue_size)
        row = self._counters.restored_row if self._is_taking_over else self._counters.row
        model = Model(message["model"], scheduler, row(message["row"]), may_run_again=message["may_run_again"])
        if self._counts_first_responses:
            model.row.first_response_bounds = first_response_bounds(message["config"])
        self._exchange.models[model.id] = model

    def _on_model_failed(self, message: Message, _fds: list[int]) -> None:
        self._exchange.fail_model(message["model"], time.monotonic_ns())

    def _on_model_gone(self, message: Message, _fds: list[int]) -> None:
        self._exchange.remove_model(message["model"], time.monotonic_ns())

    def _on_model_retire(self, message: Message, _fds: list[int]) -> None:
        # The step that follows looks into clients' rings before it looks whether anything is left.
        self._exchange.retire_model(message["model"])

    def _on_segment(self, message: Message, _fds: list[int]) -> None:
        self._exchange.add_segment(message["owner"], message["worker"])

    def _on_segment_gone(self, message: Message, _fds: list[int]) -> None:
        self._exchange.remove_segment(message["owner"])

    def _on_worker(self, message: Message, fds: list[int]) -> None:
        segment, link, bell = fds
        model = self._exchange.models[message["model"]]
        worker = Worker(message["owner"], Segment.attach(link), SegmentView.attach(segment), Doorbell(bell), model)
        if self._is_taking_over:
            worker.take_over()
        self._starting[worker.owner] = worker

    def _on_worker_ready(self, message: Message, _fds: list[int]) -> None:
        self._exchange.add_worker(self._starting.pop(message["owner"]))

    def _on_worker_retire(self, message: Message, _fds: list[int]) -> None:
        self._exchange.retire_worker(message["owner"])

    def _on_worker_gone(self, message: Message, _fds: list[int]) -> None:
        owner = message["owner"]
        worker = self._starting.pop(owner, None) or self._exchange.workers.get(owner)
        self._exchange.remove_worker(owner, time.monotonic_ns(), Reason(message["reason"]), message["detail"])
        # What the dead worker's last answers became is shown before the acknowledgement: then its segment may go.
        if not self._is_taking_over:
            self._exchange.step(time.monotonic_ns())
        if worker is not None:
            worker.bell.close()

    def _on_ledger(self, _message: Message, _fds: list[int]) -> None:
        exchange = self._exchange
        if not self._is_taking_over:
            exchange.step(time.monotonic_ns())  # what clients have released goes on to the workers, who are asked next
        slots = [peer.reader.counts for peer in (*exchange.clients.values(), *exchange.workers.values())]
        self._channel.send(
            ledger_message(
                slots_acquired=sum([filled for filled, _ in slots]),
                slots_released=sum([given_back for _, given_back in slots]),
                requests_open=exchange.num_open,
                requests_running=sum([len(worker.missing) for worker in exchange.workers.values()]),
                replies_held=exchange.holders.num_held,
                blocks_held=len(exchange.holders),
            )
        )


def main() -> None:
    """Join the supervisor, then serve."""
    die_with_parent()
    faulthandler.enable()
    ignore_group_signals()
    fault.install("batcher")
    try:
        with control.join("batcher") as channel:
            set_title("batcher (standby)")
            # One that stands by waits here, with all its imports done.
            message, (bell, counters) = channel.receive()
            set_title("batcher")
            log.configure(**message["log"])
            batcher = Batcher(
                channel,
                Doorbell(bell),
                CounterTable(Segment.attach(counters)),
                message["max_queue_size"],
                counts_first_responses=message["counts_first_responses"],
                is_successor=message["is_successor"],
            )
            batcher.run()
    except GONE:
        sys.exit(0)  # the supervisor is gone; whatever it wanted acknowledged no longer matters


if __name__ == "__main__":
    main()
