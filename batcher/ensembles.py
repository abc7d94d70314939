"""Requests to ensembles: each is answered by requests to other models, whose tensors are passed on by reference.

The batcher is its own client here: a step's request has a header in the batcher's own slab, goes into its model's queue
like a client's, and its reply is handled in the same process. A step's result is held until the last step that reads
the result has ended, and by the client whose response it is part of. `scheduling/ensemble.py` decides which step runs
when.
"""

from collections.abc import Callable, Collection, Sequence

from shoal.batcher import statistics
from shoal.batcher.blocks import Blocks
from shoal.batcher.ensemble import NO_POINTS, Ensemble, EnsembleRun, Iteration, StepClient, Steps
from shoal.batcher.holders import Holders
from shoal.batcher.open_requests import OpenRequests
from shoal.batcher.passed_on import EnsembleRequests
from shoal.batcher.peers import ScheduledModel
from shoal.batcher.scheduling.queue import QueuedRequest
from shoal.batcher.statistics import OTHER
from shoal.batcher.step_headers import NoStepMemoryError, allocate
from shoal.batcher.step_results import StepResults, refusal
from shoal.deterministic import ALONE_KEY
from shoal.errors import InternalError, ShoalError, UnavailableError
from shoal.reasons import Reason, error_for
from shoal.shm.layout import NO_DIGEST, P, pack_span, ref_owner, unpack_span
from shoal.shm.ring import Record
from shoal.shm.segment import Segment
from shoal.shm.slab import Slab
from shoal.star.request_digest import lent_request_digest

_NUMBER, _START_NS, _MORE = P.NUMBER, P.COMPUTE_START_NS, P.MORE
# Words of a step's reply (StepClient.times): when the step was accepted, and how long each part has taken, in ns.
_QUEUE_NS, _INPUT_NS, _INFER_NS, _OUTPUT_NS = P.QUEUE_START_NS, P.INPUT_END_NS, P.OUTPUT_START_NS, P.COMPUTE_END_NS
#: Most bytes of a guest's request header, which the batcher unpacks before it has been checked (ours).
MAX_GUEST_HEADER_BYTES = 16 << 10


