"""A model: when whoever asked for a load hears what it came to. The test plays those that hear of it first."""

from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.control import Message
from shoal.errors import InvalidArgumentError, ShoalError
from shoal.repository.found import FoundModel, FoundVersion
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


class Faulty(Registry):
    """A registry with a fault of ours."""

    def create(self, found: FoundModel, number: int, owner: Owner) -> Served:
        raise KeyError("instance_group")


class Silent(Registry):
    """A registry that fails to tell."""

    def tell(self, messages: Sequence[Message], then: Callable[[], None]) -> None:
        raise KeyError("row")


def test_an_unexpected_error_fails_the_load_and_not_the_next_one() -> None:
    registry, outcomes = Faulty(), list[ShoalError | None]()
    model = Model(ModelIdentifier("m", ""), registry)
    versions = {1: FoundVersion(Path("/m/1"), 0)}
    for _ in range(2):
        model.load(FoundModel("m", Path("/m"), {}, {}, versions, 0), outcomes.append)
        assert not model.is_loading
        registry.told.pop()[1]()
        assert str(outcomes.pop()) == (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: "
            "Internal: an error of the server's own, KeyError: 'instance_group';\n"
        )
    assert [row.state for row in model.rows] == [VersionState.UNAVAILABLE]


def test_an_unexpected_error_while_a_load_is_put_in_force_is_its_outcome() -> None:
    outcomes = list[ShoalError | None]()
    model = Model(ModelIdentifier("m", ""), Silent())
    model.load(FoundModel("m", Path("/m"), {}, {}, {}, 0), outcomes.append)
    assert [str(error) for error in outcomes] == ["an error of the server's own, KeyError: 'row'"]
    assert not model.is_loading


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
