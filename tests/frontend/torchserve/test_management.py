"""frontend/torchserve/management_api.py: TorchServe's parameters, statuses and JSON, as its clients know them."""

from typing import Any

import pytest

from shoal.errors import InternalError, InvalidArgumentError, NotFoundError, ShoalError, UnavailableError
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState
from shoal.frontend.torchserve.management_api import scale_workers
from shoal.torchserve_errors import torchserve_error
from tests.frontend.calls import call_of

#: The supervisor's answer for a model that is not of the store.
NOT_OF_THE_STORE = torchserve_error(404, "ModelNotFoundException", "Model not found: m")
JSON = (("Content-Type", "application/json"),)


def status(code: int, text: str) -> Response:
    return Response(code, JSON, (b'{\n  "status": "%s"\n}\n' % text.encode(),))


def error(code: int, kind: str, message: str) -> Response:
    text = f'{{\n  "code": {code},\n  "type": "{kind}",\n  "message": "{message}"\n}}\n'
    return Response(code, JSON, (text.encode(),))


PROCESSING = status(202, "Processing worker updates...")


@pytest.mark.parametrize(
    ("version", "query", "arguments", "response"),
    [
        (None, "", (None, 1, False), PROCESSING),
        (None, "min_worker=3", (None, 3, False), PROCESSING),
        (None, "min_worker=0", (None, 0, False), PROCESSING),
        (None, "min_worker=2&max_worker=4&number_gpu=1&timeout=7", (None, 2, False), PROCESSING),
        # What cannot be read counts as absent.
        (None, "min_worker=two&max_worker=&synchronous=1", (None, 1, False), PROCESSING),
        (None, "min_worker=2&model_version=4", (4, 2, False), PROCESSING),
        ("4", "min_worker=2&model_version=5", (4, 2, False), PROCESSING),
        (None, "min_worker=%2B2&synchronous=TRUE", (None, 2, True), status(200, "Workers scaled to 2 for model: m")),
        ("1.0", "synchronous=true", (1, 1, True), status(200, "Workers scaled to 1 for model: m, version: 1.0")),
    ],
)
def test_scaling(transport: Any, version: str | None, query: str, arguments: Any, response: Response) -> None:
    transport.answers |= {"scale": {}, "ts_scale": NOT_OF_THE_STORE}
    assert scale_workers(call_of(ServerState(), transport.ask, "m", version, query=query)) == response
    number, count, wait = arguments
    assert [verb for verb, _ in transport.asked] == ["ts_scale", "scale"]
    assert transport.asked[-1] == ("scale", {"model": "m", "version": number, "count": count, "wait": wait})


def test_a_model_of_the_store_is_scaled_by_its_text_and_down_to_nothing(transport: Any) -> None:
    transport.answers["ts_scale"] = {}
    query = "min_worker=0&max_worker=2&synchronous=true"
    assert scale_workers(call_of(ServerState(), transport.ask, "m", "1.0", query=query)) == status(
        200, "Workers scaled to 0 for model: m, version: 1.0"
    )
    wanted = {"model": "m", "version": "1.0", "min_worker": 0, "max_worker": 2, "synchronous": True}
    assert transport.asked == [("ts_scale", wanted)]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("min_worker=3&max_worker=2", "max_worker cannot be less than min_worker."),
        ("min_worker=-1", "min_worker must be a number of workers, got: -1"),
    ],
)
def test_numbers_that_make_no_sense(transport: Any, query: str, message: str) -> None:
    assert scale_workers(call_of(ServerState(), transport.ask, "m", None, query=query)) == error(
        400, "BadRequestException", message
    )
    assert transport.asked == []


@pytest.mark.parametrize(
    ("raised", "code", "kind"),
    [
        (NotFoundError("no"), 404, "ModelNotFoundException"),
        (InvalidArgumentError("no"), 400, "BadRequestException"),
        (UnavailableError("no"), 503, "ServiceUnavailableException"),
        (InternalError("no"), 500, "InternalServerException"),
    ],
)
def test_refusals_have_torchserve_s_shape(transport: Any, raised: ShoalError, code: int, kind: str) -> None:
    transport.answers |= {"scale": raised, "ts_scale": NOT_OF_THE_STORE}
    assert scale_workers(call_of(ServerState(), transport.ask, "m", "1", query="")) == error(code, kind, "no")
    known = "Model not found: m" if code == 404 else "no"
    assert scale_workers(call_of(ServerState(), transport.ask, "m", None, query="")) == error(code, kind, known)


def test_a_version_that_is_no_number(transport: Any) -> None:
    transport.answers["ts_scale"] = NOT_OF_THE_STORE
    assert scale_workers(call_of(ServerState(), transport.ask, "m", "x", query="")).status == 400
    assert [verb for verb, _ in transport.asked] == ["ts_scale"]
