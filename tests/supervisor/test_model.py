"""A model: when whoever asked for a load hears what it came to. The test plays those that hear of it first."""

from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.control import Message
from shoal.errors import InvalidArgumentError, ShoalError
from shoal.repository.found import FoundModel
from shoal.repository.identifier import ModelIdentifier
from shoal.repository.lifecycle import NO_ROW, NO_VERSION, ModelVersion, VersionState
from shoal.supervisor.model import Model
from shoal.supervisor.served import Served
from shoal.supervisor.version_owner import Owner


class Registry:
    """What is told, and who waits until it is in force. There is nothing to load."""

    num_retries = 0

    def __init__(self) -> None:
        self.told: list[tuple[Sequence[Message], Callable[[], None]]] = []

    def create(self, found: FoundModel, number: int, owner: Owner) -> Served:
        raise AssertionError(f"version {number} of {found.name} must not be created")

    def create_problem(self, identifier: ModelIdentifier, error: ShoalError) -> ModelVersion:
        version = ModelVersion(identifier.name, NO_VERSION, 1, NO_ROW, Path())
        version.move(VersionState.UNAVAILABLE, str(error))
        return version

    def queue(self, served: Served) -> None: ...

    def settled(self, served: Served) -> None: ...

    def release(self, served: Served) -> None: ...

    def tell(self, messages: Sequence[Message], then: Callable[[], None]) -> None:
        self.told.append((messages, then))


def test_a_load_is_refused_once_everybody_knows_why() -> None:
    registry, outcomes = Registry(), list[ShoalError | None]()
    model = Model(ModelIdentifier("m", ""), registry)
    error = InvalidArgumentError("no such field")
    model.load(FoundModel("m", Path("/m"), {}, {}, {}, 0, error), outcomes.append)
    ((messages, then),) = registry.told
    assert [(message["state"], message["reason"]) for message in messages] == [("UNAVAILABLE", "no such field")]
    assert outcomes == []
    then()
    assert outcomes == [error]
