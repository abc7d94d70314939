"""Messages from the supervisor to the batcher (batcher/batcher.py).

    BatcherActivated first, when a standby is to serve; then all others, at any time
    To a successor: models and ensembles ─► clients and workers, the dead ones too ─► Resume ─► ClientCaughtUp, …

The batcher applies each message between two turns of its loop, in order, and acknowledges it if it has a sequence
number. The batcher's answers are in from_batcher.py.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from shoal.cache_settings import RedisSettings
from shoal.messages.message import Fd, Kinds, Message
from shoal.messages.shared import Config, LogSettings

#: The demand of an instance's execution: its priority, and how much of each resource, by name and device
#: (model_config/rate_limiter.py). A receiver has lists where the sender had tuples: [priority, [[[name, device], n]]].
Demand: TypeAlias = Sequence[Any]


class BatcherActivated(Message):
    """The batcher serves from now on, with these settings; the first message to a standby."""

    log: LogSettings
    max_queue_size: int
    max_in_flight: int
    deadline_ns: int
    counts_first_responses: bool
    cache_bytes: int
    redis: RedisSettings | None
    is_successor: bool  # takes a dead batcher's place, and serves after Resume
    rate_limits: Sequence[tuple[str, int, int | None]] | None  # resource, count, device; None without --rate-limit
    latency_target_ms: int
    spin_ns: int  # the longest spin before a sleep; 0: the batcher sleeps at once
    poison_refusal_ns: int  # how long a request that ends instances is refused at first; 0: not at all
    bell: Fd  # the batcher's own bell, for peers that have no bell of their own at the batcher
    counters: Fd  # the table of counters, writable


class Resume(Message):
    """A successor has been sent all clients and workers, and serves from now on."""


class BatcherMemoryMade(Message):
    """The batcher's own memory: for headers of ensembles' steps, and for cached responses."""

    segment: Fd  # writable


class ClientJoined(Message):
    """A client joins: a front end, a worker whose model calls others, or a guest."""

    owner: int
    segment: Fd  # written by the client; to read
    link: Fd  # written by the batcher for the client
    bell: Fd  # wakes the client; a guest's also wakes the batcher
    clients_bell: Fd | None  # wakes the batcher; None for a guest
    is_guest: bool = False
    is_caller: bool = False
    is_late: bool = False  # True to a successor: the client has yet to send its open requests again


class ClientCaughtUp(Message):
    """To a successor: a late client has sent its open requests and held replies again."""

    owner: int


class ClientLeft(Message):
    """A client is dead: its requests are dropped, and the replies it held are released."""

    owner: int


class ModelAdded(Message):
    """A model version takes requests from now on."""

    model_id: int
    row: int  # the row of its counters in the table of counters
    config: Config
    version: int
    may_run_again: bool
    revision: str  # names the version in a cache that servers share
    groups: list[str]  # names of its instance groups, by number


class InstanceGroupsChanged(Message):
    """The names of a model version's instance groups have changed."""

    model_id: int
    groups: list[str]


class ModelFailed(Message):
    """No instance of a model version lives: its queued requests are refused."""

    model_id: int


class RetireModel(Message):
    """A model version gets no more requests; ModelRetired answers when none of its requests is queued or running."""

    model_id: int


class ModelRemoved(Message):
    """A model version is gone."""

    model_id: int


class EnsembleAdded(Message):
    """A version of an ensemble takes requests from now on."""

    model_id: int
    row: int  # the row of its counters in the table of counters
    config: Config
    version: int
    models: list[int]  # the model ids of its steps, in order; 0 for one that is not loaded
    decoupled: Sequence[int]  # steps that may answer any number of times
    may_run_again: bool
    revision: str  # names the version in a cache that servers share


class EnsembleRelinked(Message):
    """The steps of an ensemble run other versions of their models from now on."""

    model_id: int
    models: list[int]
    decoupled: Sequence[int]
    may_run_again: bool
    revision: str


class PayloadAnnounced(Message):
    """The oversize segment of a payload that the batcher must map: a worker's result, or a request to an ensemble."""

    owner: int
    writer: int  # owner id of the worker or client that writes it
    is_result: bool
    segment: Fd  # to read


class WorkerJoined(Message):
    """A worker has been given its memory; it gets batches after WorkerReady."""

    owner: int
    model_id: int
    demand: Demand | None  # under --rate-limit
    segment: Fd  # written by the worker; to read
    link: Fd  # written by the batcher for the worker
    bell: Fd  # wakes the worker
    workers_bell: Fd  # wakes the batcher
    instance: int = 0  # pid, group and number, as in DeathDetail (shoal/reasons.py)


class WorkerReady(Message):
    """All readers have mapped a worker's memory: the worker gets batches from now on."""

    owner: int


class WorkerCaughtUp(Message):
    """To a successor: a worker has named all blocks that it holds, so its ring is read."""

    owner: int


class RetireWorker(Message):
    """A worker gets no more batches; WorkerRetired answers when the worker has answered all its batches."""

    owner: int


class WorkerDied(Message):
    """A worker is dead: its published answers are passed on before this is acknowledged; its other requests fail or run
    again."""

    owner: int
    reason: int  # a Reason and its detail, for replies
    detail: int
    is_repeated: bool  # whether a dead batcher was sent this, too, and may have answered the requests


class ExplainModel(Message):
    """A request for the reasons of a version's batch sizes; ModelExplained answers before this is acknowledged, unless
    the version is gone."""

    number: int  # the number of the question, which the answer repeats
    model_id: int


class ListFinishedRequests(Message):
    """A request for the slowest and the failed requests of the last minutes; FinishedRequestsListed answers before this
    is acknowledged."""

    number: int  # the number of the question, which the answer repeats
    model_ids: Sequence[int]
    limit: int  # most of either kind


class SplitChanged(Message):
    """How requests that name no version of a model, and so have this split's id, are divided between two versions."""

    model_id: int  # the split's own
    stable_id: int
    canary_id: int  # 0: all requests are the stable version's
    share: int  # the canary's, in hundredths of a percent
    retries: bool  # whether the stable version executes the requests that the canary fails
    step: int  # of the rollout: figures are counted from the first message of each step on


class CountSplit(Message):
    """A request for the figures of a split; SplitFigures answers before this is acknowledged, unless the split is
    unknown."""

    model_id: int


class CountMirrored(Message):
    """A request for the numbers of mirrored and dropped requests; RequestsMirrored answers before this is acknowledged,
    for each pair of versions that has new ones. Without a request the batcher sends RequestsMirrored once a second."""


class RecordingMade(Message):
    """The batcher's ring to the recorder, before the models that are recorded."""

    segment: Fd  # written by the batcher
    recorders: Fd  # written by the recorder; to read


class RecordingChanged(Message):
    """The rules by which requests are recorded from now on; the first that concerns a model counts."""

    rules: Sequence[Any]  # each a RecordRule (shoal/recording_settings.py)


class ComparisonRingMade(Message):
    """The batcher's ring to the comparator, before the rules."""

    segment: Fd  # written by the batcher
    comparators: Fd  # written by the comparator; to read


class ShadowsChanged(Message):
    """The pairs of versions whose requests are mirrored from now on."""

    rules: Sequence[Any]  # each a ShadowRule (shoal/shadow.py)


#: Messages to a batcher that stands by.
TO_STANDBY = Kinds(BatcherActivated)
