"""upgrade.py: what clients may ask while a new server starts."""

from typing import Any

import pytest

from shoal.errors import UnavailableError
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.upgrade.upgrade import guarded
from tests.supervisor.clock import ClockLoop


@pytest.mark.parametrize(
    ("verb", "arguments", "is_change"),
    [
        ("load", {"model": "m"}, True),
        ("trace_settings", {"model": "", "changes": {"trace_rate": "1"}}, True),
        ("trace_settings", {"model": "", "changes": None}, False),
        ("shadow", {"model": "m", "stop": True}, True),
        ("shadow", {"model": ""}, False),
        ("rollout", {"model": "m", "action": "abort", "plan": {}}, True),
        ("rollout", {"model": "m", "action": "", "plan": {}}, False),
        ("gauges", {}, False),
    ],
)
def test_what_the_new_server_would_not_know_of_is_refused(
    clock: ClockLoop, verb: str, arguments: dict[str, Any], is_change: bool
) -> None:
    """The new server has read the state of the old one, its files included, at its own start."""

    async def answer(_arguments: dict[str, Any]) -> str:
        return "answered"

    is_under_way = True
    asked = guarded({verb: answer}, lambda: is_under_way)[verb]
    outcome = EventLoop(clock).begin(asked(arguments))
    clock.settle()
    if is_change:
        assert isinstance(outcome.exception(), UnavailableError)
    else:
        assert outcome.result() == "answered"
    is_under_way = False
    assert clock.run(asked(arguments)) == "answered"
