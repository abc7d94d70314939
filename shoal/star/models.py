"""A client's table of models, filled from the supervisor's messages, and the choice of the version that a request
means.

One thread fills the table while others look models up, so it is copied on write: a reader of a table, a model or an
entry sees a consistent state. Used by front ends, guests, and workers whose models call others.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.errors import InvalidArgumentError, NotFoundError, UnavailableError
from shoal.messages.to_client import ModelChanged, ModelForgotten
from shoal.model_config.signature import Signature, client_dims
from shoal.reasons import ALL_FAILED
from shoal.repository.identifier import ModelIdentifier, only_model
from shoal.request import TensorRef

#: Most names that are kept by model id; beyond that, the older names of removed versions are dropped (ours).
MAX_NAMES = 65536
#: The version number of a model that failed before any of its versions was known.
NO_VERSION = -1

_MAX_INT64 = 2**63 - 1
# A number as C++'s std::stol reads it: leading white space and a sign are allowed, and the rest is ignored.
_STOL = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*([0-9]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One version of a model. `model_id` stands in ring records, `row` is its row of counters."""

    name: str
    version: int
    model_id: int
    row: int
    state: str  # LOADING, READY, UNLOADING, UNAVAILABLE: the words of the repository index
    reason: str
    failed: bool  # UNAVAILABLE because its instances died again and again
    num_instances: int  # as configured
    num_instances_up: int  # to which batches may go
    config: dict[str, Any]
    signature: Signature
    load_seconds: float
    labels: dict[str, tuple[str, ...]]  # labels by index, of the outputs that have a label file
    groups: tuple[str, ...] = ()  # names of its instance groups; a reply about a death has an index of these
    namespace: str = ""  # its repository, if --model-namespacing is on
    has_ready_check: bool = False  # the model has an is_ready of its own (known_server.py)
    is_polled: bool = True  # False: its configuration could not be read
    is_cached: bool = False  # the response cache is enabled
    is_default: bool = False  # requests that name no version go to this one, not to the highest
    split_id: int = 0  # of a default version in a split: the model id of requests that name no version
    sticky_header: str = ""  # in a split: the header field, in lower case, on whose value a request's version depends

    @property
    def ready(self) -> bool:
        """Whether an instance of this version is up."""
        return self.num_instances_up > 0

    @property
    def is_unloaded(self) -> bool:
        """Whether the version is not loaded, or is being unloaded, on request."""
        return self.state == "UNLOADING" or (self.state == "UNAVAILABLE" and self.reason == "unloaded")

    @property
    def is_decoupled(self) -> bool:
        """Whether the model may answer a request any number of times."""
        policy = self.config.get("model_transaction_policy")
        return policy is not None and policy["decoupled"]

    def refuse_if_failed(self) -> None:
        """Raise UnavailableError, with Triton's sentence, if all instances of this version are FAILED."""
        if self.failed:
            raise UnavailableError(ALL_FAILED.format(model=self.name, version=self.version))


Versions = dict[int, ModelEntry]
#: The end of an error about a known model that does not serve: only the supervisor knows the reason.
_ASK = ". POST /v2/repository/index says why"


