"""What a rollout may be asked to do."""

import pytest

from shoal.errors import InvalidArgumentError
from shoal.rollout_settings import RolloutPlan, read_every, read_guards, read_plan, read_steps


def test_a_plan_that_says_only_the_version_has_defaults() -> None:
    plan = read_plan({"version": "3"})
    assert (plan.version, plan.steps, plan.every_s, plan.min_requests, plan.retries) == (
        3,
        (1, 10, 50, 100),
        600,
        100,
        True,
    )
    assert [str(guard) for guard in plan.guards] == ["p99=+10%", "errors=+0.1%"]


def test_a_plan_is_read_back_from_its_members() -> None:
    said = {
        "version": 3, "steps": "0.5,50,100", "every": "500requests", "guard": "p50<2ms, p90=+5ms,disagree<0.5%",
        "min_requests": 7, "sticky_header": "X-User", "retry": False,
    }  # fmt: skip
    plan = read_plan(said)
    assert isinstance(plan, RolloutPlan)
    assert plan.sticky_header == "x-user"
    assert read_plan(plan.members()) == plan
    assert read_plan({"version": 3, "steps": [1, 50], "every": "0.3s"}).steps == (1, 50)


@pytest.mark.parametrize(
    "said",
    [
        {"every": "12d"},
        {"every": "1234567s"},
        {"every": "0.123456d"},
        {"guard": "errors<0.00001%"},
        {"guard": "errors=+0.000001%"},
        {"guard": "p99<1234567ms"},
        {"guard": "p99=+0.001us"},
        {"guard": "p50=+33.333333%"},
        {"guard": "p95=+7%,disagree<12.345678%"},
        {"steps": "0.01,33.33,99.99"},
    ],
)
def test_long_times_and_fine_bounds_are_read_back_too(said: dict[str, str]) -> None:
    plan = read_plan({"version": 3, **said})
    assert read_plan(plan.members()) == plan


@pytest.mark.parametrize("text", ["", "0,50", "50,10", "10,10", "101", "1,,2", "a", "1e2", "-1"])
def test_steps_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="steps"):
        read_steps(text)


@pytest.mark.parametrize(
    ("text", "found"), [("10m", (600, 0)), ("0.2s", (0.2, 0)), ("300ms", (0.3, 0)), ("500 requests", (0, 500))]
)
def test_a_step_lasts_for_a_time_or_a_number_of_requests(text: str, found: tuple[float, int]) -> None:
    assert read_every(text) == pytest.approx(found)


@pytest.mark.parametrize("text", ["", "0s", "0requests", "10", "m", "1y", "0.1us", "4000d", "1e3s", "\u0661m"])
def test_other_lengths_of_a_step_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="a step lasts"):
        read_every(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("p98=+1%", "a guard is as"), ("p99<1%", "below a time"), ("errors<5ms", "share of the requests"),
     ("disagree=+1%", "say disagree<1%"), ("p99>1%", "a guard is as"), ("p99<999999999s", "at most"),
     ("errors=+0.1%,", "a guard is as")],
)  # fmt: skip
def test_guards_that_do_not_fit_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        read_guards(text)


def test_no_guards() -> None:
    assert read_guards("none") == read_guards(" ") == ()


@pytest.mark.parametrize(
    ("said", "sentence"),
    [({}, "needs the number"), ({"version": True}, "needs the number"), ({"version": 3, "step": "1"}, "has no 'step'"),
     ({"version": 3, "min_requests": -1}, "min_requests"), ({"version": 3, "retry": "no"}, "retry is"),
     ({"version": 3, "sticky_header": "a b"}, "sticky_header"), ({"version": 3, "guard": {}}, "is a text")],
)  # fmt: skip
def test_plans_that_do_not_fit_are_refused(said: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        read_plan(said)