class Ensembles:
    """All requests to ensembles that are in progress."""

    def __init__(
        self,
        models: dict[int, ScheduledModel],
        requests: OpenRequests,
        holders: Holders,
        blocks: Blocks,
        *,
        wall: statistics.WallClock,
        send_cancel: Callable[[int, ScheduledModel], None],
        on_shortage: Callable[[int], None],
    ) -> None:
        """Work on the exchange's models and tables. `send_cancel` is called with a cancelled request's key and
        model, `on_shortage` with the time (monotonic ns) once requests have failed for lack of the batcher's own
        memory."""
        self._models = models
        self._requests = requests
        self._holders = holders
        self._wall = wall
        self._blocks = blocks
        self._asked = EnsembleRequests()
        self._results = StepResults(blocks, holders)
        self._send_cancel = send_cancel
        self._on_shortage = on_shortage
        self._is_short = False  # a request has failed for lack of memory; changed by _answer_error and advance
        # Changed by add, remove and advance: ensembles by model id; the number of the last step's request; open steps.
        self._ensembles: dict[int, Ensemble] = {}
        self._news: list[Ensemble] = []  # ensembles with new or cancelled requests
        self._number = 0
        #: Whether there is no ensemble, and no step in progress: then the exchange need not call `advance`.
        self.are_idle = True
        self._steps: Steps = {}
        # Set by connect.
        self._client = StepClient(0, self._steps)

    # --- called by the exchange ---

    def connect(self, segment: Segment) -> None:
        """Take the batcher's own memory into use. All processes that read this segment have mapped it, or can ask
        for it."""
        self._blocks.connect(segment)
        self._client = StepClient(segment.header.owner, self._steps)

    def add(self, ensemble: Ensemble) -> None:
        """Accept requests for an ensemble from now on."""
        self._ensembles[ensemble.id] = ensemble
        ensemble.known = self._models
        ensemble.runs.on_news = lambda: self._news.append(ensemble)
        self.are_idle = False

    def remove(self, model_id: int, now_ns: int) -> None:
        """Accept no more requests for an ensemble; its requests in progress have been refused before."""
        ensemble = self._ensembles.pop(model_id, None)
        for run in () if ensemble is None else ensemble.runs.abandoned:
            self._drop(run, now_ns)

    def relink(self, model_id: int, models: list[int], decoupled: Collection[int] = (), *, may_run_again: bool) -> None:
        """Change the models of an ensemble's steps, for requests that begin from now on. `may_run_again`: whether a
        request to the ensemble may be executed a second time."""
        ensemble = self._ensembles.get(model_id)
        if ensemble is not None:
            ensemble.link(models, decoupled)
            ensemble.may_run_again = may_run_again

    @property
    def in_use(self) -> set[int]:
        """Ids of the ensembles with requests in progress, and of the models of their steps."""
        open_runs = [each for ensemble in self._ensembles.values() for each in ensemble.runs.open.values()]
        used = {model_id for each in open_runs for model_id in each.models}
        return used | {each.ensemble.id for each in open_runs}

    def running(self, key: int, ensemble: ScheduledModel) -> list[tuple[int, ScheduledModel]]:
        """The steps of a request that are queued or running: their keys and models."""
        run = ensemble.runs.open.get(key) if isinstance(ensemble, Ensemble) else None
        iterations = () if run is None else run.iterations
        keys = [self._client.first_key + number for each in iterations for number in each.asked]
        return [(each, self._requests.by_key[each][1]) for each in keys if each in self._requests.by_key]

    def lose(self, owners: set[int], reason: Reason, detail: int, model: ScheduledModel, now_ns: int) -> None:
        """Fail the requests that still need a result in the segments `owners`, which a dead instance wrote."""
        error = refusal(model, reason, detail, "")
        for ensemble in self._ensembles.values():
            for run in tuple(ensemble.runs.open.values()):
                results = [result for each in run.iterations for result in each.results.values()]
                if any(ref_owner(ref) in owners for _, refs, _, _ in results for ref in refs):
                    self._fail(run, error, now_ns)

    # --- requests and steps ---

    @property
    def have_no_news(self) -> bool:
        """Whether `advance` has nothing to do: no new, cancelled or answered request."""
        return not (self._client.replies or self._news)

    def advance(self, now_ns: int) -> None:
        """Begin new requests, and continue those whose steps were answered, until all requests wait for other
        processes."""
        while not self.have_no_news:
            while self._news:
                ensemble = self._news.pop()
                runs = ensemble.runs
                arrived, runs.arrived = runs.arrived, []
                for queued in arrived:
                    self._begin(ensemble, queued, now_ns)
                abandoned, runs.abandoned = runs.abandoned, []
                for run in abandoned:
                    self._drop(run, now_ns)
            replies, self._client.replies = self._client.replies, []
            for reply in replies:
                self._receive(reply, now_ns)
        self._results.forget()
        if self._is_short:
            self._is_short = False
            self._on_shortage(now_ns)
        self.are_idle = not (self._ensembles or self._steps)

    def _begin(self, ensemble: Ensemble, queued: QueuedRequest, now_ns: int) -> None:
        request = self._requests.by_key.get(queued.key)
        if request is None:
            return
        client, _, _, ref, span, _, _, _ = request
        try:
            block = self._blocks.open(ref)
            if block is None:
                raise InternalError(
                    f"a request to model '{ensemble.name}' is gone: its block of shared memory was freed"
                )
            offset, nbytes = unpack_span(span)
            if client.is_guest and nbytes > MAX_GUEST_HEADER_BYTES:
                raise UnavailableError(f"a header of {nbytes} bytes is too large for an ensemble; send it over HTTP")
            header = block[offset : offset + nbytes].tobytes()  # a copy: a guest may change the block
            asked, tensors = self._asked.read(header, ref, len(block), self._nbytes)
            if client.is_guest and not all(
                self._blocks.is_of(client.owner, lies) for _, _, lies, _ in tensors.values()
            ):
                raise InternalError("a client's request names memory that is not the client's")
        except ShoalError as error:
            self._answer_error(ensemble, queued.key, error, (now_ns, 0, 0, 0), now_ns)
            return
        asker = self._steps[queued.key - client.first_key][0] if client is self._client else None
        run = EnsembleRun(ensemble, queued, asked, tensors, self._own, client, asker)
        ensemble.runs.open[queued.key] = run
        self._start(run, run.root, run.plan.started, now_ns)

    def _start(self, run: EnsembleRun, iteration: Iteration, steps: Sequence[int], now_ns: int) -> None:
        ensemble = run.ensemble
        for step in steps:
            if run.is_over:
                return
            if ensemble.max_inflight and ensemble.num_inflight[step] >= ensemble.max_inflight:
                ensemble.parked[step].append((run, iteration))
                continue
            try:
                self._ask(run, iteration, step, now_ns)
            except ShoalError as error:
                self._fail(run, error, now_ns)
        if not steps and iteration.is_over:
            self._end(run, iteration, now_ns)

    def _unpark(self, ensemble: Ensemble, step: int, now_ns: int) -> None:
        """Note that a request to a step has ended, and start the step for iterations that wait because too many
        requests to it were open."""
        ensemble.num_inflight[step] -= 1
        parked = ensemble.parked[step]
        while parked and ensemble.num_inflight[step] < ensemble.max_inflight:
            run, iteration = parked.popleft()
            if not run.is_over:
                self._start(run, iteration, [step], now_ns)

    def _ask(self, run: EnsembleRun, iteration: Iteration, step: int, now_ns: int) -> None:
        """Put a step's request into its model's queue. Raises ShoalError if the model is not served, or the step's
        inputs do not fit the model."""
        ensemble, model = run.ensemble, self._models.get(run.models[step])
        if model is None or model.is_failed:
            failed = model is not None and model.is_failed
            raise UnavailableError(
                f"Request for unknown model: a model of step {step} is "
                + ("unavailable: all its instances died again and again" if failed else "not at ready state")
            )
        rows, shape_key, header = run.plan.requests[step].write(model.id, model.signature, run.asked, iteration.tensors)
        sharing = model.sharing if run.outermost.is_front_end else None
        digest = NO_DIGEST if sharing is None else lent_request_digest(header, self._blocks.open)
        ref, span = iteration.headers.add(header)
        self._number = number = self._number + 1
        key = self._client.first_key + number
        whole = run.queued
        is_alone = whole.shape_key >= ALONE_KEY
        if is_alone:
            shape_key = ALONE_KEY | key
            if model.sequences is not None:
                raise error_for(Reason.NOT_ALONE, model=model.signature.name, version=model.version, request_id="")
        timeout_us = whole.timeout_us
        if timeout_us:
            timeout_us = max(1, timeout_us - (now_ns - whole.arrival_ns) // 1000)
        if whole.deadline_ns:
            model.heed_deadlines()
        mine = QueuedRequest(
            key, rows, shape_key, now_ns, whole.priority, timeout_us, whole.deadline_ns, whole.correlation, whole.flags
        )
        self._requests.by_key[key] = (self._client, model, number, ref, span, now_ns, now_ns, mine)
        self._steps[number] = (run, iteration, step, model, now_ns)
        iteration.asked.add(number)
        if ensemble.max_inflight:
            ensemble.num_inflight[step] += 1
        # A request that runs alone is not answered by the cache: its header, and so its digest, does not say that it
        # runs alone.
        if sharing is not None and not is_alone and sharing.take(model, mine, digest):
            return
        self._requests.enqueue(model, mine, now_ns)

    # --- replies of steps ---

    def _receive(self, reply: Record, now_ns: int) -> None:
        """Handle a reply to a step's request: the only one or, if the step is decoupled, one of several."""
        number, is_last = reply[_NUMBER], not reply[_MORE]
        run, iteration, step, model, asked_ns = self._steps[number]
        ensemble = run.ensemble
        result = self._results.take(self._client.first_key + number, reply)
        if is_last:
            del self._steps[number]
            iteration.asked.remove(number)
            if ensemble.max_inflight:
                self._unpark(ensemble, step, now_ns)
        if run.is_over:
            self._results.release(result)
            self._forget(iteration)
            return
        is_decoupled = step in run.graph.decoupled
        if is_last and run.outermost.traced and (trace := run.trace_of_steps) is not None:
            key = self._client.first_key + number
            compute = reply[_START_NS], reply[_INPUT_NS], reply[_INFER_NS], reply[_OUTPUT_NS]
            times = asked_ns, reply[_QUEUE_NS], *(model.points(compute) if compute[0] else NO_POINTS)
            self._requests.send_child_trace(trace, key, model, times, now_ns, is_decoupled_step=is_decoupled)
        if is_decoupled and is_last and not (reply[P.HEADER] or reply[P.REASON] or reply[P.STATUS]):
            self._results.release(result)
            self._advance(run, iteration, step, (), now_ns)  # a reply without a response: the end of a decoupled step
            return
        reader = run.branch(iteration, step) if is_decoupled else iteration
        reader.results[step] = result
        try:
            if not (is_decoupled or is_last):
                raise InternalError("a step answers more than once, and was not decoupled when the request began")
            written, parameters = self._results.read(
                model, ensemble.responses[step], reply, result, run.asked, reader.tensors
            )
        except ShoalError as error:
            self._fail(run, error, now_ns)
            return
        if is_last and reply[_START_NS]:
            run.computed.append(reply[_START_NS:_MORE])
        if parameters:
            reader.parameters = {**reader.parameters, **parameters}
        if is_last:  # before `_advance`, so that the iteration which the last response starts can be the request's last
            self._advance(run, iteration, step, () if is_decoupled else written, now_ns)
        if is_decoupled:
            _, started = run.plan.branches[step]
            self._start(run, reader, started, now_ns)

    def _advance(
        self, run: EnsembleRun, iteration: Iteration, step: int, written: tuple[str, ...], now_ns: int
    ) -> None:
        """Start the steps that are ready now that `step` has ended, and release results that no step needs any more."""
        if run.is_over:
            return
        iteration.stage, started, unneeded = iteration.stage.after(step, written)
        self._start(run, iteration, started, now_ns)
        for each in unneeded:
            if each in iteration.results:
                self._results.release(iteration.results.pop(each))

    # --- ends of requests ---

    def _end(self, run: EnsembleRun, iteration: Iteration, now_ns: int) -> None:
        """End an iteration if no step runs in it or in the iterations begun by it: the outputs that come from it are
        sent. Then end the iterations that have waited for its end only."""
        while iteration.is_over and not run.is_over:
            if iteration.origin == run.plan.origin:
                try:
                    self._answer(run, iteration, now_ns)
                except ShoalError as error:
                    self._fail(run, error, now_ns)
                    return
            parent = iteration.parent
            if parent is None:
                self._finish(run, now_ns)
                return
            self._forget(iteration)
            run.iterations.discard(iteration)
            parent.num_beneath -= 1
            iteration = parent

    def _answer(self, run: EnsembleRun, iteration: Iteration, now_ns: int) -> None:
        """Send the client the outputs of an iteration, as the only response or one of several. Raises ShoalError if
        the header does not fit into memory."""
        ensemble, key = run.ensemble, run.key
        outputs, tensors = run.plan.outputs, iteration.tensors
        try:
            passed = [tensors[name] for name in outputs]
        except KeyError:
            outputs = ensemble.without_left_out(outputs, tensors)
            passed = [tensors[name] for name in outputs]
        pieces, header = ensemble.answers.write(outputs, passed, iteration.parameters)
        ref, span = iteration.headers.end_with(pieces, header)
        for piece in pieces:
            self._holders.hold_part(piece, key)
        if iteration.is_last:
            run.answer = (ref, span, len(pieces))
        elif self._requests.respond(key, 0, ref, span, now_ns, len(pieces)) is not None:
            self._close(run, now_ns)  # the request has failed: too many of its replies wait for the client

    def _finish(self, run: EnsembleRun, now_ns: int) -> None:
        """Send the final reply. The final reply is empty if the last response was sent before it was known to be the
        last."""
        compute = run.compute()
        statistics.count_execution(run.ensemble.row, run.queued.rows, compute, now_ns + self._wall.offset_ns)
        ref, span, num_pieces = run.answer
        self._requests.answer(run.key, 0, ref, span, compute, now_ns, num_pieces)
        self._close(run, now_ns)

    def _fail(self, run: EnsembleRun, error: ShoalError, now_ns: int) -> None:
        self._answer_error(run.ensemble, run.key, error, run.compute(), now_ns)
        self._close(run, now_ns)

    def _answer_error(
        self, ensemble: Ensemble, key: int, error: ShoalError, compute: statistics.Compute, now_ns: int
    ) -> None:
        sentence = f"in ensemble '{ensemble.name}', {error}".encode()
        try:
            if isinstance(error, NoStepMemoryError):
                raise error
            block = allocate(self._own, len(sentence))
        except NoStepMemoryError:
            self._is_short = True
            self._requests.fail(key, Reason.NO_STEP_MEMORY, now_ns, OTHER)
            return
        block.memory[: len(sentence)] = sentence
        self._requests.answer(key, error.wire, block.ref, pack_span(0, len(sentence)), compute, now_ns)

    def _close(self, run: EnsembleRun, now_ns: int) -> None:
        run.ensemble.runs.open.pop(run.key, None)
        self._requests.wake(run.ensemble)
        self._drop(run, now_ns)

    def _drop(self, run: EnsembleRun, now_ns: int) -> None:
        """Cancel a request's steps; the results of steps that instances are executing are dropped when they come."""
        run.is_over = True
        for iteration in run.iterations:
            for number in iteration.asked:
                key = self._client.first_key + number
                model = self._requests.cancel(key, now_ns)
                if model is not None:
                    self._send_cancel(key, model)
            self._forget(iteration)
        run.iterations.clear()

    def _forget(self, iteration: Iteration) -> None:
        """Release an ended iteration's results, and the headers of its steps once no worker may read them."""
        for result in iteration.results.values():
            self._results.release(result)
        iteration.results.clear()
        if not iteration.asked:
            iteration.headers.free()

    # --- memory ---

    @property
    def _own(self) -> Slab:
        assert self._blocks.own is not None, "the supervisor gives memory before it tells of an ensemble"
        return self._blocks.own

    def _nbytes(self, ref: int) -> int:
        block = self._blocks.open(ref)
        return 0 if block is None else len(block)
