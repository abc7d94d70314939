"""What a recording is replayed against: a running server, or the models of a repository, executed in this process."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from shoal.cli.recorded_inputs import recorded_inputs
from shoal.cli.replay_comparison import Answer
from shoal.errors import ConnectionLostError, InvalidArgumentError, ShoalError, TimedOutError
from shoal.model_config.messages import Config
from shoal.model_config.signature import Signature
from shoal.sequences import END, START

if TYPE_CHECKING:
    from shoal.client.sync import Client
    from shoal.recorder.recorded import RecordedRequest
    from shoal.testing import Server
    from shoal.testing.future import Future as LocalFuture

#: The most requests sent or waiting for their sequence at a time; further ones wait and are reported as late (ours).
MAX_OPEN = 256


def _arguments(request: "RecordedRequest") -> dict[str, Any]:
    """The arguments for a recorded request that a Client and the server of shoal.testing have in common."""
    correlation_id, flags = request.sequence
    sequence = {"sequence_id": correlation_id, "sequence_start": bool(flags & START), "sequence_end": bool(flags & END)}
    return {
        "outputs": list(request.requested_outputs),
        "parameters": dict(request.parameters),
        "request_id": request.id,
        "priority": request.priority,
        **(sequence if correlation_id else {}),
    }


class RunningServer:
    """A running server. Requests are sent open loop: each at its time, whether earlier ones are answered or not; only
    the requests of one sequence wait for each other."""

    def __init__(self, client: "Client", version: int | None) -> None:
        self._client = client
        self._version = "" if version is None else str(version)
        # Changed by replay: the last request of each sequence, by model and correlation id; the models' configurations.
        self._last: dict[tuple[str, int | str], Future[Answer]] = {}
        self._configs: dict[str, Config] = {}
        self._is_lost = threading.Event()

    def replay(self, requests: "Sequence[RecordedRequest]", speed: float) -> list[Answer]:
        """Send the requests `speed` times as fast as they were recorded, with speed 0 as fast as answers come, at most
        MAX_OPEN at once; returns their answers. Raises ConnectionLostError if the server is gone, TimedOutError if it
        does not answer the first request, for a model's configuration."""
        self._configs = {name: self._config(name) for name in {each.model for each in requests}}
        first_ns = min([each.points.start_ns for each in requests])
        with ThreadPoolExecutor(MAX_OPEN) as pool:
            begun_ns, futures = time.monotonic_ns(), []
            for request in sorted(requests, key=lambda each: each.points.start_ns):
                due_ns = begun_ns + (round((request.points.start_ns - first_ns) / speed) if speed else 0)
                if self._is_lost.wait(max(0, due_ns - time.monotonic_ns()) / 1e9):
                    break
                sequence = request.model, request.sequence[0]
                before = self._last.get(sequence) if request.sequence[0] else None
                future = pool.submit(self._ask, request, due_ns if speed else 0, before)
                if request.sequence[0]:
                    self._last[sequence] = future
                futures.append((request.number, future))
            answers = {number: future.result() for number, future in futures}
        return [answers[each.number] for each in requests]

    def _config(self, model: str) -> Config:
        """The configuration of a model; empty if the server has none of that name. Raises ConnectionLostError or
        TimedOutError if the server does not answer."""
        try:
            return self._client.model_config(model, version=self._version)
        except (ConnectionLostError, TimedOutError):
            raise
        except ShoalError:
            return {}

    def _ask(self, request: "RecordedRequest", due_ns: int, before: "Future[Answer] | None") -> Answer:
        """Send a request once `before`, the previous request of its sequence, is answered; returns its answer.
        `due_ns`: the monotonic time at which the request was due; 0: no due time."""
        if before is not None:
            before.result()
        arguments = {**_arguments(request), "version": self._version}
        arguments["outputs"] = arguments["outputs"] or None  # None asks for all outputs
        answer, config = Answer(), self._configs[request.model]
        try:
            inputs = recorded_inputs(request, Signature.from_config(config) if config else None)
        except ValueError as error:
            answer.error = InvalidArgumentError(f"the recorded inputs cannot be read: {error}")
            return answer
        start_ns = time.monotonic_ns()
        answer.late_ns = max(0, start_ns - due_ns) if due_ns else 0
        try:
            if len(request.responses) > 1 or config.get("model_transaction_policy", {}).get("decoupled"):
                answer.responses = [dict(each) for each in self._client.stream(request.model, inputs, **arguments)]
            else:
                answer.responses = [dict(self._client.infer(request.model, inputs, **arguments))]
        except ConnectionLostError:
            self._is_lost.set()
            raise
        except ShoalError as error:
            answer.error = error
        answer.time_ns = time.monotonic_ns() - start_ns
        return answer


class LocalModels:
    """The models of a repository, executed in this process by shoal.testing's server on a simulated clock. Executes the
    requests of each `replay_batch` as one batch, in their order, where the model's configuration allows it."""

    def __init__(self, server: "Server", version: int | None) -> None:
        self._server = server
        self._version = version
        #: The number of recorded batches that were not executed as one batch here.
        self.num_split = 0

    def replay_batch(self, batch: "Sequence[RecordedRequest]") -> list[Answer]:
        """Execute requests as one batch, or as several if the model's configuration does not allow one; returns
        their answers."""
        answers = [Answer() for _ in batch]
        futures: list[LocalFuture | None] = []
        num_before = len(self._server.batches)
        for request, answer in zip(batch, answers, strict=True):
            try:
                arguments = {**_arguments(request), "version": self._version}
                signature = Signature.from_config(self._server.config(request.model, self._version))
                inputs = recorded_inputs(request, signature)
                futures.append(self._server.submit(request.model, inputs, **arguments))
            except (ShoalError, ValueError) as error:
                answer.error = error if isinstance(error, ShoalError) else InvalidArgumentError(str(error))
                futures.append(None)
        start_ns = time.monotonic_ns()
        for future, answer in zip(futures, answers, strict=True):
            if future is None:
                continue
            try:
                answer.responses = [dict(each.outputs) for each in future.results()]
            except ShoalError as error:
                answer.error = error
            answer.time_ns = time.monotonic_ns() - start_ns
        if batch[0].execution is not None:
            executed = [each for each in self._server.batches[num_before:] if each.model == batch[0].model]
            self.num_split += len(executed) != 1 or len(executed[0].request_ids) != len(batch)
        return answers