class ModelTable:
    """All model versions by model and number, and for each name the version that serves requests without a version."""

    def __init__(self, *, namespacing: bool = False) -> None:
        self._namespacing = namespacing
        # Replaced as a whole by apply(), in the process's control thread; never changed in place.
        self._models: dict[ModelIdentifier, Versions] = {}
        self._named: dict[str, Versions] = {}  # by name, if it means one model
        self._latest: dict[str, ModelEntry] = {}
        #: Names by model id, also of versions that are gone, to which requests may still be open. Changed in place.
        self.names: dict[int, str] = {}
        #: The number of apply() calls. While it is unchanged, the results of lookup() are, too.
        self.num_changes = 0

    def apply(self, message: ModelChanged | ModelForgotten) -> None:
        """Replace or remove the entry of the version in a message."""
        identifier, version = ModelIdentifier(message.name, message.namespace), message.version
        versions = dict(self._models.get(identifier, {}))
        if isinstance(message, ModelChanged):
            previous = versions.get(version)
            if version != NO_VERSION:
                versions.pop(NO_VERSION, None)  # the entry stood for a model without known versions
            versions[version] = _entry(message, previous)
            self.names[message.model_id] = message.name
            if message.split_id:
                self.names[message.split_id] = message.name
        else:
            versions.pop(version, None)
        self._replace(identifier, dict(sorted(versions.items())))
        if len(self.names) > MAX_NAMES:
            self._forget_names()

    def _forget_names(self) -> None:
        """Drop the older half of the names of removed versions."""
        known = {each for entry in self.entries() for each in (entry.model_id, entry.split_id)}
        gone = [model for model in self.names if model not in known]
        for model in gone[: (len(gone) + 1) // 2]:
            del self.names[model]

    def _replace(self, identifier: ModelIdentifier, versions: Versions) -> None:
        models = {**self._models, identifier: versions}
        if not versions:
            del models[identifier]
        name = identifier.name
        named = {other: each for other, each in self._named.items() if other != name}
        latest = {other: entry for other, entry in self._latest.items() if other != name}
        bearers = self._bearers(models, name)
        if len(bearers) == 1:
            named[name] = bearers[0]
            if ready := _ready(bearers[0]):
                default = next((entry for entry in ready if entry.is_default), ready[-1])
                split_id = default.split_id
                latest[name] = replace(default, model_id=split_id) if split_id else default
        self._models, self._named, self._latest = models, named, latest
        self.num_changes += 1

    def _bearers(self, models: Mapping[ModelIdentifier, Versions], name: str) -> list[Versions]:
        """The models that a name could mean. If several have the name, or with namespacing, only those that are to be
        served."""
        bearers = [versions for identifier, versions in models.items() if identifier.name == name]
        if self._namespacing or len(bearers) > 1:
            return [versions for versions in bearers if _is_wanted(versions)]
        return bearers

    def lookup(self, name: str, version: str | None) -> ModelEntry:
        """The READY entry that a request means. Without a version, that is the default version if it is READY, else the
        highest READY one; while requests without a version are split, the entry has the split's model id.

        Raises NotFoundError, UnavailableError, or InvalidArgumentError for a malformed version, an ambiguous name or,
        with namespacing, an unknown one.
        """
        number = None if not version else parse_version(version)
        if number is None:
            entry = self._latest.get(name)
            if entry is not None:
                return entry
        versions = self._named.get(name) or only_model(name, self._bearers(self._models, name))
        if versions is None or versions.keys() == {NO_VERSION}:
            unknown = InvalidArgumentError if self._namespacing else NotFoundError  # as in Triton
            raise unknown(f"Request for unknown model: '{name}' is not found")
        if number is None:
            for each in versions.values():
                each.refuse_if_failed()
            raise NotFoundError(f"Request for unknown model: '{name}' has no available versions{_ASK}")
        entry = versions.get(number)
        if entry is None:
            raise NotFoundError(f"Request for unknown model: '{name}' version {number} is not found")
        if entry.state != "READY":
            entry.refuse_if_failed()
            raise UnavailableError(f"Request for unknown model: '{name}' version {number} is not at ready state{_ASK}")
        return entry

    def ready_entries(self, name: str | None = None) -> list[ModelEntry]:
        """The READY versions of the model that a name means, or of all models, by name and ascending version."""
        if name is None:
            return [entry for _, versions in sorted(self._models.items()) for entry in _ready(versions)]
        return _ready(self._named.get(name, {}))

    def entries(self) -> Iterable[ModelEntry]:
        """Every known version of every model, whatever its state."""
        return [entry for versions in self._models.values() for entry in versions.values()]


def client_shape(entry: ModelEntry, ref: TensorRef) -> tuple[int, ...]:
    """The shape of a tensor as clients see it: an output's `reshape` is undone."""
    return client_dims(entry.signature, ref.name, ref.shape)


def parse_version(text: str) -> int:
    """The version number in a path or a request, read as Triton reads it. Raises InvalidArgumentError."""
    match = _STOL.match(text)
    # 19 digits suffice for every 64-bit number; int() refuses thousands of digits.
    if match is None or len(match[2]) > 19 or int(match[2]) > _MAX_INT64:
        raise InvalidArgumentError(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    number = int(match[2])
    if match[1] == "-" and number > 0:
        raise InvalidArgumentError(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return number


def _ready(versions: Versions) -> list[ModelEntry]:
    return [entry for entry in versions.values() if entry.state == "READY"]


def _is_wanted(versions: Versions) -> bool:
    return any(number != NO_VERSION and not entry.is_unloaded for number, entry in versions.items())


def _entry(message: ModelChanged, previous: ModelEntry | None) -> ModelEntry:
    if previous is not None and previous.model_id == message.model_id and message.config in (None, previous.config):
        config, signature = previous.config, previous.signature  # most messages do not change the configuration
        labels = previous.labels if message.config is None else message.labels
    else:
        config = message.config or {"name": message.name, "max_batch_size": 0, "input": [], "output": []}
        signature, labels = Signature.from_config(config), message.labels
    return ModelEntry(
        name=message.name,
        version=message.version,
        model_id=message.model_id,
        row=message.row,
        state=message.state,
        reason=message.reason,
        failed=message.is_failed,
        num_instances=message.num_instances,
        num_instances_up=message.num_instances_up,
        config=config,
        signature=signature,
        load_seconds=message.load_seconds,
        labels={output: tuple(lines) for output, lines in labels.items()},
        groups=tuple(message.groups),
        namespace=message.namespace,
        has_ready_check=message.has_ready_check,
        is_polled=message.is_polled,
        is_cached=message.is_cached,
        is_default=message.is_default,
        split_id=message.split_id,
        sticky_header=message.sticky_header,
    )
