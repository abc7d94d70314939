"""Micro-batching: a batch in small parts, of which one is preprocessed while another is in the model."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ts.context import Context

STAGES = ("preprocess", "inference", "postprocess")


class _Part(NamedTuple):
    number: int
    data: Any
    results: queue.SimpleQueue[_Part]  # the queue for finished parts of the batch that this part belongs to
    error: BaseException | None = None


class MicroBatching:
    """A handler's `handle` that splits a batch into parts of `micro_batch_size` requests. Each stage (preprocess,
    inference, postprocess) has threads of its own; results are in the order of the requests.

    A handler's constructor usually sets it: `self.handle = MicroBatching(self)`.
    """

    def __init__(
        self, parent_handler: Any, micro_batch_size: int = 1, parallelism: Mapping[str, int] | None = None
    ) -> None:
        self.handler = parent_handler
        self._micro_batch_size = micro_batch_size
        self._parallelism = {**dict.fromkeys(STAGES, 1), **(parallelism or {})}
        self._local = threading.local()
        self._lock = threading.Lock()
        # These fields are changed by `_start` and `shutdown`.
        self._queues: list[queue.SimpleQueue[_Part | None]] = []
        self._threads: list[tuple[int, threading.Thread]] = []

    @property
    def parallelism(self) -> dict[str, int]:
        """The number of threads of each stage."""
        return self._parallelism

    @parallelism.setter
    def parallelism(self, parallelism: Mapping[str, int]) -> None:
        """Set the number of threads of the named stages; other stages keep theirs. Raises ValueError for unknown stages
        and for numbers below 1."""
        for stage, number in parallelism.items():
            if stage not in STAGES or type(number) is not int or number < 1:
                raise ValueError(f"parallelism is a number of threads for {', '.join(STAGES)}, got {parallelism}")
        self.shutdown()
        self._parallelism = {**self._parallelism, **parallelism}

    @property
    def micro_batch_size(self) -> int:
        """The number of requests in a part."""
        return self._micro_batch_size

    @micro_batch_size.setter
    def micro_batch_size(self, size: int) -> None:
        if type(size) is not int or size < 1:
            raise ValueError(f"micro_batch_size must be a number of requests, got {size!r}")
        self._micro_batch_size = size

    def get_micro_batch_idx(self) -> int | None:
        """The number, within its batch, of the part that this thread is executing; None if it executes none."""
        return getattr(self._local, "number", None)

    def shutdown(self) -> None:
        """End the threads of each stage, once they have executed all parts that were given to them."""
        with self._lock:
            for stage, parts in enumerate(self._queues):
                threads = [thread for number, thread in self._threads if number == stage]
                for _ in threads:
                    parts.put(None)
                for thread in threads:  # before the next stage ends, which gets this stage's last parts
                    thread.join()
            self._queues, self._threads = [], []

    def __call__(self, data: Any, context: Context) -> Any:
        """The handler's results for a batch."""
        self.handler.context = context
        is_describe = getattr(self.handler, "_is_describe", None)
        if is_describe is not None and is_describe():
            return [self.handler.describe_handle()]
        is_explain = getattr(self.handler, "_is_explain", None)
        if is_explain is not None and is_explain():
            return self.handler.explain_handle(self.handler.preprocess(data), data)
        return self.handle(data)

    def handle(self, data: Any) -> list[Any]:
        """The results of a batch. If parts have failed, raises the error of the first of them."""
        self._start()
        results: queue.SimpleQueue[_Part] = queue.SimpleQueue()
        size = self._micro_batch_size
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        for index, part in enumerate(parts):
            self._queues[0].put(_Part(index, part, results))
        done = sorted((results.get() for _ in parts), key=lambda part: part.number)
        for part in done:
            if part.error is not None:
                raise part.error
        return [result for part in done for result in part.data]

    def _start(self) -> None:
        with self._lock:
            if self._threads:
                return
            self._queues = [queue.SimpleQueue() for _ in STAGES]
            for number, stage in enumerate(STAGES):
                following = self._queues[number + 1] if number + 1 < len(STAGES) else None
                for _ in range(self._parallelism[stage]):
                    work = (getattr(self.handler, stage), self._queues[number], following)
                    thread = threading.Thread(target=self._run, args=work, name=stage, daemon=True)
                    thread.start()
                    self._threads.append((number, thread))

    def _run(
        self,
        work: Callable[[Any], Any],
        parts: queue.SimpleQueue[_Part | None],
        following: queue.SimpleQueue[_Part | None] | None,
    ) -> None:
        while (part := parts.get()) is not None:
            self._local.number = part.number
            try:
                part = part._replace(data=work(part.data))
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that has the batch
                part.results.put(part._replace(error=error))
                continue
            if following is None:
                part.results.put(part)
            else:
                following.put(part)
