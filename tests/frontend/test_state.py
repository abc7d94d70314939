"""frontend/state.py: the model table, and which version answers."""

from collections.abc import Callable

import pytest

from shoal.errors import InvalidArgumentError, NotFoundError, ShoalError, UnavailableError
from shoal.frontend.state import ServerState
from shoal.messages.to_client import ModelChanged, ModelForgotten
from shoal.star.models import ModelTable, parse_version
from tests.frontend.conftest import SIMPLE
from tests.messages import model_message

ASK = ". POST /v2/repository/index says why"

Message = Callable[..., ModelChanged]


def test_without_a_version_the_highest_ready_one_answers(state: ServerState) -> None:
    assert state.models.lookup("simple", None).version == 3
    assert state.models.lookup("simple", "").version == 3
    assert state.models.lookup("simple", "1").model_id == 1


def test_versions_are_ordered_as_numbers(make_message: Message) -> None:
    table = ModelTable()
    for version in (9, 10, 2):
        table.apply(make_message("m", version, version, None))
    assert [entry.version for entry in table.ready_entries("m")] == [2, 9, 10]
    assert table.lookup("m", None).version == 10


def test_names_of_versions_that_are_gone_are_kept_up_to_a_bound(
    make_message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.star.models.MAX_NAMES", 4)
    table = ModelTable()
    table.apply(make_message("first", 1, 1, None))
    for model in (2, 3, 4):
        table.apply(make_message("m", 1, model, None))
    assert table.names == {1: "first", 2: "m", 3: "m", 4: "m"}
    table.apply(make_message("m", 1, 5, None))
    assert table.names == {1: "first", 4: "m", 5: "m"}
    table.apply(make_message("other", 1, 6, None))
    table.apply(ModelForgotten("first", "", 1))
    assert table.names == {1: "first", 4: "m", 5: "m", 6: "other"}


@pytest.mark.parametrize("version", [None, "1"])
def test_version_whose_instances_are_failed_is_refused_for_now(state: ServerState, version: str | None) -> None:
    state.models.apply(model_message("simple", 3, 3, SIMPLE, state="UNAVAILABLE", is_failed=True))
    assert state.models.lookup("simple", None).version == 1
    state.models.apply(model_message("simple", 1, 1, SIMPLE, state="UNAVAILABLE", is_failed=True))
    with pytest.raises(UnavailableError, match=r"^Model 'simple' version 1 is unavailable: all its"):
        state.models.lookup("simple", version)
    state.models.apply(model_message("simple", 1, 1, SIMPLE))
    assert state.models.lookup("simple", version).version == 1


@pytest.mark.parametrize(
    ("name", "version", "kind", "sentence"),
    [
        ("none", None, NotFoundError, "Request for unknown model: 'none' is not found"),
        ("none", "1", NotFoundError, "Request for unknown model: 'none' is not found"),
        ("broken", None, NotFoundError, "Request for unknown model: 'broken' is not found"),
        ("simple", "4", NotFoundError, "Request for unknown model: 'simple' version 4 is not found"),
        ("loading", None, NotFoundError, "Request for unknown model: 'loading' has no available versions" + ASK),
        ("gone", "1", UnavailableError, "Request for unknown model: 'gone' version 1 is not at ready state" + ASK),
        ("simple", "2", UnavailableError, "Request for unknown model: 'simple' version 2 is not at ready state" + ASK),
        (
            "simple",
            "9223372036854775808",
            InvalidArgumentError,
            "failed to get model version from specified version string '9223372036854775808' (details: stol), "
            "version should be an integral value > 0",
        ),
        (
            "simple",
            "-3",
            InvalidArgumentError,
            "invalid model version specified '-3' , version should be an integral value > 0",
        ),
    ],
)
def test_lookup_says_what_is_missing(
    state: ServerState, name: str, version: str | None, kind: type[ShoalError], sentence: str
) -> None:
    with pytest.raises(kind) as raised:
        state.models.lookup(name, version)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(("text", "number"), [("007", 7), ("9223372036854775807", 2**63 - 1), (" +1abc", 1), ("-0", 0)])
def test_versions_are_read_as_stol_reads_them(text: str, number: int) -> None:
    assert parse_version(text) == number


@pytest.mark.parametrize("text", ["x", "", "٣", "1" * 5000])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="details: stol"):
        parse_version(text)


def test_a_message_replaces_the_entry_and_a_holder_keeps_the_old_one(state: ServerState, make_message: Message) -> None:
    old = state.models.lookup("simple", None)
    state.models.apply(make_message("simple", 3, 3, None, state="UNLOADING", num_instances_up=0))
    assert old.state == "READY"
    assert state.models.lookup("simple", None).version == 1
    assert [entry.version for entry in state.models.ready_entries("simple")] == [1]


