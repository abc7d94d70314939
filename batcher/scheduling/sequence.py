"""The sequence batcher: the requests of one sequence run on one instance, one after the other.

A sequence begins with a request that says START. It gets the lowest free slot of all instances, which spreads
sequences over them; while all slots are taken, new sequences wait in the backlog, first come first served. Each request
of a sequence waits until the request before it has been executed, and then until its slot may run (sequence_slots.py).

What ends a sequence:

    a request with END     its id is free at once, for another sequence; its slot once all requests have been executed
    max_idle               passed without a request of the sequence that waits or runs
    max_lifetime           passed since the sequence began, where the model has such a bound; waiting ones are refused
    the model              says that it is over (a TorchServe handler, with its answer); waiting requests are refused
    a cancelled request    had not run, so the model has missed a part; waiting requests are refused
    a request's timeout    passed while the sequence was in the backlog; waiting requests are refused
    its instance's death   but a sequence that the instance had not begun goes to the front of the backlog

Rules: an instance has at most one batch, so that no request overtakes a running one. A slot has at most one sequence,
and gets the next one when the last request of that sequence has been executed. Every request leaves once: in a batch,
or refused.

Pure policy, runs in the batcher.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any

from shoal.batcher.scheduling.contract import Scheduler
from shoal.batcher.scheduling.payload import Batch
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.sequence_slots import SequenceInstance, Slots, slots_from_config
from shoal.batcher.scheduling.sequence_values import (
    HeldSlot,
    LostSequences,
    Sequence,
    SequenceError,
    SequenceLimits,
    SlotChange,
    SlotState,
)
from shoal.errors import UnavailableError
from shoal.model_config import sequences
from shoal.reasons import Reason
from shoal.sequences import END, FLAGS, SLOT_SHIFT, START


class SequenceScheduler(Scheduler):
    """Sequence batching. See `Scheduler` and `Sequences` for the contract of each method."""

    __slots__ = (
        "_backlog", "_begins_unasked", "_ending", "_expiries", "_free", "_idle", "_instances", "_limits", "_live",
        "_lost", "_make_slots", "_max_total_queue", "_num_sequences", "_num_slots", "_refused", "_waiting", "changes",
        "is_iterative", "waits_for_answers",
    )  # fmt: skip

    def __init__(
        self,
        make_slots: Callable[[], Slots],
        num_slots: int,
        limits: SequenceLimits,
        max_total_queue: int,
        *,
        is_iterative: bool = False,
        begins_unasked: bool = False,
        waits_for_answers: bool = True,
    ) -> None:
        """`num_slots` is the number per instance. With `is_iterative`, a request of no sequence is a sequence by
        itself; with `begins_unasked`, the first request of a sequence begins it, whether it says START or not. With
        `waits_for_answers`, an execution ends with its last answer; otherwise with READY, which may come before."""
        self.waits_for_answers = waits_for_answers
        self._make_slots = make_slots
        self._num_slots = num_slots
        self._limits = limits
        self._max_total_queue = max_total_queue
        self._begins_unasked = begins_unasked
        self.is_iterative = is_iterative
        # All mutable state. Instances; free slots, as (slot, instance) with the lowest first; sequences that requests
        # may join, by id; sequences that wait for a slot, and sequences without requests, by number, the longest
        # waiting first; waiting requests, in order; a heap of (when a sequence must leave the backlog, number), which
        # may hold sequences that have left; the ids of the last sequences that ended with their instance.
        self._instances: dict[int, SequenceInstance] = {}
        self._free: list[tuple[int, int]] = []
        self._live: dict[int, Sequence] = {}
        self._backlog: OrderedDict[int, Sequence] = OrderedDict()
        self._idle: OrderedDict[int, Sequence] = OrderedDict()
        self._waiting: OrderedDict[int, tuple[QueuedRequest, Sequence]] = OrderedDict()
        self._expiries: list[tuple[int, int]] = []
        self._lost = LostSequences()
        #: Id → sequences whose END is yet to be added again, oldest first; only after a dead batcher.
        self._ending: dict[int, deque[Sequence]] = {}
        self._refused: list[tuple[int, Reason]] = []
        self._num_sequences = 0
        #: Slots with a new sequence or state. The batcher writes them to the slot tables and clears this list.
        self.changes: list[SlotChange] = []

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def oldest_ns(self) -> int:
        return next(iter(self._waiting.values()))[0].arrival_ns if self._waiting else 0

    def rows_before(self, request: QueuedRequest) -> int | None:
        return None  # a request waits for its predecessor or a slot, and refusing it would break its sequence

    @property
    def sequences(self) -> "SequenceScheduler":
        return self

    def has(self, correlation: int) -> bool:
        return correlation in self._live or correlation in self._ending or correlation in self._lost

    def refused(self) -> list[tuple[int, Reason]]:
        refused, self._refused = self._refused, []
        return refused

    # --- requests ---

    def add(self, request: QueuedRequest, now_ns: int) -> None:
        """Accept a request; also raises SequenceError if the request neither belongs to a sequence nor begins one."""
        is_alone = self.is_iterative and not request.correlation
        if is_alone:
            request = request.in_sequence(self._num_sequences + 1, START)
        if not request.correlation:
            raise SequenceError(Reason.NO_CORRELATION)
        sequence = None if is_alone else self._of_id(request)
        if sequence is None and not request.flags & START:
            request = self._with_start(request)
        if self._is_full(sequence, is_alone=is_alone):
            raise UnavailableError("Exceeds maximum queue size")
        if sequence is None:
            sequence = self._begin(request.correlation, now_ns)
            if not is_alone:
                self._live[request.correlation] = sequence
        self._waiting[request.key] = request, sequence
        sequence.requests.append(request)
        if request.flags & END or is_alone:
            self._close(sequence)
            if sequence.has_begun and sequence.instance is not None:
                self.changes.append(sequence.change(SlotState.ENDING))
        if sequence.instance is None:
            self._note_timeout(request, sequence)
        elif len(sequence.requests) == 1 and not sequence.is_running:
            self._idle.pop(sequence.number, None)
            self._offer(sequence)

    def _with_start(self, request: QueuedRequest) -> QueuedRequest:
        """Make a request whose id has no open sequence the first of a new sequence. Raises SequenceError if that is not
        allowed."""
        if request.correlation in self._lost:
            if self._begins_unasked:  # refused once, so that the client knows; its next request begins a new sequence
                self._lost.discard(request.correlation)
            raise SequenceError(Reason.SEQUENCE_LOST)
        if not self._begins_unasked:
            raise SequenceError(Reason.NOT_STARTED)
        return request.in_sequence(request.correlation, request.flags | START)

    def _is_full(self, sequence: Sequence | None, *, is_alone: bool) -> bool:
        """Whether there is no room for a further request of `sequence` or, if that is None, for one of a new sequence;
        with `is_alone`, for a request that is a sequence by itself."""
        limits = self._limits
        if sequence is None:
            no_sequence = bool(limits.max_open) and not is_alone and len(self._live) >= limits.max_open
        else:
            no_sequence = bool(limits.max_waiting) and len(sequence.requests) >= limits.max_waiting
        return no_sequence or len(self._waiting) >= self._max_total_queue

    def end(self, instance: int, key: int) -> None:
        """End the sequence whose request an instance is executing: the model has said that the sequence is over."""
        ended = self._instances.get(instance)
        sequence = None if ended is None else ended.running.get(key)
        if sequence is not None and not sequence.is_over:
            # Only TorchServe's handlers end sequences; its refusal is the same for a closed sequence and a full queue.
            self._refuse(self._clear(sequence), Reason.QUEUE_FULL)

    def add_again(self, request: QueuedRequest) -> None:
        for instance in self._instances.values():
            sequence = instance.running.get(request.key)
            if sequence is not None and request.key not in self._waiting:
                sequence.first_key = 0
                again = request.in_sequence(sequence.correlation, request.flags & ~START)
                self._waiting[request.key] = again, sequence
                sequence.requests.appendleft(again)
                return
        self._refused.append((request.key, Reason.SEQUENCE_LOST))

    def add_first(self, request: QueuedRequest) -> None:
        if request.key not in self._waiting:  # otherwise `give_back` has queued it already
            self._refused.append((request.key, Reason.SEQUENCE_LOST))  # the sequence has ended with its instance

    def give_back(self, instance: int, request: QueuedRequest) -> None:
        """Queue a request again that an instance, which is about to be removed, had been given and had not begun. If
        it was the first of its sequence, the sequence has not begun either."""
        given = self._instances.get(instance)
        sequence = None if given is None else given.running.get(request.key)
        if sequence is not None and sequence.first_key == request.key:
            sequence.has_begun = False
            again = request.in_sequence(sequence.correlation, request.flags | START)
            sequence.requests.appendleft(again)
            self._waiting[request.key] = again, sequence
            self._waiting.move_to_end(request.key, last=False)

    def miss(self, instance: int, key: int) -> None:
        given = self._instances.get(instance)
        sequence = None if given is None else given.running.get(key)
        if sequence is not None:
            self._refuse(self._clear(sequence), Reason.CANCELLED)

    def take(self, now_ns: int) -> Batch | None:
        for number, instance in self._instances.items():
            taken = None if instance.num_running else instance.slots.take(now_ns)
            if taken is not None:
                requests, rows = taken
                instance.num_running = 1
                for request in requests:
                    _, sequence = self._waiting.pop(request.key)
                    sequence.requests.popleft()
                    sequence.is_running = True
                    if not sequence.has_begun:
                        sequence.has_begun, sequence.first_key = True, request.key
                        self.changes.append(sequence.change(sequence.slot_state))
                    instance.running[request.key] = sequence
                return Batch(number, requests, rows)
        return None

    def expire(self, now_ns: int) -> list[QueuedRequest]:
        """Refuse expired requests: `refused` returns them, with a reason of their own, and this method returns none."""
        max_idle_ns, max_lifetime_ns = self._limits.max_idle_ns, self._limits.max_lifetime_ns
        while self._idle and (sequence := next(iter(self._idle.values()))).idle_since_ns + max_idle_ns <= now_ns:
            self._clear(sequence)
        if max_lifetime_ns:
            while self._live and (oldest := next(iter(self._live.values()))).began_ns + max_lifetime_ns <= now_ns:
                self._refuse(self._clear(oldest), Reason.SEQUENCE_TIMED_OUT)
        self._fill()
        while self._expiries and self._expiries[0][0] <= now_ns:
            late = self._backlog.get(heappop(self._expiries)[1])
            if late is not None:
                self._refuse(self._clear(late), Reason.SEQUENCE_TIMED_OUT)
        return []

    def cancel(self, key: int) -> bool:
        if key not in self._waiting:
            return False
        requests = self._clear(self._waiting[key][1])
        self._fill()
        self._refuse([request for request in requests if request.key != key], Reason.CANCELLED)
        return True

    def complete(self, instance: int, now_ns: int, compute_ns: int) -> None:
        done = self._instances.get(instance)
        if done is None or not done.num_running:
            return
        done.num_running -= 1
        if done.num_running:
            return  # other executions, which an earlier scheduler has begun, are still running
        done.slots.complete(now_ns)
        running, done.running = done.running, {}
        for sequence in running.values():
            sequence.is_running = False
            if sequence.requests:
                self._offer(sequence)
            elif sequence.is_over:
                self._release(sequence)
            else:
                sequence.idle_since_ns = now_ns
                self._idle[sequence.number] = sequence
        self._fill()

    def next_deadline_ns(self) -> int | None:
        # without this, a client that sends a timeout with each request would fill the heap
        if len(self._expiries) > 2 * len(self._waiting) + 64:
            self._expiries = [each for each in self._expiries if each[1] in self._backlog]
            heapify(self._expiries)
        while self._expiries and self._expiries[0][1] not in self._backlog:
            heappop(self._expiries)
        deadlines = [each.slots.next_deadline_ns() for each in self._instances.values() if not each.num_running]
        deadlines += [expiry_ns for expiry_ns, _ in self._expiries[:1]]
        if self._idle:
            deadlines.append(next(iter(self._idle.values())).idle_since_ns + self._limits.max_idle_ns)
        if self._limits.max_lifetime_ns and self._live:
            deadlines.append(next(iter(self._live.values())).began_ns + self._limits.max_lifetime_ns)
        return min([each for each in deadlines if each is not None], default=None)

    def drain(self) -> list[QueuedRequest]:
        requests = [request for request, _ in self._waiting.values()]
        for _, sequence in tuple(self._waiting.values()):
            self._clear(sequence)
        return requests

    # --- instances ---

    def add_instance(self, instance: int, num_running: int = 0) -> None:
        if instance in self._instances:
            return
        self._instances[instance] = SequenceInstance(self._make_slots(), num_running)
        for slot in range(self._num_slots):
            heappush(self._free, (slot, instance))
        self._fill()

    def restore(self, instance: int, held: Iterable[HeldSlot], now_ns: int) -> None:
        """Continue the sequences that an instance, which was just added, has from a dead batcher."""
        restored = self._instances[instance]
        for slot, correlation, number, state, key, flags in sorted(held, key=lambda each: each.number):
            is_over = state is SlotState.CLOSED or bool(flags & END)
            if is_over and not key:
                self.changes.append(SlotChange(instance, slot, 0, 0, SlotState.FREE))
                continue
            self._num_sequences = max(self._num_sequences, number)
            sequence = restored.owners[slot] = Sequence(number, correlation, now_ns)
            sequence.instance, sequence.slot, sequence.has_begun = instance, slot, True
            sequence.is_over, sequence.is_running, sequence.idle_since_ns = is_over, key != 0, now_ns
            sequence.first_key = key if flags & START else 0
            if key:
                restored.running[key] = sequence
            else:
                self._idle[number] = sequence
            if state is SlotState.ENDING and not is_over:
                self._ending.setdefault(correlation, deque()).append(sequence)
            elif not is_over:
                self._live[correlation] = sequence
        self._free = [each for each in self._free if each[1] != instance or each[0] not in restored.owners]
        heapify(self._free)

    def end_restoring(self) -> None:
        """End all sequences whose request with END was not added again, because its client has died."""
        ending, self._ending = self._ending, {}
        for sequence in [sequence for those in ending.values() for sequence in those]:
            sequence.is_over = True
            if not (sequence.is_running or sequence.requests):
                self._clear(sequence)
        self._fill()

    def lose(self, instance: int, held: Iterable[HeldSlot]) -> None:
        """Refuse further requests of sequences that an instance, which was just added, cannot continue."""
        for each in held:
            self.changes.append(SlotChange(instance, each.slot, 0, 0, SlotState.FREE))
            self._lost.add(each.correlation)

    def remove_instance(self, instance: int) -> None:
        gone = self._instances.pop(instance, None)
        if gone is None:
            return
        self._free = [each for each in self._free if each[1] != instance]
        heapify(self._free)
        # The youngest sequence first, so that the oldest ends up at the front of the backlog.
        for sequence in sorted(gone.owners.values(), key=lambda each: each.number, reverse=True):
            sequence.instance = None
            sequence.is_running = False
            if sequence.has_begun:
                if self._live.get(sequence.correlation) is sequence:
                    self._lost.add(sequence.correlation)
                self._refuse(self._clear(sequence), Reason.SEQUENCE_LOST)
            else:
                self._backlog[sequence.number] = sequence
                self._backlog.move_to_end(sequence.number, last=False)
                for request in sequence.requests:
                    self._note_timeout(request, sequence)
        self._fill()

    # --- sequences ---

    def _of_id(self, request: QueuedRequest) -> Sequence | None:
        """The open sequence of a request's id; None if there is none.

        After a batcher's death several sequences of one id may be waiting for their END: the request belongs to the
        oldest.
        """
        ending = self._ending.get(request.correlation)
        if not ending:
            return self._live.get(request.correlation)
        return ending.popleft() if request.flags & END else ending[0]

    def _begin(self, correlation: int, now_ns: int) -> Sequence:
        self._lost.discard(correlation)
        self._num_sequences += 1
        sequence = Sequence(self._num_sequences, correlation, now_ns)
        self._backlog[sequence.number] = sequence
        self._fill()
        return sequence

    def _note_timeout(self, request: QueuedRequest, sequence: Sequence) -> None:
        if request.timeout_us:
            heappush(self._expiries, (request.arrival_ns + request.timeout_us * 1000, sequence.number))

    def _fill(self) -> None:
        """Give free slots to sequences in the backlog."""
        while self._free and self._backlog:
            slot, number = heappop(self._free)
            _, sequence = self._backlog.popitem(last=False)
            sequence.slot, sequence.instance = slot, number
            self._instances[number].owners[slot] = sequence
            if sequence.requests:
                self._offer(sequence)

    def _offer(self, sequence: Sequence) -> None:
        """Let the first request of a sequence run."""
        request = sequence.requests[0]
        word = request.flags & FLAGS | sequence.slot + 1 << SLOT_SHIFT
        self._of(sequence).slots.offer(sequence.slot, request.in_sequence(sequence.correlation, word))

    def _close(self, sequence: Sequence) -> None:
        sequence.is_over = True
        if self._live.get(sequence.correlation) is sequence:
            del self._live[sequence.correlation]

    def _clear(self, sequence: Sequence) -> list[QueuedRequest]:
        """End a sequence now or, if a request of it is running, after that. Returns the requests of the sequence that
        waited."""
        requests = list(sequence.requests)
        self._close(sequence)
        self._idle.pop(sequence.number, None)
        self._backlog.pop(sequence.number, None)
        for request in requests:
            del self._waiting[request.key]
        sequence.requests.clear()
        if sequence.instance is not None and not sequence.is_running:
            if requests:
                self._of(sequence).slots.withdraw(sequence.slot, requests[0].key)
            self._release(sequence)
        elif sequence.instance is not None:
            self.changes.append(sequence.change(SlotState.CLOSED))
        return requests

    def _release(self, sequence: Sequence) -> None:
        """Free a sequence's slot. `_fill` is to be called once all slots have been freed."""
        assert sequence.instance is not None
        del self._of(sequence).owners[sequence.slot]
        heappush(self._free, (sequence.slot, sequence.instance))
        if sequence.has_begun:
            self.changes.append(sequence.change(SlotState.FREE))
        sequence.instance = None

    def _of(self, sequence: Sequence) -> SequenceInstance:
        assert sequence.instance is not None
        return self._instances[sequence.instance]

    def _refuse(self, requests: list[QueuedRequest], reason: Reason) -> None:
        self._refused += [(request.key, reason) for request in requests]


def from_config(config: dict[str, Any], max_total_queue: int) -> SequenceScheduler:
    """The scheduler of a model with `sequence_batching`, from its normalised configuration."""
    batching, num_slots, own = config["sequence_batching"], sequences.num_slots(config), sequences.own_limits(config)
    max_idle_ns = int(batching["max_sequence_idle_microseconds"]) * 1000
    return SequenceScheduler(
        slots_from_config(batching, num_slots, max(1, int(config.get("max_batch_size", 0)))),
        num_slots,
        SequenceLimits(max_idle_ns, own.max_lifetime_ms * 1_000_000, own.max_open, own.max_waiting),
        min(max_total_queue, sequences.max_waiting_requests(config) or max_total_queue),
        is_iterative=batching["iterative_sequence"],
        begins_unasked=sequences.begins_unasked(config),
        waits_for_answers=not config.get("model_transaction_policy", {}).get("decoupled"),
    )
