"""Messages between the supervisor and the poller of model repositories (repository/main.py).

    PollerWelcomed first; then orders, executed and answered in order only within a line (repository/main.py):
    Poll ─► ModelFound, ModelFound, … Polled            all other orders ─► ModelFound, … OrderDone
    each instead with OrderRefused where it fails       Forget, LogChanged: no answer

Orders are not acknowledged. `order` is the supervisor's number of an order.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.messages.message import Kinds, Message
from shoal.messages.shared import Config, LogSettings


class PollerConnected(Message):
    """Sent by the poller, first: it waits for PollerWelcomed."""


class PollerWelcomed(Message):
    """Sent by the supervisor, first: the repositories, and how they are read."""

    log: LogSettings
    repositories: list[tuple[str, str | None]]  # path or URL; for cloud storage also the directory of the copy
    strict: bool  # --disable-auto-complete-config
    config_name: str
    namespacing: bool
    backend_directory: str
    store: dict[str, Any] | None = None  # TorchServe's model store: the fields of StoreSettings; None: there is none
    store_work: str = ""  # directory for unpacked archives, used by no other server
    gpus: Sequence[int] = ()  # that store models may use


class Poll(Message):
    """Sent by the supervisor: list all models, and look into the models of these names."""

    order: int
    names: list[str] | None  # None: all
    patience_s: float | None  # models whose copy from a cloud takes longer are left to a later poll; None: none are


class LookAll(Message):
    """Sent by the supervisor: look into all models of a name, with the files or the repository of a load request."""

    order: int
    name: str
    config: str | None = None
    directory: str | None = None  # the request's files
    repository: str | None = None  # the repository that the request registers


class Look(Message):
    """Sent by the supervisor: look into one model of a name; of several, the one of the preferred namespace."""

    order: int
    name: str
    preferred: str


class LookAt(Message):
    """Sent by the supervisor: look into the directory of a model again, with this configuration as JSON if there is
    one."""

    order: int
    name: str
    namespace: str
    directory: str
    config: str | None


class LoadStore(Message):
    """Sent by the supervisor: look into the archives of TorchServe's store that are loaded at start."""

    order: int


class Register(Message):
    """Sent by the supervisor: find and unpack the archive that a registration means; `request` has the fields of
    StoreRequest."""

    order: int
    request: dict[str, Any]


class RegisterWorkflow(Message):
    """Sent by the supervisor: find and unpack the archive of a workflow, and those of its models; `request` has the
    fields of WorkflowRequest. The models' ModelFound come first, and `about` of OrderDone describes the workflow."""

    order: int
    request: dict[str, Any]


class LookAgain(Message):
    """Sent by the supervisor: if an archive of the store has another modification time than this, find and unpack it
    again; `request` is that of its registration."""

    order: int
    request: dict[str, Any]
    modified_ns: int


class Withdraw(Message):
    """Sent by the supervisor: remove an unpacked archive and, where it was a download, the archive in the store."""

    order: int
    directory: str
    archive: str


class WithdrawWorkflow(Message):
    """Sent by the supervisor: remove an unpacked workflow and, where it was a download, its archive."""

    order: int
    directory: str
    archive: str


class SaveSnapshot(Message):
    """Sent by the supervisor: write a snapshot of the configuration of TorchServe's store, its models in JSON."""

    order: int
    name: str
    models: str


class Discard(Message):
    """Sent by the supervisor: remove a directory that was made for one load."""

    order: int
    directory: str


class Forget(Message):
    """Sent by the supervisor: remove copies from cloud storage, except those that contain these directories."""

    keep: list[str]


class ModelFound(Message):
    """Sent by the poller: a model that an order looked into (repository/found.py)."""

    order: int
    name: str
    directory: str
    config: Config
    labels: Mapping[str, Sequence[str]]  # by output, the lines of its label file
    versions: Sequence[tuple[int, str, int]]  # number, directory, newest modification time
    others_ns: int
    wire: int  # code and sentence of the ShoalError that says why the model cannot be loaded; 0: there is none
    sentence: str
    origin: str
    namespace: str
    fingerprint: str
    changed_ns: int
    is_given: bool
    rollout: str  # the text of the model's rollout.json; "": there is none


class Polled(Message):
    """Sent by the poller: the end of a Poll; `problems` says why directories are no models."""

    order: int
    identifiers: Sequence[tuple[str, str]]  # name and namespace
    problems: Sequence[tuple[tuple[str, str], str]]


class OrderDone(Message):
    """Sent by the poller: the end of any other order, after the models that it has found."""

    order: int
    about: dict[str, Any] | None = None  # the workflow that was found (repository/torchserve/workflow_store.py)


class OrderRefused(Message):
    """Sent by the poller: an order has failed with this ShoalError."""

    order: int
    wire: int
    sentence: str


Order = (
    Poll
    | LookAll
    | Look
    | LookAt
    | LoadStore
    | Register
    | RegisterWorkflow
    | LookAgain
    | Withdraw
    | WithdrawWorkflow
    | SaveSnapshot
    | Discard
)
POLLER_WELCOME = Kinds(PollerWelcomed)
