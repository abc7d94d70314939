"""Mirroring: answered requests of a version are executed by its shadow, too, and both answers go to the comparator.

A request of a front end is chosen when its reply is sent: the reply says that the request's block is lent, and the
front end frees the block once RETURN has come. The request waits, with a hold on the block of its answer, until
shadow_queue.py lets it run; then it is a request of the batcher to itself, in the queue of the shadow's scheduler. When
the shadow has answered, both answers and the inputs are copied into the ring to the comparator, after the step's
replies to clients were sent, and all blocks are given back. No client waits for any of this: what fails, finds no room
or takes too long is dropped and counted. Lives in the batcher.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum

from shoal.batcher import statistics
from shoal.batcher.blocks import Blocks
from shoal.batcher.entries import NO_REFUSAL, Answer, EntryPacker, Noted, words_of
from shoal.batcher.holders import Holders
from shoal.batcher.inner_client import InnerClient
from shoal.batcher.open_requests import OpenRequests
from shoal.batcher.peers import ClientPeer, OpenRequest, RunningBatch, ScheduledModel, WorkerPeer
from shoal.batcher.recording import batch_words
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.scheduling.shadow_queue import PATIENCE_NS, Load, ShadowQueue
from shoal.errors import ShoalError, UnavailableError
from shoal.messages.from_batcher import RequestsMirrored
from shoal.reasons import Reason
from shoal.recorder import entry
from shoal.recorder.entry import Outcome
from shoal.request import ON_GPU, PLACED, split_header, unpack_lent_layout, unpack_targets
from shoal.shadow import Pair, ShadowRule
from shoal.shm import records
from shoal.shm.byte_ring import ByteRingWriter
from shoal.shm.layout import MIRROR_OWNER, NUMBER_BITS, B, P, ref_owner, unpack_span
from shoal.shm.ring import Record

#: MAX_NBYTES is the most bytes of inputs and answers that the mirror keeps at once, shared by the pairs equally (ours:
#: an eighth of a front end's default slab). At most one in CLIENT_PARTS of the bytes of a front end's slab is lent.
MAX_NBYTES, CLIENT_PARTS = 8 << 20, 8
#: Bytes that one step copies; further pairs wait for the next step (ours: to copy so many takes 0.1 ms).
STEP_NBYTES = 512 << 10
_NUMBER_MASK = (1 << NUMBER_BITS) - 1
#: Numbers of mirrored requests are at least the time in units of 2^10 ns: the first number of a successor is then
#: greater than all numbers of the dead batcher, which mirrored fewer than one request per unit.
_TICK_BITS = 10
#: Reasons for which the batcher refuses a request of any model, and which count as drops, not as disagreements.
_REFUSALS = frozenset(
    {
        Reason.QUEUE_FULL, Reason.STOPPING, Reason.NOT_READY, Reason.CANCELLED, Reason.TIMED_OUT, Reason.MODEL_FAILED,
        Reason.TAKEN_OVER, Reason.TOO_LATE, Reason.NOT_STARTED, Reason.POISON, Reason.NO_STEP_MEMORY,
    }
)  # fmt: skip


class Drop(str, Enum):
    """Why a chosen request was not compared; the label of a metric."""

    BUSY = "busy"  # no instance was idle soon enough
    FULL = "full"  # too many requests, or too large ones, waited for the shadow
    UNAVAILABLE = "unavailable"  # the shadow version is not served, or its queue refused the request
    MEMORY = "memory"  # the worker that has answered needed its memory, or an input or output is on a GPU
    GONE = "gone"  # the client or the worker that has answered is gone
    COMPARATOR = "comparator"  # the ring to the comparator had no room


class _Mirrored:
    """A mirrored request. It keeps the client's block, the block of the primary's answer, and the words about the
    primary's execution that are copied into the comparator's ring."""

    __slots__ = (
        "answer", "block", "client", "given_ns", "header", "is_executed", "key", "number", "pair", "queued", "reply",
        "shadow", "span", "words",
    )  # fmt: skip

    def __init__(
        self, pair: "_PairMirror", key: int, request: OpenRequest, answer: int, span: int, words: tuple[int, ...]
    ) -> None:
        client, _, number, block, header, _, _, queued = request
        self.pair = pair
        self.key = key
        self.client: ClientPeer | None = client  # None: it has died
        self.number = number
        self.block = block
        self.header = header
        self.queued = queued
        self.words = words
        # Changed by the mirror: the block of the primary's answer, 0 once the block was given back; the shadow whose
        # scheduler got the request, and when that was (0 before); whether an instance is known to have the request; and
        # the shadow's reply.
        self.answer = answer
        self.span = span
        self.shadow: ScheduledModel | None = None
        self.given_ns = 0
        self.is_executed = False
        self.reply: Record = ()


class _PairMirror:
    """The mirroring of one pair of versions; a model's `mirror`."""

    __slots__ = ("_mirror", "descriptions", "pair", "primary", "queue", "rule")

    def __init__(self, mirror: "Mirror", rule: ShadowRule, max_nbytes: int) -> None:
        self._mirror = mirror
        self.rule = rule
        self.pair = rule.pair
        self.queue = ShadowQueue(rule.share, max_nbytes)
        #: The model whose requests are chosen: of all models of the primary version (each reload makes another), the
        #: newest.
        self.primary: ScheduledModel | None = None
        self.descriptions = tuple([entry.describe_model(rule.model, each, ()) for each in (rule.primary, rule.shadow)])

    def note(
        self, request: OpenRequest, answer: Answer, compute: statistics.Compute, now_ns: int,
        running: RunningBatch | None,
    ) -> bool:  # fmt: skip
        """Decide whether an answered request is mirrored; called before its reply is sent. Returns True if the request
        is mirrored: the client's block is lent to the mirror then, until RETURN is sent."""
        status, ref, _, num_pieces = answer
        client, queued = request[0], request[7]
        if status or not ref or num_pieces or not client.is_front_end or not self.queue.chooses(queued.key):
            return False
        return self._mirror.choose(self, request, answer, compute, now_ns, running)


