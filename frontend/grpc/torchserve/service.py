"""The rpcs of TorchServe's listeners: the table of each API, and the handlers of the rpcs that do not infer.

Results and refusals are those of the HTTP handlers: frontend/torchserve decides, this module only translates messages.
A reply of the management API holds the status text or the JSON with which the HTTP API answers. In proto3 an absent
number is 0, so 0 has the meaning that an absent parameter has over HTTP. Pure but for questions to the supervisor;
front-end processes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import orjson

from shoal.errors import ShoalError
from shoal.frontend.call import Handler, HandlerCall
from shoal.frontend.grpc.service import GrpcCall, Message, Method, always, never
from shoal.frontend.grpc.torchserve import open_inference
from shoal.frontend.grpc.torchserve.errors import CallError, managed
from shoal.frontend.grpc.torchserve.messages import MANAGEMENT, Empty, PredictionsRequest, inference, management
from shoal.frontend.grpc.torchserve.methods import PING, PREDICTIONS, STREAM_PREDICTIONS, STREAM_PREDICTIONS_2
from shoal.frontend.response import Response
from shoal.frontend.torchserve.errors import METHOD_NOT_ALLOWED, refused
from shoal.frontend.torchserve.inference_api import ping
from shoal.frontend.torchserve.management_api import register, scale_workers, set_default, unregister
from shoal.frontend.torchserve.model_list import describe, models
from shoal.torchserve_settings import TorchServeSettings

_PERMISSION_DENIED = 7


def methods_of(apis: Sequence[str], settings: TorchServeSettings) -> Mapping[str, Method]:
    """The rpcs of a listener that serves these APIs, by their paths."""
    wanted = {**_APIS["inference"], **(open_inference.METHODS if settings.open_inference_protocol else {})}
    tables = {"inference": wanted, "management": _APIS["management"]}
    return {path: method for api in apis for path, method in tables[api].items()}


def _ping(call: GrpcCall, _request: Message) -> Message:
    text = _text_of(ping(call.state)).rstrip()
    return inference["TorchServeHealthResponse"](health=text)


def _text_of(response: Response) -> str:
    return b"".join(response.chunks).decode()


# ---------------------------------------------------------------------------------------------------------------
# Management


def _managing(handler: Handler, query_of: Callable[[Message], Mapping[str, Any]], *, is_text: bool = False) -> Any:
    """The handler of an rpc that HTTP's `handler` answers, with a query made of the message. `is_text`: the reply holds
    only the status text of HTTP's answer."""

    def handle(call: GrpcCall, request: Message) -> Message:
        query = urlencode({name: _parameter(value) for name, value in query_of(request).items() if value})
        name = getattr(request, "model_name", "") if handler is not register else ""
        version = getattr(request, "model_version", "") or None
        asked = HandlerCall(call.state, call.road, {}, memoryview(b""), name, version, query)
        try:
            if not name and handler not in (models, register):
                raise refused(400, "BadRequestException", "Parameter model_name is required.")
            text = _text_of(handler(asked)).rstrip()
        except ShoalError as error:
            raise managed(error) from None
        told = orjson.loads(text)
        if isinstance(told, dict) and {"code", "type", "message"} == told.keys():
            raise managed(refused(told["code"], told["type"], told["message"]))
        return management["ManagementResponse"](msg=told["status"] if is_text else text)

    return handle


def _parameter(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _register(call: GrpcCall, request: Message) -> Message:
    if not call.state.torchserve.enable_model_api:
        raise CallError(_PERMISSION_DENIED, METHOD_NOT_ALLOWED.message)
    return _REGISTER(call, request)


def _unregister(call: GrpcCall, request: Message) -> Message:
    if not call.state.torchserve.enable_model_api:
        raise CallError(_PERMISSION_DENIED, METHOD_NOT_ALLOWED.message)
    return _UNREGISTER(call, request)


def _fields(*names: str) -> Callable[[Message], Mapping[str, Any]]:
    return lambda request: {name: getattr(request, name) for name in names}


def _registration(request: Message) -> Mapping[str, Any]:
    """The parameters of a registration. Over gRPC a registration waits for the model's workers only if the client asks
    for it."""
    return {**_ALL_OF_REGISTRATION(request), "synchronous": "true" if request.synchronous else "false"}


_ALL_OF_REGISTRATION = _fields(
    "url", "model_name", "handler", "runtime", "batch_size", "max_batch_delay", "initial_workers", "response_timeout",
    "startup_timeout",
)  # fmt: skip
_REGISTER = _managing(register, _registration, is_text=True)
_UNREGISTER = _managing(unregister, _fields(), is_text=True)


# ---------------------------------------------------------------------------------------------------------------
# The tables


def _inference(path: str, request: type[Message], handler: Any) -> Method:
    model = "" if path == PING else "model_name"
    return Method(path, request, handler, "", never, model, "inference", "torchserve-grpc")


def _management(name: str, handler: Any) -> Method:
    path = f"/{MANAGEMENT}.ManagementAPIsService/{name}"
    model = "" if name == "ListModels" else "model_name"
    request = management[f"{name}Request"]
    return Method(path, request, handler, "", always, model, "model-repository", "torchserve-grpc")


_APIS: Mapping[str, Mapping[str, Method]] = {
    "inference": {
        each.path: each
        for each in (
            _inference(PING, Empty, _ping),
            _inference(PREDICTIONS, PredictionsRequest, None),
            _inference(STREAM_PREDICTIONS, PredictionsRequest, None),
            _inference(STREAM_PREDICTIONS_2, PredictionsRequest, None),
        )
    },
    "management": {
        each.path: each
        for each in (
            _management("DescribeModel", _managing(describe, _fields("customized"))),
            _management("ListModels", _managing(models, _fields("limit", "next_page_token"))),
            _management("RegisterModel", _register),
            _management(
                "ScaleWorker",
                _managing(scale_workers, _fields("min_worker", "max_worker", "synchronous"), is_text=True),
            ),
            _management("SetDefault", _managing(set_default, _fields(), is_text=True)),
            _management("UnregisterModel", _unregister),
        )
    },
}
#: The rpcs of all of TorchServe's listeners, for the road: the lane has checked that the call's listener has its rpc.
ALL: Mapping[str, Method] = {
    **_APIS["inference"], **_APIS["management"], **open_inference.METHODS,
}  # fmt: skip
