"""/v2/models/NAME/rollout: the version for requests to a model that name none, and rollouts of a new version. An
extension that Triton does not have.

Runs on the road.
POST {"version": 3, "steps": "1,10,50,100", "every": "10m", "guard": "p99=+10%,errors=+0.1%"} begins a rollout;
POST {"action": "abort"}, or promote, pause, resume, unpin, changes or ends the rollout. The answer is that of GET.
"""

from typing import Any

from shoal.errors import InvalidArgumentError
from shoal.frontend.call import ANSWER_S, HandlerCall, blocking
from shoal.frontend.read_json import read_json
from shoal.frontend.response import Response, json_response
from shoal.rollout_settings import read_plan


@blocking
def rollout(call: HandlerCall) -> Response:
    """The response with the state of the model's rollout, or of its last one, which has ended."""
    return json_response(200, _asked(call, "", {}))


@blocking
def change_rollout(call: HandlerCall) -> Response:
    """Begin, change or end a rollout; the answer is that of `rollout` afterwards. Raises ShoalError."""
    given = read_json(call.body, call.state.http_max_input_size)
    if type(given) is not dict:
        raise InvalidArgumentError('a rollout is as {"version": 3, "steps": "1,10,50,100", "every": "10m"}')
    if "action" not in given:
        return json_response(200, _asked(call, "begin", read_plan(given).members()))
    if given.keys() != {"action"} or type(given["action"]) is not str:
        raise InvalidArgumentError('a change of a rollout is as {"action": "abort"}, and nothing beside that')
    if given["action"] not in ("abort", "promote", "pause", "resume", "unpin"):
        raise InvalidArgumentError(
            f"a rollout has no action '{given['action'][:40]}'; there are abort, promote, pause, resume, unpin"
        )
    return json_response(200, _asked(call, given["action"], {}))


def _asked(call: HandlerCall, action: str, plan: dict[str, Any]) -> Any:
    return call.ask("rollout", {"model": call.name, "action": action, "plan": plan}, ANSWER_S)
