"""What instances demand of the rate limiter, and whether there is as much."""

from typing import Any

import pytest

from shoal.model_config.rate_limiter import GLOBAL, Demand, Limit, Resource, capacities, faults


def demand(*resources: tuple[str, int, bool], priority: int = 0, device: int = 0) -> Demand:
    listed = [{"name": name, "count": count, "global": is_global} for name, count, is_global in resources]
    return Demand.of({"rate_limiter": {"resources": listed, "priority": priority}}, device)


def test_what_a_group_demands() -> None:
    assert demand(("R", 3, False), ("S", 1, True), priority=2, device=1) == (
        2,
        ((Resource("R", 1), 3), (Resource("S", GLOBAL), 1)),
    )
    assert Demand.of({}, 0) == demand() == (1, ())  # priority 0 is 1, as in Triton


def test_it_is_the_same_after_its_way() -> None:
    message: Any = [2, [[["R", 1], 3]]]
    assert Demand.from_message(message) == demand(("R", 3, False), priority=2, device=1)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((), [3, 2, 4]),
        ((("R", 7, None), ("S", 9, None)), [7, 7, 9]),
        ((("R", 7, 0), ("S", 9, 5)), [7, 0, 9]),  # what is global has no device
        ((("R", 7, 0), ("R", 8, None)), [8, 8, 0]),
    ],
)
def test_how_much_there_is(limits: tuple[Limit, ...], expected: list[int]) -> None:
    demands = [
        demand(("R", 3, False)), demand(("R", 1, False), ("S", 4, True)), demand(("R", 2, False), device=1),
    ]  # fmt: skip
    there = capacities(demands, limits)
    assert [there[name] for name in (Resource("R", 0), Resource("R", 1), Resource("S", GLOBAL))] == expected


def test_too_little_is_a_fault_and_so_is_a_name_of_two_meanings() -> None:
    demands = [demand(("R", 3, False)), demand(("R", 1, True))]
    assert list(faults(demands, ())) == [
        'Resource "R" is present as both global and device-specific resource in the model configuration.'
    ]
    assert list(faults(demands[:1], [("R", 2, None)])) == [
        'Resource count for "R" is limited to 2 which will prevent scheduling of one or more model instances, '
        "the minimum required count is 3"
    ]
    assert list(faults(demands[:1], [("R", 3, None)])) == []
