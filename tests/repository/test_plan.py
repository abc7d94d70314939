"""What a load has to do: every difference between what serves and what lies there, and nothing for none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.repository.found import FoundModel, FoundVersion
from shoal.repository.plan import LoadPlan, Source, plan, revision, source_of

CONFIG = {"name": "m", "max_batch_size": 8, "instance_group": [{"count": 1}], "version_policy": {"all": {}}}


def found(*versions: int, others_ns: int = 5, **fields: Any) -> FoundModel:
    versions_found = {number: FoundVersion(Path(f"/r/m/{number}"), number * 10) for number in versions}
    return FoundModel("m", Path("/r/m"), {**CONFIG, **fields}, {}, versions_found, others_ns)


def serving(*versions: int) -> dict[int, Source]:
    return {number: source_of(found(number), number) for number in versions}


@pytest.mark.parametrize(
    ("serves", "finds", "expected"),
    [
        ((), (1, 2), LoadPlan((1, 2), (), (), ())),
        ((1,), (1,), LoadPlan((), (), (1,), ())),
        ((1,), (1, 2), LoadPlan((2,), (), (1,), ())),
        ((1,), (2,), LoadPlan((2,), (), (), (1,))),
        ((1, 2, 3), (2,), LoadPlan((), (), (2,), (1, 3))),
    ],
)
def test_versions_come_and_go(serves: tuple[int, ...], finds: tuple[int, ...], expected: LoadPlan) -> None:
    assert plan(serving(*serves), found(*finds)) == expected


@pytest.mark.parametrize(
    "changed",
    [
        found(1, others_ns=6),
        found(1, others_ns=4),  # older files are other files
        found(1, max_batch_size=4),
        found(1, parameters={"a": {"string_value": "b"}}),
        found(1, max_batch_size=4, instance_group=[]),
        replace(found(1), versions={1: FoundVersion(Path("/r/m/1"), 11)}),
        replace(found(1), versions={1: FoundVersion(Path("/r/m/1"), 9)}),
        replace(found(1), versions={1: FoundVersion(Path("/private/1"), 10)}),
    ],
    ids=range(8),
)
def test_what_has_changed_is_loaded_afresh(changed: FoundModel) -> None:
    assert plan(serving(1), changed) == LoadPlan((1,), (), (), ())


def test_instance_groups_change_in_place() -> None:
    changed = found(1, 2, instance_group=[{"count": 3}], version_policy={"latest": {"num_versions": 2}})
    assert plan(serving(1), changed) == LoadPlan((2,), (1,), (), ())


def test_the_version_policy_alone_changes_nothing_for_a_version_it_still_wants() -> None:
    assert plan(serving(1), found(1, version_policy={"latest": {"num_versions": 1}})) == LoadPlan((), (), (1,), ())


@given(st.sets(st.integers(1, 6)), st.sets(st.integers(1, 6), min_size=1))
def test_afterwards_nothing_is_left_to_do(serves: set[int], finds: set[int]) -> None:
    wanted = found(*sorted(finds))
    todo = plan(serving(*serves), wanted)
    assert {*todo.fresh, *todo.resized, *todo.kept} == finds
    assert set(todo.dropped) == serves - finds
    assert plan({number: source_of(wanted, number) for number in finds}, wanted) == LoadPlan(
        (), (), tuple(sorted(finds)), ()
    )


def test_servers_agree_on_what_they_have_loaded_and_on_nothing_else() -> None:
    source = source_of(found(3), 3)
    name = revision("m", 3, source)
    assert name.startswith("m:3:")
    here = source._replace(place="/elsewhere/m/3", config={**source.config, "instance_group": [{"count": 7}]})
    assert revision("m", 3, here) == name
    others = [
        source._replace(modified_ns=31),
        source._replace(others_ns=6),
        source._replace(config={**source.config, "max_batch_size": 4}),
    ]
    names = [name, revision("n", 3, source), revision("m", 4, source), revision("m", 3, source, ["a:1:x"])]
    names += [revision("m", 3, other) for other in others]
    assert len(set(names)) == len(names)
