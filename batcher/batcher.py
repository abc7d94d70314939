"""The batcher process: waits for its bell, lets the exchange handle what came.

Forked by a zygote, or exec'd as `python -m shoal.batcher.batcher`.
One thread, one epoll: a bell of each client and each worker, which says whose ring to look into, and the control
connection. Segments and bells arrive as descriptors over the latter and are acknowledged once mapped. The supervisor
announces all clients and workers to a dead batcher's successor, which reads a client's ring only after that client has
sent its open requests again.
"""

import faulthandler
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shoal import control, fault, log
from shoal.batcher.bells import Bells
from shoal.batcher.cached_responses import CachedResponses
from shoal.batcher.ensemble import Ensemble
from shoal.batcher.exchange import Exchange
from shoal.batcher.guests import is_fixed
from shoal.batcher.peers import Client, Model, Worker
from shoal.batcher.response_order import keeps_order
from shoal.batcher.scheduling.rate_limited import RateLimitedScheduler
from shoal.batcher.scheduling.rate_limiter import RateLimiter
from shoal.batcher.scheduling.scheduler import from_config
from shoal.batcher.shared_answers import SharedAnswers
from shoal.cache_settings import RedisSettings
from shoal.control import GONE, Channel, Message
from shoal.ledger import ledger_message
from shoal.model_config.model_metrics import first_response_bounds
from shoal.model_config.rate_limiter import Demand, Limit
from shoal.model_config.response_cache import enables_response_cache
from shoal.model_config.signature import Signature
from shoal.process import die_with_parent, ignore_group_signals, set_title
from shoal.reasons import Reason
from shoal.shm.counters import CounterTable
from shoal.shm.doorbell import Doorbell, GuestBell
from shoal.shm.layout import LayoutError
from shoal.shm.segment import Segment, SegmentView

if TYPE_CHECKING:
    from shoal.batcher.redis_connection import RedisConnection

#: Longest sleep; all rings are looked into after it. Nothing is due by then; it bounds what a lost wake-up could cost
#: (there is no known way to lose one).
MAX_SLEEP_S = 10.0
#: While there is work, all rings are looked into so often: a peer that is quiet does not ring for a RELEASE (ours).
LOOK_NS = 1_000_000_000
#: Until it is looked whether a full ring has room again, since reading one rings no bell, and whether a worker that has
#: several batches has answered some without ringing, since the next one may be long (ours).
SHORT_SLEEP_S = 0.001

#: Below it a sleep is timed in microseconds: epoll rounds up to whole milliseconds, longer than many a batch takes.
FINE_SLEEP_S = 0.01
#: At a time, of as many as there are peers; by default epoll makes room for a thousand, each time. The others are first
#: the next time.
MAX_EVENTS = 64


