"""Models as the poller has found them, on their way to the supervisor. Pure."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from shoal import errors
from shoal.errors import ShoalError
from shoal.messages.to_poller import ModelFound
from shoal.model_config.messages import Config
from shoal.repository.identifier import ModelIdentifier


class FoundVersion(NamedTuple):
    """A version that the version policy selects."""

    directory: Path
    modified_ns: int  # the newest modification time in its directory, of the wall clock
    config: Config | None = None  # the version's own, as each has in TorchServe's store; None: the model's


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model as it lies on disk now, with its configuration and versions."""

    name: str
    directory: Path
    #: The configuration, with the defaults that do not depend on the model file; empty if it cannot be read.
    config: Config
    #: The lines of the label file of each output that has one.
    labels: dict[str, tuple[str, ...]]
    versions: dict[int, FoundVersion]
    #: The newest modification time of the model's files beside configuration and versions.
    others_ns: int
    error: ShoalError | None = None
    #: The model's address where `directory` is a copy: equal for every copy of the model.
    origin: str = ""
    namespace: str = ""
    #: A digest of the model's directory: names and newest modification times of entries; empty if it is unreadable.
    fingerprint: str = ""
    #: The newest change of any entry in the model's directory, of access rights, too.
    changed_ns: int = 0
    #: Whether the configuration came with a request, instead of from the repository.
    is_given: bool = False
    #: The text of the model's rollout.json, which says how a new version is rolled out; "": there is none.
    rollout: str = ""

    @property
    def identifier(self) -> ModelIdentifier:
        return ModelIdentifier(self.name, self.namespace)

    @property
    def may_change(self) -> bool:
        """Whether the files are the original, which others may change: neither a copy nor of TorchServe's store."""
        return not self.origin and all(each.directory != self.directory for each in self.versions.values())

    def config_of(self, number: int) -> Config:
        own = self.versions[number].config
        return self.config if own is None else own

    def message(self, order: int) -> ModelFound:
        """The message by which the poller answers an order with this model."""
        own: dict[str, Any] = {
            "order": order,
            "directory": str(self.directory),
            "versions": [(number, str(each.directory), each.modified_ns) for number, each in self.versions.items()],
            "wire": 0 if self.error is None else self.error.wire,
            "sentence": "" if self.error is None else str(self.error),
        }
        return ModelFound(**{name: getattr(self, name) for name in ModelFound.fields if name not in own}, **own)

    @classmethod
    def from_message(cls, message: ModelFound) -> "FoundModel":
        own: dict[str, Any] = {
            "directory": Path(message.directory),
            "labels": {output: tuple(lines) for output, lines in message.labels.items()},
            "versions": {number: FoundVersion(Path(path), ns) for number, path, ns in message.versions},
            "error": errors.from_wire(message.wire, message.sentence) if message.wire else None,
        }
        return cls(**{each.name: getattr(message, each.name) for each in fields(cls) if each.name not in own}, **own)


class PollResult(NamedTuple):
    """All models of all repositories at one time."""

    models: dict[ModelIdentifier, FoundModel]  # those that were read
    problems: dict[ModelIdentifier, str]  # of the others: why each is no model
    identifiers: tuple[ModelIdentifier, ...]  # of all models, read or not