class Mirror:
    """All mirrored requests. Clients that are sent RETURN are added to `written`."""

    def __init__(
        self, clients: Mapping[int, ClientPeer], models: Mapping[int, ScheduledModel],
        workers: Mapping[int, WorkerPeer], requests: OpenRequests, holders: Holders, blocks: Blocks,
        written: set[ClientPeer], wall: statistics.WallClock,
    ) -> None:  # fmt: skip
        self._clients = clients
        self._models = models
        self._workers = workers
        self._requests = requests
        self._holders = holders
        self._blocks = blocks
        self._written = written
        self._packer = EntryPacker(blocks, wall)
        self._client = InnerClient(MIRROR_OWNER, "shadow")
        # Changed by bind and connect: pairs by their versions, the shadows that are served, and the ring to the
        # comparator.
        self._pairs: dict[Pair, _PairMirror] = {}
        self._shadows: dict[Pair, ScheduledModel] = {}
        self._ring: ByteRingWriter | None = None
        # Changed by the exchange's step, and by deaths of clients and workers: the number of the last mirrored request;
        # open ones by key; those whose answers are to be copied; the bytes that each client has lent; requests mirrored
        # and dropped since the last report.
        self._number = 0
        self._open: dict[int, _Mirrored] = {}
        self._ended: list[_Mirrored] = []
        self._lent: Counter[int] = Counter()  # bytes by client
        self._counts: dict[Pair, Counter[str]] = {}
        #: Keys of requests that workers execute for a dead batcher, and clients that have lent blocks to that batcher.
        self._adopted: set[int] = set()
        self._owed: set[int] = set()
        #: Whether any mirrored request waits or runs; otherwise no method need be called. An attribute, since each step
        #: looks at it.
        self.is_busy = False

    # --- mirrored pairs ---

    def connect(self, ring: ByteRingWriter) -> None:
        """Write pairs of answers into this ring from now on."""
        self._ring = ring

    def bind(self, rules: Iterable[ShadowRule], names: Mapping[int, str]) -> None:
        """Apply these rules; `names` are the models' by id. To be called again whenever a model was added or
        removed."""
        rules = tuple(rules)
        share_nbytes = MAX_NBYTES // max(1, len(rules))
        before, self._pairs = self._pairs, {}
        for rule in rules:
            known = before.pop(rule.pair, None)
            if known is not None and known.rule != rule:
                before[rule.pair] = known
                known = None
            self._pairs[rule.pair] = known or _PairMirror(self, rule, share_nbytes)
        by_version = {(name, self._models[each].version): self._models[each] for each, name in sorted(names.items())}
        by_primary = {(each.rule.model, each.rule.primary): each for each in self._pairs.values()}
        for pair in self._pairs.values():
            pair.primary = by_version.get((pair.rule.model, pair.rule.primary))
        shadows = {pair: by_version.get((pair.model, pair.shadow)) for pair in self._pairs}
        self._shadows = {pair: each for pair, each in shadows.items() if each is not None}
        for model_id, name in names.items():
            model = self._models[model_id]
            # Not with `preserve_ordering`: the block of an answer that is kept back would be returned before the answer
            # is sent.
            is_suitable = self._ring is not None and model.order is None and model.sequences is None
            model.mirror = by_primary.get((name, model.version)) if is_suitable else None
            model.note_ends()
        for each in tuple(self._open.values()):
            if not each.given_ns and self._pairs.get(each.pair.pair) is not each.pair:
                self._drop(each, Drop.UNAVAILABLE)

    def counts(self) -> list[RequestsMirrored]:
        """The numbers of requests mirrored and dropped since the last call, for the supervisor."""
        counts, self._counts = self._counts, {}
        return [RequestsMirrored(*pair, dict(each)) for pair, each in counts.items()]

    def _count(self, pair: Pair, what: str) -> None:
        self._counts.setdefault(pair, Counter())[what] += 1

    # --- one request ---

    def choose(
        self, pair: _PairMirror, request: OpenRequest, answer: Answer, compute: statistics.Compute, now_ns: int,
        running: RunningBatch | None,
    ) -> bool:  # fmt: skip
        """Add an answered request to those that wait for the shadow. Returns False, and counts a drop, if there is no
        room or no shadow."""
        client, _, _, _, header, _, _, queued = request
        _, ref, span, _ = answer
        input_nbytes = sum(unpack_span(header))
        nbytes = input_nbytes + sum(unpack_span(span))
        shadow = self._shadows.get(pair.pair)
        if shadow is None or shadow.is_failed or self._pairs.get(pair.pair) is not pair:
            self._count(pair.pair, Drop.UNAVAILABLE.value)
            return False
        self._number = number = max(self._number + 1, now_ns >> _TICK_BITS)
        key = MIRROR_OWNER << NUMBER_BITS | number & _NUMBER_MASK
        if CLIENT_PARTS * (self._lent[client.owner] + input_nbytes) > client.slab.nbytes or not pair.queue.add(
            key, nbytes, now_ns, queued.rows, queued.shape_key
        ):
            self._count(pair.pair, Drop.FULL.value)
            return False
        batch = () if running is None or running.worker is None else (batch_words(running.worker, running, 0),)
        words = words_of(Outcome.OK, request, 0, compute, NO_REFUSAL, now_ns, *batch)
        self._open[key] = _Mirrored(pair, key, request, ref, span, words)
        self.is_busy = True
        self._holders.hold_part(ref, key)
        self._lent[client.owner] += input_nbytes
        return True

    def step(self, now_ns: int) -> bool:
        """Handle replies, drop requests that have waited for too long, and give the next requests of each pair to the
        shadow's scheduler, as one batch, if they may run now. Returns True if any was given: then form batches and call
        `step` again."""
        if self._client.replies:
            self._take_replies()
        was_given = False
        for pair in self._pairs.values():
            if not len(pair.queue):
                continue
            for key in pair.queue.expire(now_ns):
                self._drop(self._open[key], Drop.BUSY)
            shadow = self._shadows.get(pair.pair)
            if pair.primary is None or shadow is None or not pair.queue.num_waiting:
                continue
            for key in pair.queue.take(self._load(pair.primary), self._load(shadow), shadow.scheduler.batch_rows):
                if self._give(self._open[key], shadow, now_ns):
                    was_given = True
        for each in [each for each in self._open.values() if 0 < each.given_ns <= now_ns - PATIENCE_NS]:
            if not (each.is_executed or each.reply):
                each.is_executed = any(each.key in worker.missing for worker in self._workers.values())
                if not each.is_executed:
                    self._requests.cancel(each.key, now_ns)
        if self._client.replies:
            self._take_replies()
        return was_given

    def _load(self, model: ScheduledModel) -> Load:
        num_idle = sum([worker.model is model and not worker.missing for worker in self._workers.values()])
        return Load(model.scheduler.pending, num_idle)

    def _give(self, each: _Mirrored, shadow: ScheduledModel, now_ns: int) -> bool:
        if (why := self._hindrance(each)) is not None:
            self._drop(each, why)
            return False
        before = each.queued
        queued = QueuedRequest(each.key, before.rows, before.shape_key, now_ns)
        number = each.key & _NUMBER_MASK
        self._requests.by_key[each.key] = self._client, shadow, number, each.block, each.header, now_ns, now_ns, queued
        self._requests.last_chances[each.key] = None  # the request is not executed again if an instance dies
        each.shadow, each.given_ns = shadow, now_ns
        try:
            shadow.scheduler.add(queued, now_ns)
        except UnavailableError as error:
            self._requests.refuse(each.key, error, now_ns)
            return False
        self._count(each.pair.pair, "mirrored")
        self._requests.awake[shadow.id] = shadow
        return True

    def _hindrance(self, each: _Mirrored) -> Drop | None:
        """Why a request cannot be executed a second time: the block of the request or of its answer is gone, or a
        tensor is in a client's GPU memory, which the client may have changed since. None if it can be executed."""
        client = each.client
        if client is None or not each.answer or self._blocks.open(each.answer) is None:
            return Drop.GONE
        block = client.block(each.block)
        if block is None:
            return Drop.GONE
        offset, nbytes = unpack_span(each.header)
        try:
            layout, _ = split_header(bytes(block[offset : offset + nbytes]))
            inputs, _ = unpack_lent_layout(layout, lambda _ref: len(block))
            is_on_gpu = any(tensor.ref == ON_GPU or tensor.datatype & PLACED for tensor in inputs)
            is_on_gpu = is_on_gpu or bool(unpack_targets(layout))
        except ShoalError:
            return Drop.GONE
        return Drop.MEMORY if is_on_gpu else None

    def _take_replies(self) -> None:
        replies, self._client.replies = self._client.replies, []
        for reply in replies:
            number = reply[P.NUMBER]
            key = MIRROR_OWNER << NUMBER_BITS | number
            each = self._open.get(key)
            if each is None:
                self._adopted.discard(key)
                self.is_busy = bool(self._open or self._adopted)
                if ref := self._holders.release(key):
                    self._blocks.free(ref)
                self.return_all()
            elif reply[P.MORE]:
                # A shadow whose requests have several responses is refused by `unsuitable`.
                if ref := self._holders.release(key, reply[P.BLOCK]):
                    self._blocks.free(ref)
            else:
                each.reply = reply
                each.pair.queue.end(key)
                if reply[P.REASON] in _REFUSALS:
                    self._drop(each, Drop.BUSY if reply[P.REASON] == Reason.CANCELLED else Drop.UNAVAILABLE)
                else:
                    self._ended.append(each)

    # --- the comparator ---

    @property
    def has_ended(self) -> bool:
        """Whether there are pairs of answers to be copied."""
        return bool(self._ended)

    def compare(self) -> None:
        """Copy pairs of answers into the ring, at most about STEP_NBYTES bytes, and give all their blocks back."""
        copied_nbytes = 0
        while self._ended and copied_nbytes < STEP_NBYTES:
            each = self._ended.pop(0)
            if not each.answer:
                self._drop(each, Drop.MEMORY)
            elif each.client is None or self._blocks.open(each.answer) is None:
                self._drop(each, Drop.GONE)
            else:
                nbytes = self._copy(each)
                copied_nbytes += nbytes
                self._drop(each, None if nbytes else Drop.COMPARATOR)

    def _copy(self, each: _Mirrored) -> int:
        """Copy one pair; returns the bytes, 0 if the ring has no room."""
        before, after = each.pair.descriptions
        first = Noted(each.client, each.block, each.header, each.answer, each.span, 0, each.words)
        parts, nbytes, num = self._packer.pack(before, [first], is_sampled=True)
        reply, model = each.reply, each.shadow
        if not num or self._ring is None or model is None:
            return 0
        queue_ns, *computed = reply[P.QUEUE_START_NS : P.COMPUTE_END_NS + 1]
        start, input_ns, infer_ns, output_ns = computed
        status, reason = reply[P.STATUS], reply[P.REASON]
        outcome = Outcome.REFUSED if reason else Outcome.FAILED if status else Outcome.OK
        request = self._client, model, 0, each.block, each.header, each.given_ns, queue_ns, each.queued
        compute = (start, input_ns, infer_ns, output_ns)
        end_ns = start + input_ns + infer_ns + output_ns or each.given_ns
        words = words_of(outcome, request, status, compute, (reason, reply[P.DETAIL]), end_ns)
        second = Noted(None, 0, 0, reply[P.BLOCK], reply[P.HEADER], 0, words)
        more, num_more, _ = self._packer.pack(after, [second], is_sampled=True)
        head = entry.PAIR_HEAD.pack(nbytes)
        total = len(head) + nbytes + num_more
        return total if self._ring.push([head, *parts, *more], total) else 0

    # --- ends ---

    def _drop(self, each: _Mirrored, why: Drop | None) -> None:
        """Free the blocks of a mirrored request; `why` is the reason if it was not compared, else None."""
        del self._open[each.key]
        self.is_busy = bool(self._open or self._adopted)
        each.pair.queue.remove(each.key)
        each.pair.queue.end(each.key)
        if why is not None:
            self._count(each.pair.pair, why.value)
        self._release_answer(each)
        if ref := self._holders.release(each.key):
            self._blocks.free(ref)
        client = each.client
        if client is not None:
            self._lent[client.owner] -= sum(unpack_span(each.header))
            client.send(records.return_record(each.number))
            self._written.add(client)

    def _release_answer(self, each: _Mirrored) -> None:
        """Give the block of the primary's answer back."""
        ref, each.answer = each.answer, 0
        if ref and (unheld := self._holders.release(each.key, ref)):
            self._blocks.free(unheld)

    def give_back(self, worker: WorkerPeer) -> None:
        """Release the answers in the memory of a worker that lacks memory: these requests are not compared."""
        owners = {worker.owner} | {owner for owner, writer in self._blocks.results.items() if writer is worker}
        for each in tuple(self._open.values()):
            if each.answer and ref_owner(each.answer) in owners and not each.reply:
                if each.given_ns:
                    self._release_answer(each)
                else:
                    self._drop(each, Drop.MEMORY)

    def forget_client(self, owner: int) -> None:
        """Forget a dead client's requests; its memory is not read any more."""
        self._lent.pop(owner, None)
        self._owed.discard(owner)
        for each in tuple(self._open.values()):
            if each.client is not None and each.client.owner == owner:
                each.client = None
                if not each.given_ns:
                    self._drop(each, Drop.GONE)

    def next_deadline_ns(self) -> int | None:
        """When `step` must run again though no bell rings, in monotonic ns; None: never."""
        if self._ended:
            return 0
        due_ns = [each for pair in self._pairs.values() if (each := pair.queue.next_deadline_ns()) is not None]
        due_ns += [
            each.given_ns + PATIENCE_NS
            for each in self._open.values()
            if each.given_ns and not (each.is_executed or each.reply)
        ]
        return min(due_ns, default=None)

    # --- a take-over from a dead batcher ---

    def adopt(self, now_ns: int) -> None:
        """Take over the mirrored requests that workers execute for a dead batcher: front ends keep the blocks that they
        have lent until all those requests have ended."""
        for worker in self._workers.values():
            for item in worker.given():
                key = item[B.KEY]
                if key >> NUMBER_BITS != MIRROR_OWNER:
                    continue
                queued = QueuedRequest(key, item[B.ROWS], 0, now_ns)
                number, block, header = key & _NUMBER_MASK, item[B.BLOCK], item[B.HEADER]
                self._requests.by_key[key] = self._client, worker.model, number, block, header, now_ns, now_ns, queued
                self._requests.last_chances[key] = None
                self._adopted.add(key)
                self.is_busy = True

    def return_all(self, client: ClientPeer | None = None) -> None:
        """Return the blocks that clients have lent to a dead batcher, once no worker reads such a block for the dead
        batcher; `client` is a further client that has lent such blocks."""
        if client is not None:
            self._owed.add(client.owner)
        if self._adopted:
            return
        for owner in self._owed:
            if (lender := self._clients.get(owner)) is not None:
                lender.send(records.return_record(0))
                self._written.add(lender)
        self._owed.clear()