class Batcher:
    """The loop and the control messages; what they mean for requests is the exchange's business."""

    def __init__(
        self,
        channel: Channel,
        bell: Doorbell,
        counters: CounterTable,
        max_queue_size: int,
        max_in_flight: int,
        *,
        deadline_ns: int = 0,
        counts_first_responses: bool,
        cache_bytes: int,
        redis: RedisSettings | None = None,
        is_successor: bool,
        rate_limits: Sequence[Limit] | None = None,
        latency_target_ms: int = 0,
    ) -> None:
        self._channel = channel
        self._bell = bell
        self._counters = counters
        self._max_queue_size = max_queue_size
        self._latency_target_ms = latency_target_ms
        self._counts_first_responses = counts_first_responses
        self._limiter = None if rate_limits is None else RateLimiter(rate_limits)
        self._exchange = Exchange(time.time_ns() - time.monotonic_ns(), max_in_flight, self._limiter, deadline_ns)
        self._on: dict[str, Callable[[Message, list[int]], None]] = {
            "resume": self._on_resume,
            "client": self._on_client,
            "memory": self._on_memory,
            "ensemble": self._on_ensemble,
            "ensemble_models": self._on_ensemble_models,
            "client_told": self._on_client_told,
            "client_gone": self._on_client_gone,
            "model": self._on_model,
            "model_groups": self._on_model_groups,
            "model_failed": self._on_model_failed,
            "model_gone": self._on_model_gone,
            "model_retire": self._on_model_retire,
            "ping": lambda _message, _fds: None,  # its acknowledgement, from this loop, is the answer
            "segment": self._on_segment,
            "segment_gone": self._on_segment_gone,
            "worker": self._on_worker,
            "worker_ready": self._on_worker_ready,
            "worker_told": lambda message, _fds: self._exchange.succession.expect_worker(message["owner"]),
            "worker_gone": self._on_worker_gone,
            "worker_retire": self._on_worker_retire,
            "ledger": self._on_ledger,
            "explain": self._on_explain,
            "log": lambda message, _fds: log.configure(**message["log"]),
        }
        self._poller = select.epoll()
        self._redis = None if redis is None else _connection(redis, self._poller, bell)
        if cache_bytes:
            shared = None if self._redis is None else SharedAnswers(self._redis)
            self._exchange.enable_cache(counters.cache_figures(cache_bytes), time.monotonic_ns, shared)
        # Changed by control messages: the bells that peers ring; those of clients, by owner; workers that are mapped
        # but not ready yet; whether a dead batcher's place is still being taken.
        self._bells: dict[int, Doorbell | GuestBell] = {}
        self._rung = Bells(self._poller)
        self._starting: dict[int, Worker] = {}
        self._is_taking_over = is_successor

    def run(self) -> None:
        """Serve until the supervisor hangs up."""
        poller, owners, guests, redis = self._poller, self._rung.owners, self._rung.guests, self._redis
        exchange, control_fd, busy = self._exchange, self._channel.fileno(), self._exchange.busy
        look_ns, events = 0, list[tuple[int, int]]()
        poller.register(self._bell.fd, select.EPOLLIN | select.EPOLLET)
        poller.register(control_fd, select.EPOLLIN)
        while True:
            deadline_ns = exchange.next_deadline_ns()
            sleep_s = SHORT_SLEEP_S if exchange.has_backlog else MAX_SLEEP_S
            if deadline_ns is not None:
                sleep_s = min(sleep_s, max(0, deadline_ns - time.monotonic_ns()) / 1e9)
                if 0 < sleep_s < FINE_SLEEP_S:
                    select.select((poller,), (), (), sleep_s)
                    sleep_s = 0
            if busy and (events or exchange.may_miss_answers(time.monotonic_ns())):
                sleep_s = min(sleep_s, SHORT_SLEEP_S)
            events = poller.poll(sleep_s, MAX_EVENTS)
            rung_by: list[int] | None = []
            for fd, _ in events:
                owner = owners.get(fd)
                if owner is not None:
                    if fd in guests:
                        guests[fd].clear()
                    if rung_by is not None:
                        rung_by.append(owner)
                elif redis is not None and fd == redis.fd:
                    redis.is_ready = True
                else:  # the supervisor, or the batcher's own bell: quiet peers are looked at, too
                    rung_by = None
                    if fd == control_fd:
                        self._receive()
            if self._is_taking_over:
                continue
            now_ns = time.monotonic_ns()
            exchange.step(now_ns, rung_by if events or sleep_s < MAX_SLEEP_S else None)
            if now_ns >= look_ns:  # after the step, so that no request waits for it
                exchange.step(now_ns)
                look_ns = now_ns + LOOK_NS
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
        segment, link, bell_fd, *peers_fds = fds
        owner, is_guest, is_caller = message["owner"], message.get("is_guest", False), message.get("is_caller", False)
        bell = GuestBell(bell_fd) if is_guest else Doorbell(bell_fd)
        self._bells[owner] = bell
        try:
            client = Client(
                owner,
                Segment.attach(link),
                SegmentView.attach(segment),
                bell,
                is_guest=is_guest,
                is_front_end=not (is_guest or is_caller),
            )
        except LayoutError:
            self._exchange.distrust(owner)  # a guest's, written over before a successor came to read it
            return
        self._rung.add(owner, bell if isinstance(bell, GuestBell) else Doorbell(*peers_fds))
        if message.get("is_late", False):
            client.reader.skip()
            self._exchange.succession.add_late(client)
        else:
            self._exchange.clients[owner] = client

    def _on_client_told(self, message: Message, _fds: list[int]) -> None:
        self._exchange.succession.hear_late(message["owner"], time.monotonic_ns())

    def _on_client_gone(self, message: Message, _fds: list[int]) -> None:
        self._exchange.remove_client(message["owner"], time.monotonic_ns())
        self._rung.remove(message["owner"])
        bell = self._bells.pop(message["owner"], None)
        if bell is not None:
            bell.close()

    def _on_model(self, message: Message, _fds: list[int]) -> None:
        scheduler = from_config(message["config"], self._max_queue_size, self._latency_target_ms)
        if self._limiter is not None:
            scheduler = RateLimitedScheduler(scheduler, self._limiter)
        row = self._counters.restored_row if self._is_taking_over else self._counters.row
        model = Model(
            message["model"],
            scheduler,
            row(message["row"]),
            max_rows=max(1, message["config"]["max_batch_size"]),
            is_fixed=is_fixed(message["config"]),
            may_run_again=message["may_run_again"],
            keeps_order=keeps_order(message["config"]),
            signature=Signature.from_config(message["config"]),
            version=message["version"],
            groups=message["groups"],
            sharing=self._sharing(message),
        )
        if self._counts_first_responses:
            model.row.first_response_bounds = first_response_bounds(message["config"])
        self._exchange.models[model.id] = model

    def _on_model_groups(self, message: Message, _fds: list[int]) -> None:
        self._exchange.models[message["model"]].groups = message["groups"]

    def _on_memory(self, _message: Message, fds: list[int]) -> None:
        # Of a cache's memory the pages come as it fills.
        self._exchange.ensembles.connect(Segment.attach(fds[0], populate=self._exchange.cached is None))

    def _on_ensemble(self, message: Message, _fds: list[int]) -> None:
        row = self._counters.restored_row if self._is_taking_over else self._counters.row
        ensemble = Ensemble(
            message["model"],
            message["config"],
            row(message["row"]),
            version=message["version"],
            models=message["models"],
            may_run_again=message["may_run_again"],
            sharing=self._sharing(message),
            decoupled=message["decoupled"],
        )
        if self._counts_first_responses:
            ensemble.row.first_response_bounds = first_response_bounds(message["config"])
        self._exchange.add_ensemble(ensemble)

    def _on_ensemble_models(self, message: Message, _fds: list[int]) -> None:
        ensemble, cached = self._exchange.models.get(message["model"]), self._exchange.cached
        self._exchange.ensembles.relink(
            message["model"], message["models"], message["decoupled"], may_run_again=message["may_run_again"]
        )
        if cached is not None and ensemble is not None and ensemble.sharing is cached:
            cached.name(ensemble.id, message["revision"], time.monotonic_ns())

    def _sharing(self, message: Message) -> CachedResponses | None:
        cached = self._exchange.cached
        if cached is None or not enables_response_cache(message["config"]):
            return None
        cached.name(message["model"], message["revision"], time.monotonic_ns())
        return cached

    def _on_model_failed(self, message: Message, _fds: list[int]) -> None:
        self._exchange.fail_model(message["model"], time.monotonic_ns())

    def _on_model_gone(self, message: Message, _fds: list[int]) -> None:
        self._exchange.remove_model(message["model"], time.monotonic_ns())

    def _on_model_retire(self, message: Message, _fds: list[int]) -> None:
        # The step that follows looks into clients' rings before it looks whether anything is left.
        self._exchange.retire_model(message["model"])

    def _on_segment(self, message: Message, fds: list[int]) -> None:
        owner, writer, blocks = message["owner"], message.get("worker", 0), self._exchange.blocks
        try:
            blocks.add_payload(owner, writer or message["asker"], SegmentView.attach(fds[0]))
        except LayoutError:
            return  # a guest's, written over: nothing can be read there
        if writer:
            blocks.add_result(owner, writer)

    def _on_segment_gone(self, message: Message, _fds: list[int]) -> None:
        self._exchange.blocks.remove(message["owner"])

    def _on_worker(self, message: Message, fds: list[int]) -> None:
        segment, link, bell, peers_bell = fds
        model = self._exchange.models.get(message["model"])
        if model is None:  # of a dead worker, which a successor is told of
            for fd in fds:
                os.close(fd)
            return
        worker = Worker(message["owner"], Segment.attach(link), SegmentView.attach(segment), Doorbell(bell), model)
        if self._limiter is not None:
            self._limiter.add(worker.owner, Demand.from_message(message["demand"]))
        if self._is_taking_over:
            worker.take_over()
        self._rung.add(worker.owner, Doorbell(peers_bell))
        self._starting[worker.owner] = worker

    def _on_worker_ready(self, message: Message, _fds: list[int]) -> None:
        if (worker := self._starting.pop(message["owner"], None)) is not None:
            self._exchange.add_worker(worker, time.monotonic_ns())

    def _on_worker_retire(self, message: Message, _fds: list[int]) -> None:
        self._exchange.retire_worker(message["owner"])

    def _on_worker_gone(self, message: Message, _fds: list[int]) -> None:
        owner = message["owner"]
        self._rung.remove(owner)
        worker = self._starting.pop(owner, None) or self._exchange.workers.get(owner)
        if self._limiter is not None:
            self._limiter.remove(owner)
        self._exchange.remove_worker(owner, time.monotonic_ns(), Reason(message["reason"]), message["detail"])
        # What the dead worker's last answers became is shown before the acknowledgement: then its segment may go.
        self._exchange.step(time.monotonic_ns())
        if worker is not None:
            worker.bell.close()

    def _on_explain(self, message: Message, _fds: list[int]) -> None:
        if (model := self._exchange.models.get(message["model"])) is not None:
            self._channel.send({"op": "explained", "model": model.id, "told": model.scheduler.explain()})

    def _on_ledger(self, _message: Message, _fds: list[int]) -> None:
        exchange = self._exchange
        if not self._is_taking_over:
            exchange.step(time.monotonic_ns())  # what clients have released goes on to the workers, who are asked next
        own, num_cached = exchange.blocks.own, 0 if exchange.cached is None else exchange.cached.num_kept
        acquired, released = (0, 0) if own is None else own.counts
        slots = [peer.reader.counts for peer in (*exchange.clients.values(), *exchange.workers.values())]
        self._channel.send(
            ledger_message(
                blocks_acquired=acquired - num_cached,
                blocks_released=released,
                slots_acquired=sum([filled for filled, _ in slots]),
                slots_released=sum([given_back for _, given_back in slots]),
                requests_open=exchange.num_open,
                requests_running=sum([len(worker.missing) for worker in exchange.workers.values()]),
                replies_held=exchange.holders.num_held - num_cached,
                blocks_held=len(exchange.holders) - num_cached,
                blocks_cached=num_cached,
            )
        )


def _connection(settings: RedisSettings, poller: select.epoll, bell: Doorbell) -> "RedisConnection":
    from shoal.batcher.redis_connection import RedisConnection  # with it TLS: 40 ms and 1 MiB, for who needs it

    return RedisConnection(settings, poller, bell.ring)


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
                message["max_in_flight"],
                deadline_ns=message["deadline_ns"],
                counts_first_responses=message["counts_first_responses"],
                cache_bytes=message["cache_bytes"],
                redis=None if message["redis"] is None else RedisSettings(*message["redis"]),
                is_successor=message["is_successor"],
                rate_limits=message["rate_limits"],
                latency_target_ms=message["latency_target_ms"],
            )
            batcher.run()
    except GONE:
        sys.exit(0)  # the supervisor is gone; whatever it wanted acknowledged no longer matters


if __name__ == "__main__":
    main()
