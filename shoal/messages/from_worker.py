"""Messages from a worker to the supervisor (supervisor/models/worker.py). Values of fields may be anything, since user
code may have written them.

WorkerConnected ─► [ModelIOFound] ─► ModelLoaded ─► MemoryMapped ─► all others, at any time

shared.Refused, the last message, may take the place of ModelIOFound or ModelLoaded.
"""

from collections.abc import Sequence
from typing import Any

from shoal.messages.message import Message
from shoal.messages.shared import Config


class WorkerConnected(Message):
    """The process of this instance has connected, and waits for LoadModel."""

    instance: int


class ModelIOFound(Message):
    """The tensors found in the model's file; the worker waits for ConfigFinished."""

    inputs: Sequence[tuple[str, str, Sequence[int]]]  # name, datatype, dims of each
    outputs: Sequence[tuple[str, str, Sequence[int]]]
    completed: Config | None  # the configuration as a model.py has completed it
    fills_max_batch_size: bool  # False: the file does not say whether its first dimensions are a batch


class ModelLoaded(Message):
    """The model is loaded and warm; the worker waits for MemoryGranted."""

    has_ready_check: bool  # the model has an is_ready of its own


class MemoryMapped(Message):
    """The worker has mapped its segment; the supervisor may now seal it and announce it to clients."""


class MetricsReported(Message):
    """Changes of the model's own metrics: CustomMetrics.add checks them, since user code may have written them."""

    families: Any


class ReadyAnswered(Message):
    """Whether the model says that it is ready; answers CheckReady."""

    is_ready: bool