def test_a_message_without_a_config_keeps_the_one_of_the_same_load(state: ServerState, make_message: Message) -> None:
    config = {**state.models.lookup("simple", "3").config}
    state.models.apply(make_message("simple", 3, 3, config, labels={"OUTPUT0": ["zero", "one"]}))
    state.models.apply(make_message("simple", 3, 3, None, num_instances_up=0))
    assert list(state.models.lookup("simple", "3").signature.inputs) == ["INPUT0", "INPUT1"]
    assert state.models.lookup("simple", "3").labels == {"OUTPUT0": ("zero", "one")}
    state.models.apply(make_message("simple", 3, 33, None, state="LOADING", num_instances_up=0))
    state.models.apply(make_message("simple", 3, 33, None))
    assert state.models.lookup("simple", "3").signature.inputs == {}
    assert state.models.lookup("simple", "3").labels == {}


def test_a_failure_without_a_version_is_forgotten_once_a_version_is_known(
    state: ServerState, make_message: Message
) -> None:
    state.models.apply(make_message("broken", 1, 9, None))
    assert [entry.version for entry in state.models.entries() if entry.name == "broken"] == [1]


def test_a_removed_version_is_not_found_and_the_last_one_takes_the_name_along(state: ServerState) -> None:
    state.models.apply(ModelForgotten(name="simple", namespace="", version=3))
    assert state.models.lookup("simple", None).version == 1
    for version in (1, 2):
        state.models.apply(ModelForgotten(name="simple", namespace="", version=version))
    with pytest.raises(NotFoundError, match="'simple' is not found"):
        state.models.lookup("simple", "1")


def test_a_decoupled_model_is_known_by_its_policy(state: ServerState) -> None:
    assert state.models.lookup("stream", None).is_decoupled
    assert not state.models.lookup("simple", None).is_decoupled


def test_a_version_without_a_row_has_zeros(state: ServerState, make_message: Message) -> None:
    state.models.apply(make_message("rowless", 1, 10, None, row=-1))
    row = state.read_counters(state.models.lookup("rowless", None))
    assert (set(row.cells.values()), row.batches) == ({0}, ())


AMBIGUOUS = "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve ambiguity."


@pytest.fixture
def namespaces() -> ModelTable:
    """With namespacing: `m` in a/, versions 1 and 2."""
    table = ModelTable(namespacing=True)
    table.apply(model_message("m", 1, 1, SIMPLE, namespace="a"))
    table.apply(model_message("m", 2, 2, SIMPLE, namespace="a"))
    return table


@pytest.mark.parametrize("version", [None, "2"])
def test_a_name_in_two_repositories_means_neither_while_both_are_wanted(namespaces: ModelTable, version: str) -> None:
    assert namespaces.lookup("m", version).namespace == "a"
    for state in ("LOADING", "READY"):
        namespaces.apply(model_message("m", 3, 3, SIMPLE, namespace="b", state=state))
        with pytest.raises(InvalidArgumentError) as refusal:
            namespaces.lookup("m", version)
        assert str(refusal.value) == AMBIGUOUS
    assert namespaces.ready_entries("m") == []
    assert [entry.model_id for entry in namespaces.ready_entries()] == [1, 2, 3]
    for state, reason in (("UNLOADING", ""), ("UNAVAILABLE", "unloaded")):
        namespaces.apply(model_message("m", 3, 3, None, namespace="b", state=state, reason=reason))
        assert namespaces.lookup("m", version).model_id == 2
    assert [entry.model_id for entry in namespaces.ready_entries("m")] == [1, 2]
    assert len(list(namespaces.entries())) == 3


def test_a_model_that_cannot_be_read_takes_no_name_away(namespaces: ModelTable) -> None:
    broken = model_message("m", -1, 9, None, namespace="b", row=-1, state="UNAVAILABLE", reason="Internal: no")
    namespaces.apply(broken)
    assert namespaces.lookup("m", None).model_id == 2
    namespaces.apply(ModelForgotten(name="m", namespace="b", version=-1))
    assert [entry.model_id for entry in namespaces.entries()] == [1, 2]


def test_with_namespacing_an_unknown_name_is_a_wrong_one(namespaces: ModelTable) -> None:
    for version in (1, 2):
        namespaces.apply(model_message("m", version, version, None, namespace="a", state="UNLOADING"))
    for name in ("m", "none"):
        with pytest.raises(InvalidArgumentError, match=f"^Request for unknown model: '{name}' is not found$"):
            namespaces.lookup(name, None)
