"""What the supervisor sends the batcher (batcher/batcher.py).

    BatcherActivated first, once a batcher that stands by is to serve; then all others, at any time
    To a successor: models and ensembles ─► clients and workers, the dead ones too ─► Resume ─► ClientCaughtUp, …

The batcher applies each between two turns of its loop and acknowledges what has a sequence number. Whatever it has
learned from a message before, it knows when it acknowledges a later one. What it answers is in from_batcher.py.
"""

from collections.abc import Sequence
from typing import Any

from shoal.messages.message import Fd, Kinds, Message
from shoal.messages.shared import LogSettings


class BatcherActivated(Message):
    """The batcher serves from now on, with these settings; the first message to a process that stands by."""

    log: LogSettings
    max_queue_size: int
    max_in_flight: int
    deadline_ns: int
    counts_first_responses: bool
    cache_bytes: int
    redis: Sequence[Any] | None  # RedisSettings
    is_successor: bool  # it takes a dead batcher's place, and serves once it gets Resume
    rate_limits: Sequence[Any] | None  # Limit of each resource; None without --rate-limit
    latency_target_ms: int
    bell: Fd  # the batcher's own, beside one for each client and worker
    counters: Fd  # the table of counters, which it writes


class Resume(Message):
    """A successor has heard of all clients and workers, and serves from now on."""


class BatcherMemoryMade(Message):
    """The batcher has memory of its own: for headers of ensembles' steps, and for cached responses."""

    segment: Fd  # writable


class ClientJoined(Message):
    """A client submits requests from now on: a front end, a worker whose model calls others, or a guest."""

    owner: int
    segment: Fd  # what the client writes, to read
    link: Fd  # what the batcher writes for the client
    bell: Fd  # wakes the client; a guest's is one for both
    clients_bell: Fd | None  # wakes the batcher; None for a guest
    is_guest: bool = False
    is_caller: bool = False
    is_late: bool = False  # to a successor: the client has yet to send again what it waits for and holds


class ClientCaughtUp(Message):
    """To a successor: a late client has sent again what it waits for and holds."""

    owner: int


class ClientLeft(Message):
    """A client is dead: its requests are dropped, and what it held is released."""

    owner: int


class ModelAdded(Message):
    """A model version has a queue from now on."""

    model_id: int
    row: int  # of the table of counters
    config: dict[str, Any]
    version: int
    may_run_again: bool
    revision: str  # its name in a cache that servers share
    groups: list[str]  # names of its instance groups, by number


class InstanceGroupsChanged(Message):
    """A model version has other instance groups."""

    model_id: int
    groups: list[str]


class ModelFailed(Message):
    """No instance of a model version lives: what is queued for it is refused."""

    model_id: int


class RetireModel(Message):
    """A model version gets no more requests; ModelRetired answers when nothing of it is queued or running."""

    model_id: int


class ModelRemoved(Message):
    """Nothing is left of a model version."""

    model_id: int


class EnsembleAdded(Message):
    """A version of an ensemble takes requests from now on."""

    model_id: int
    row: int  # of the table of counters
    config: dict[str, Any]
    version: int
    models: list[int]  # the model ids of its steps, in order
    decoupled: Sequence[int]  # which steps may answer any number of times
    may_run_again: bool
    revision: str  # its name in a cache that servers share


class EnsembleRelinked(Message):
    """The steps of an ensemble mean other versions of their models."""

    model_id: int
    models: list[int]
    decoupled: Sequence[int]
    may_run_again: bool
    revision: str


class PayloadAnnounced(Message):
    """A segment holds one payload that the batcher must know: a worker's result, or a request to an ensemble."""

    owner: int
    writer: int  # the owner id of the worker or client that writes it
    is_result: bool
    segment: Fd  # to read


class WorkerJoined(Message):
    """A worker has its memory, and gets batches once it is WorkerReady."""

    owner: int
    model_id: int
    demand: Sequence[Any] | None  # Demand, under --rate-limit
    segment: Fd  # what the worker writes, to read
    link: Fd  # what the batcher writes for the worker
    bell: Fd  # wakes the worker
    workers_bell: Fd  # wakes the batcher


class WorkerReady(Message):
    """All readers have mapped a worker's memory: it gets batches from now on."""

    owner: int


class WorkerCaughtUp(Message):
    """To a successor: a worker has answered what it held, so its ring is looked into."""

    owner: int


class RetireWorker(Message):
    """A worker gets no more batches; WorkerRetired answers when it has none left."""

    owner: int


class WorkerDied(Message):
    """A worker is dead: what it has answered is passed on before this is acknowledged, the rest fails or runs again."""

    owner: int
    reason: int  # a Reason, and its detail, for the replies
    detail: int


class ExplainModel(Message):
    """Why the last batches of a model version had their size is asked; ModelExplained answers before this is
    acknowledged, unless the version is gone."""

    model_id: int


#: To a batcher that stands by.
TO_STANDBY = Kinds(BatcherActivated)
