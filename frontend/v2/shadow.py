"""/v2/shadow: which versions' requests are mirrored to which shadows, and the results. An extension that Triton does
not have.

Runs on the road.
POST {"model": "digits", "version": 3, "of": 2, "share": 0.1, "compare": "top1"} begins, {"model": "digits", "of": 2,
"stop": true} ends a shadow; GET lists all shadows with their figures, or with ?model=digits those of one model.
"""

from typing import Any
from urllib.parse import parse_qs

from shoal.errors import InvalidArgumentError
from shoal.frontend.call import ANSWER_S, Ask, HandlerCall, blocking
from shoal.frontend.read_json import read_json
from shoal.frontend.response import Response, json_response
from shoal.recording_settings import share
from shoal.shadow import MAX_VERSION
from shoal.tolerance import read_tolerance

_MEMBERS = frozenset({"model", "version", "of", "share", "compare", "stop"})
_SYNTAX = (
    'a shadow is as {"model": "digits", "version": 3, "of": 2, "share": 0.1, "compare": "top1"}, and ends with '
    '{"model": "digits", "of": 2, "stop": true}'
)


@blocking
def shadows(call: HandlerCall) -> Response:
    """All pairs of versions that are or were mirrored, or those of one model, with figures and the worst examples.
    Raises NotFoundError for an unknown model."""
    asked = _asked(call.ask, primary=0)
    if names := parse_qs(call.query).get("model"):
        model = names[-1]
        asked["shadows"] = [each for each in asked["shadows"] if each["model"] == model]
        if not asked["shadows"] and all(entry.name != model for entry in call.state.models.entries()):
            call.state.models.lookup(model, None)
    return json_response(200, asked)


@blocking
def shadow(call: HandlerCall) -> Response:
    """Begin or end a shadow; the answer is that of `shadows` for this model. Raises ShoalError, for an
    unknown model NotFoundError."""
    given = read_json(call.body, call.state.http_max_input_size)
    if type(given) is not dict or not given.keys() <= _MEMBERS or type(given.get("model")) is not str:
        raise InvalidArgumentError(_SYNTAX)
    model, stop, compare = given["model"], given.get("stop", False), given.get("compare", "")
    if type(stop) is not bool or type(compare) is not str or not model:
        raise InvalidArgumentError(_SYNTAX)
    if not stop:  # a shadow whose model is not loaded can be ended
        call.state.models.lookup(model, None)
    read_tolerance(compare)
    primary, version = _version(given, "of"), 0 if stop else _version(given, "version")
    part = given.get("share", 1)
    if isinstance(part, bool) or not isinstance(part, (str, int, float)):
        raise InvalidArgumentError(_SYNTAX)
    wanted = share(part if isinstance(part, str) else f"{part:.17f}")
    answer = _asked(call.ask, model=model, primary=primary, shadow=version, share=wanted, compare=compare, stop=stop)
    return json_response(200, answer)


def _version(given: dict[str, Any], name: str) -> int:
    number = given.get(name)
    if type(number) is not int or not 0 < number < MAX_VERSION:
        raise InvalidArgumentError(f"'{name}' must be the number of a version; {_SYNTAX}")
    return number


def _asked(ask: Ask, model: str = "", **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = ask("shadow", {"model": model, **more}, ANSWER_S)
    return answer
