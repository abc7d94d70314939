"""/v2/recording: the recordings in progress, and new recordings of a model for a limited time. An extension that Triton
does not have.

Runs on the road.
POST {"model": "digits", "for": "10m", "sample": 0.1, "max": "2GiB"}; a time of 0 ends the recording. A client cannot
name a path; the answer names the server's folder.
"""

from typing import Any

from shoal.errors import InvalidArgumentError
from shoal.frontend.call import ANSWER_S, Ask, HandlerCall, blocking
from shoal.frontend.read_json import read_json
from shoal.frontend.response import Response, json_response
from shoal.recording_settings import MAX_LIVE_S, duration_s, share, size

_MEMBERS = frozenset({"model", "for", "sample", "max"})


@blocking
def recording(call: HandlerCall) -> Response:
    """The folder of the server's recordings, and what is being recorded."""
    return json_response(200, _asked(call.ask, "", 0.0, 1.0, 0))


@blocking
def record(call: HandlerCall) -> Response:
    """Record a model from now on; the answer is that of `recording`, once the batcher has been notified. Raises
    ShoalError, for an unknown model NotFoundError."""
    said = read_json(call.body, call.state.http_max_input_size)
    if type(said) is not dict or not said.keys() <= _MEMBERS or type(said.get("model")) is not str:
        raise InvalidArgumentError('a recording is as {"model": "digits", "for": "10m", "sample": 0.1, "max": "2GiB"}')
    model = said["model"]
    for_s = duration_s(_text(said.get("for", "10m")))
    if for_s > MAX_LIVE_S:
        raise InvalidArgumentError(f"a model is recorded for at most {MAX_LIVE_S // 86400:.0f}d at a time")
    sample = share(_text(said.get("sample", "1")))
    max_bytes = size(_text(said["max"])) if "max" in said else 0
    if for_s > 0 or not _is_recorded(call.ask, model):  # the recording of an unloaded model can be ended
        call.state.models.lookup(model, None)
    return json_response(200, _asked(call.ask, model, for_s, sample, max_bytes))


def _is_recorded(ask: Ask, model: str) -> bool:
    return any(model in each["models"] for each in _asked(ask, "", 0.0, 1.0, 0)["recording"])


def _asked(ask: Ask, model: str, for_s: float, sample: float, max_bytes: int) -> dict[str, Any]:
    arguments = {"model": model, "for_s": for_s, "sample": sample, "max_bytes": max_bytes}
    answer: dict[str, Any] = ask("record", arguments, ANSWER_S)
    return answer


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InvalidArgumentError(f"expected a text or a number, got {type(value).__name__}")
    return value if isinstance(value, str) else f"{value:f}" if isinstance(value, float) else str(value)
