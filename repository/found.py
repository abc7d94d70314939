"""What a look into the repositories has found, on its way from the process that looks to the supervisor. Pure."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shoal import errors
from shoal.errors import ShoalError
from shoal.messages.to_poller import ModelFound
from shoal.model_config.messages import Config
from shoal.repository.identifier import ModelIdentifier


class FoundVersion(NamedTuple):
    """A version that the version policy wants."""

    directory: Path
    modified_ns: int  # the newest modification time in it, of the wall clock


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model as it lies on disk now."""

    name: str
    directory: Path
    #: With the defaults that need no look into the model; empty where there is an error.
    config: Config
    #: By output, what its label file says.
    labels: dict[str, tuple[str, ...]]
    versions: dict[int, FoundVersion]
    #: The newest modification time of what lies beside configuration and versions.
    others_ns: int
    error: ShoalError | None = None
    #: Where it lies, if `directory` is only a copy: the same for every copy.
    origin: str = ""
    namespace: str = ""
    #: Digest of the entries of its directory, each by its name and the newest modification time in it; empty where the
    #: directory cannot be read.
    fingerprint: str = ""
    #: When anything in its directory has last changed, rights included.
    changed_ns: int = 0
    #: Whether the configuration came with a request, beside the files of the repository.
    is_given: bool = False

    @property
    def identifier(self) -> ModelIdentifier:
        """Which model it is."""
        return ModelIdentifier(self.name, self.namespace)

    def message(self, order: int) -> ModelFound:
        """The message by which the poller answers an order with this model."""
        return ModelFound(
            order=order,
            name=self.name,
            directory=str(self.directory),
            config=self.config,
            labels=self.labels,
            versions=[(number, str(found.directory), found.modified_ns) for number, found in self.versions.items()],
            others_ns=self.others_ns,
            wire=0 if self.error is None else self.error.wire,
            sentence="" if self.error is None else str(self.error),
            origin=self.origin,
            namespace=self.namespace,
            fingerprint=self.fingerprint,
            changed_ns=self.changed_ns,
            is_given=self.is_given,
        )

    @classmethod
    def from_message(cls, message: ModelFound) -> "FoundModel":
        """The model that `message` was made of."""
        return cls(
            message.name,
            Path(message.directory),
            message.config,
            {output: tuple(lines) for output, lines in message.labels.items()},
            {number: FoundVersion(Path(path), modified_ns) for number, path, modified_ns in message.versions},
            message.others_ns,
            errors.from_wire(message.wire, message.sentence) if message.wire else None,
            message.origin,
            message.namespace,
            message.fingerprint,
            message.changed_ns,
            message.is_given,
        )


class PollResult(NamedTuple):
    """What lies in all repositories."""

    models: dict[ModelIdentifier, FoundModel]  # those that were looked at
    problems: dict[ModelIdentifier, str]  # → why it is no model
    identifiers: tuple[ModelIdentifier, ...]  # of all models, looked at or not
