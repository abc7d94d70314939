"""What a worker sends the supervisor (supervisor/models/worker.py): user code runs in it, so this may be anything.

WorkerConnected ─► [ModelIOFound] ─► ModelLoaded or Refused, which ends it ─► MemoryMapped ─► all others, at any time
"""

from collections.abc import Sequence
from typing import Any

from shoal.messages.message import Message


class WorkerConnected(Message):
    """The process of this instance waits for LoadModel."""

    instance: int


class ModelIOFound(Message):
    """The model's file has these tensors; the worker waits for ConfigFinished."""

    inputs: Sequence[tuple[str, str, Sequence[int]]]  # name, data type, dims of each
    outputs: Sequence[tuple[str, str, Sequence[int]]]
    completed: dict[str, Any] | None  # what a model.py has made of its configuration
    fills_max_batch_size: bool


class ModelLoaded(Message):
    """The model is loaded and warm; the worker waits for MemoryGranted."""

    has_ready_check: bool  # the model says by itself whether it is ready


class MemoryMapped(Message):
    """The worker has mapped its memory, which may be sealed and announced."""


class MetricsReported(Message):
    """The model's own metrics have changed: see CustomMetrics.add, which checks what user code may have written."""

    families: Any


class ReadyAnswered(Message):
    """The model says whether it is ready; answers CheckReady."""

    is_ready: bool
