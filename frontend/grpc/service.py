"""The rpcs of a Triton server: one table of all rpcs, with their handlers and the rights that they ask for, and the
handlers of the unary rpcs.

Results and refusals are those of HTTP's handlers: frontend/v2 decides, and this module only turns messages into
arguments and results into messages. ModelInfer, ModelStreamInfer and reflection are in the table without a handler,
since lane and road serve them differently. Pure but for questions to the supervisor; front-end processes.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as AnyMessage
from google.protobuf.wrappers_pb2 import StringValue

from shoal.api_keys import ApiKey
from shoal.errors import (
    InternalError,
    InvalidArgumentError,
    PermissionDeniedError,
    ShoalError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)
from shoal.frontend.access.authorisation import authorise, check_model
from shoal.frontend.access.doors import Scope, missing, scope_of
from shoal.frontend.access.tokens import REFUSAL as REFUSAL_OF_TOKEN
from shoal.frontend.access.tokens import Tokens
from shoal.frontend.access_log import AUDIT
from shoal.frontend.grpc.messages import REFLECTION_PATHS, HealthCheckRequest, HealthCheckResponse
from shoal.frontend.grpc.messages import service as pb
from shoal.frontend.model_name import check_name
from shoal.frontend.state import ServerState
from shoal.frontend.v2 import log_settings, shared_memory, trace_settings
from shoal.frontend.v2.model_repository import load_model, repository_name_unsupported, rows, unload_model
from shoal.star.known_server import (
    asks_model,
    collect,
    describe_model,
    describe_server,
    is_live,
    is_model_ready,
    is_server_ready,
)
from shoal.star.model_control import PREFIX
from shoal.star.models import parse_version
from shoal.tracer.settings import read_changes

if TYPE_CHECKING:
    from shoal.frontend.road.transport import Transport

SERVICE = "inference.GRPCInferenceService"
MODEL_INFER, MODEL_STREAM_INFER = f"/{SERVICE}/ModelInfer", f"/{SERVICE}/ModelStreamInfer"
_MAX_UINT32 = 2**32 - 1

#: A message of Triton's protocol. tritonclient makes the classes when their module is loaded, so type checkers do not
#: know them.
Message = Any


class GrpcCall(NamedTuple):
    """One call on its way to its handler. `peer` is the client's IP address, or "" if it has none."""

    state: ServerState
    transport: "Transport | None"  # None on the lane
    metadata: Mapping[str, str]
    peer: str
    deadline_ns: int = 0  # the client's deadline, monotonic; 0 = none; unused on lanes
    key: ApiKey | None = None  # the client's, if the call needs one

    @property
    def road(self) -> "Transport":
        """The transport, for handlers that wait, which only the road runs."""
        assert self.transport is not None, "a lane hands over what waits"
        return self.transport

    def ask(self, verb: str, arguments: dict[str, Any], timeout_s: float | None = None) -> Any:
        """Ask the supervisor a question (see Transport). For handlers that wait. Raises ShoalError if the supervisor
        refuses."""
        return self.road.ask(verb, arguments, timeout_s)


Handler = Callable[[GrpcCall, Message], Message]
#: A function from the server's state and the request's bytes: whether `run` would wait, for the supervisor or for a
#: model, so that only the road may call it. Raises InternalError for a malformed request.
Waits = Callable[[ServerState, bytes | memoryview], bool]


def never(_state: ServerState, _request: bytes | memoryview) -> bool:
    """The `waits` of a method whose handler never waits."""
    return False


def always(_state: ServerState, _request: bytes | memoryview) -> bool:
    """The `waits` of a method whose handler always asks the supervisor, or a model."""
    return True


class Method(NamedTuple):
    """An rpc. `group` is the name by which access to it can be restricted; `handler` is None if lane and road serve the
    rpc without one."""

    path: str
    request: type[Message]
    handler: Handler | None
    group: str  # "" = unrestricted
    waits: Waits = never
    model_field: str = ""  # the field of the request that names the model; "" = there is none
    token: str = ""  # which of TorchServe's keys a call must have, if the server has keys; "" = none
    api: str = "grpc"  # the API by its name in access/doors.py

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def scope(self) -> Scope:
        """The right that a client must have to call the rpc."""
        return scope_of(self.api, self.name)


def find(path: str, methods: "Mapping[str, Method] | None" = None) -> Method:
    """The rpc of a call's `:path` among an endpoint's `methods`, by default Triton's. Raises UnsupportedError if there
    is none."""
    known = METHODS if methods is None else methods
    method = known.get(path)
    if method is None:
        services = SERVICE if methods is None else ", ".join(sorted({each.split("/")[1] for each in methods}))
        raise UnsupportedError(f"unknown method '{path[:200]}': this server has those of {services}")
    return method


def check_access(method: Method, state: ServerState, metadata: Mapping[str, str], peer: str) -> ApiKey | None:
    """The API key of a call, if the method needs one. Raises UnavailableError if the call lacks metadata that the
    method needs, UnauthenticatedError or PermissionDeniedError if the client may not call the method. Metadata keys are
    in lower case."""
    restrictions = state.grpc.restricted_protocol
    if restrictions and (name := missing(restrictions, method.group, metadata)):
        raise UnavailableError(f"This protocol is restricted, expecting header '{name}'")
    if method.token and not _tokens(state.torchserve.token_file).admits(
        method.token, metadata, datetime.now().astimezone()
    ):
        raise PermissionDeniedError(str(REFUSAL_OF_TOKEN))
    scope = method.scope
    try:
        return authorise(state, scope, metadata, peer, None)
    except (UnauthenticatedError, PermissionDeniedError) as error:
        if scope is Scope.ADMIN:
            AUDIT.refused(method.path, peer, error.grpc_status)
        raise


@cache
def _tokens(path: str) -> Tokens:
    return Tokens(path)


def refuse_while_exiting(state: ServerState) -> None:
    """Raise UnavailableError if the server is ending and accepts no more inference."""
    if state.exiting:
        raise shutting_down()


def shutting_down() -> UnavailableError:
    """The error of a server that is ending, in Triton's words."""
    return UnavailableError("GRPC server is shutting down and has stopped accepting new requests.")


def run(method: Method, call: GrpcCall, request: bytes | memoryview) -> bytes:
    """Answer a unary call that `check_access` has passed; request and answer are the bytes of messages. Raises
    ShoalError if the call is refused."""
    assert method.handler is not None, "lane and road serve a stream, or an inference, each in its own way"
    parsed = parse(method.request, request)
    scope = method.scope
    if scope is Scope.SETTINGS:
        scope = Scope.ADMIN if parsed.settings else Scope.READ
    model = getattr(parsed, method.model_field) if method.model_field else ""
    if call.key is not None or scope is Scope.ADMIN:
        _authorise_message(method, scope, call, model)
    if scope is not Scope.ADMIN:
        answer: bytes = method.handler(call, parsed).SerializeToString()
        return answer
    status = InternalError.grpc_status
    try:
        answer = method.handler(call, parsed).SerializeToString()
        status = 0
    except ShoalError as error:
        status = error.grpc_status
        raise
    finally:
        AUDIT.answered(f"{method.name} of model '{model}'" if model else method.name, call.key, call.peer, status)
    return answer


def _authorise_message(method: Method, scope: Scope, call: GrpcCall, model: str) -> None:
    """Check what only the message of a call shows: its model, and whether it changes settings."""
    try:
        if scope is not Scope.OPEN:
            key = authorise(call.state, scope, call.metadata, call.peer, None)
            if scope is not Scope.KNOWN:
                check_model(key, model)
    except (UnauthenticatedError, PermissionDeniedError) as error:
        if scope is Scope.ADMIN:
            AUDIT.refused(method.path, call.peer, error.grpc_status)
        raise


def parse(message: type[Message], data: bytes | memoryview) -> Message:
    """The message in these bytes. Raises InternalError for bytes that are no such message: gRPC's own servers answer
    with INTERNAL, too."""
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise InternalError(f"the request is no {message.DESCRIPTOR.full_name}: {error}") from None


# ---------------------------------------------------------------------------------------------------------------
# Health, metadata, statistics


def _server_live(call: GrpcCall, _request: Message) -> Message:
    return pb.ServerLiveResponse(live=is_live(call.state))


def _server_ready(call: GrpcCall, _request: Message) -> Message:
    return pb.ServerReadyResponse(ready=is_server_ready(call.state))


def _model_ready(call: GrpcCall, request: Message) -> Message:
    """Whether a model is ready. A model or version that is not loaded is not ready, which is no error here, since
    clients ask in a loop until it is ready. Over HTTP the answer is then 404, as in Triton."""
    call.state.require_ready()
    if request.version:
        parse_version(request.version)  # raises InvalidArgumentError
    try:
        call.state.models.lookup(request.name, request.version)
    except ShoalError:
        return pb.ModelReadyResponse(ready=False)
    return pb.ModelReadyResponse(ready=is_model_ready(call.state, call.ask, request.name, request.version))


def _model_ready_waits(state: ServerState, data: bytes | memoryview) -> bool:
    request = parse(pb.ModelReadyRequest, data)
    return asks_model(state, request.name, request.version)


def _server_metadata(call: GrpcCall, _request: Message) -> Message:
    return pb.ServerMetadataResponse(**describe_server(call.state))


def _model_metadata(call: GrpcCall, request: Message) -> Message:
    return pb.ModelMetadataResponse(**describe_model(call.state, request.name, request.version))


def _model_config(call: GrpcCall, request: Message) -> Message:
    return pb.ModelConfigResponse(config=call.state.models.lookup(request.name, request.version).config)


def _model_statistics(call: GrpcCall, request: Message) -> Message:
    return pb.ModelStatisticsResponse(**collect(call.state, request.name, request.version))


def _health_check(call: GrpcCall, request: Message) -> Message:
    """Answer gRPC's own health protocol, which Kubernetes speaks. If the service in the request is the name of no
    model, the answer is about the server: Triton ignores the name, so clients send any."""
    name = request.service
    if _is_known(call.state, name):
        is_serving = bool(call.state.models.ready_entries(name)) and is_model_ready(call.state, call.ask, name, None)
    else:
        is_serving = is_server_ready(call.state)
    return HealthCheckResponse(status=HealthCheckResponse.SERVING if is_serving else HealthCheckResponse.NOT_SERVING)


def _health_check_waits(state: ServerState, data: bytes | memoryview) -> bool:
    name = parse(HealthCheckRequest, data).service
    return _is_known(state, name) and asks_model(state, name, None)


def _healthz(call: GrpcCall, _request: Message) -> Message:
    """Answer Ray Serve's HAProxy, which looks for "success" among the bytes of the answer, whatever its status. In the
    protobuf encoding Ray's own messages (src/ray/protobuf/serve.proto) are equal to the two used here: an empty one,
    and one whose first field is a string."""
    return StringValue(value="success" if is_server_ready(call.state) else "the server is not ready")


def _is_known(state: ServerState, model: str) -> bool:
    return model != "" and any(entry.name == model for entry in state.models.entries())


# ---------------------------------------------------------------------------------------------------------------
# The model repository


def _repository_index(call: GrpcCall, request: Message) -> Message:
    _refuse_repository_name(request)
    return pb.RepositoryIndexResponse(models=rows(call.state, call.ask, only_ready=request.ready))


def _repository_model_load(call: GrpcCall, request: Message) -> Message:
    _refuse_repository_name(request)
    config, contents = None, {}
    for key, parameter in request.parameters.items():
        kind = "string_param" if key == "config" else "bytes_param"
        if key != "config" and not key.startswith(PREFIX):
            raise InvalidArgumentError(f"unrecognized load parameter '{key}'.")
        if not parameter.HasField(kind):
            raise InvalidArgumentError(f"invalid value type for load parameter '{key}', expected {kind}.")
        if key == "config":
            config = parameter.string_param
        else:
            contents[key] = parameter.bytes_param
    request.ClearField("parameters")  # frees the files in it before the load, which may take long
    check_name(request.model_name)
    load_model(call.state, call.ask, request.model_name, config, contents)
    return pb.RepositoryModelLoadResponse()


def _repository_model_unload(call: GrpcCall, request: Message) -> Message:
    _refuse_repository_name(request)
    unload_dependents = False
    if "unload_dependents" in request.parameters:
        parameter = request.parameters["unload_dependents"]
        if not parameter.HasField("bool_param"):
            raise InvalidArgumentError("invalid value type for 'unload_dependents' parameter, expected bool_param.")
        unload_dependents = parameter.bool_param
    check_name(request.model_name)
    unload_model(call.state, call.ask, request.model_name, unload_dependents=unload_dependents)
    return pb.RepositoryModelUnloadResponse()


def _refuse_repository_name(request: Message) -> None:
    if request.repository_name:
        raise repository_name_unsupported()


# ---------------------------------------------------------------------------------------------------------------
# Shared memory


def _regions(kind: str, response: Callable[..., Message]) -> Handler:
    def handle(call: GrpcCall, request: Message) -> Message:
        return response(regions={each["name"]: each for each in call.state.regions.status(kind, request.name)})

    return handle


def _unregister(kind: str, response: Callable[..., Message]) -> Handler:
    def handle(call: GrpcCall, request: Message) -> Message:
        shared_memory.unregister(call.state, call.ask, kind, request.name)
        return response()

    return handle


def _register_system(call: GrpcCall, request: Message) -> Message:
    arguments = request.name, request.key, request.offset, request.byte_size
    shared_memory.register_system(call.state, call.ask, *arguments)
    return pb.SystemSharedMemoryRegisterResponse()


def _register_cuda(call: GrpcCall, request: Message) -> Message:
    arguments = request.name, request.raw_handle, request.device_id, request.byte_size
    shared_memory.register_cuda_handle(call.state, call.ask, *arguments)
    return pb.CudaSharedMemoryRegisterResponse()


# ---------------------------------------------------------------------------------------------------------------
# Settings of traces and of the log

#: By the type of a setting's value: the field of the value in a message of log settings, and Triton's name for the
#: type.
_LOG_FIELDS = {bool: ("bool_param", "boolean"), int: ("uint32_param", "int32"), str: ("string_param", "string")}


def _trace_setting(call: GrpcCall, request: Message) -> Message:
    trace_settings.check_model(call.state, request.model_name)
    changes = read_changes(_trace_changes(request.settings)) if request.settings else None
    described = trace_settings.settings_of(call.ask, request.model_name, changes)
    settings = {name: {"value": value if isinstance(value, list) else [value]} for name, value in described.items()}
    return pb.TraceSettingResponse(settings=settings)


def _trace_changes(settings: Mapping[str, Message]) -> dict[str, Any]:
    """The settings of traces in the form that they have in HTTP's JSON, where an empty value is null."""
    changes: dict[str, Any] = {}
    for name, setting in settings.items():
        values = list(setting.value)
        if len(values) > 1 and name != "trace_level":
            raise InvalidArgumentError(f"expect only 1 value for '{name}'")
        changes[name] = None if not values else values if name == "trace_level" else values[0]
    return changes


def _log_settings(call: GrpcCall, request: Message) -> Message:
    if request.settings:
        described = log_settings.change(call.state, call.ask, _log_changes(request.settings))
    else:
        described = log_settings.describe(call.state, call.state.log_settings)
    settings = {}
    for name, value in described.items():
        settings[name] = {_LOG_FIELDS[type(value)][0]: min(value, _MAX_UINT32) if type(value) is int else value}
    return pb.LogSettingsResponse(settings=settings)


def _log_settings_waits(_state: ServerState, request: bytes | memoryview) -> bool:
    return len(request) > 0  # a message without settings changes nothing


def _log_changes(settings: Mapping[str, Message]) -> dict[str, Any]:
    """The settings of the log as arguments of log.configure, checked in Triton's order; unknown settings are ignored.
    Raises ShoalError if a setting is refused."""
    if "log_file" in settings:
        raise UnsupportedError("log file location can not be updated through network protocol")
    changes: dict[str, Any] = {}
    for name, (argument, kind, _) in log_settings.SETTINGS.items():
        if name not in settings:
            continue
        field, called = _LOG_FIELDS[kind]
        if not settings[name].HasField(field):
            raise InvalidArgumentError(f"expect {called} for '{name}'")
        changes[argument] = getattr(settings[name], field)
        if name == "log_format" and changes[argument] not in log_settings.FORMATS:
            raise InvalidArgumentError(f"invalid argument for log_format, got: {changes[argument]}")
    return changes


# ---------------------------------------------------------------------------------------------------------------
# The table


def _method(name: str, handler: Handler | None, group: str, asks: Waits = never, model: str = "") -> Method:
    request = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name[name].input_type
    return Method(f"/{SERVICE}/{name}", getattr(pb, request.name), handler, group, asks, model)


_UNREGISTER_SYSTEM = _unregister("system", pb.SystemSharedMemoryUnregisterResponse)
_UNREGISTER_CUDA = _unregister("cuda", pb.CudaSharedMemoryUnregisterResponse)

METHODS = {
    method.path: method
    for method in (
        _method("ServerLive", _server_live, "health"),
        _method("ServerReady", _server_ready, "health"),
        _method("ModelReady", _model_ready, "health", _model_ready_waits, "name"),
        _method("ServerMetadata", _server_metadata, "metadata"),
        _method("ModelMetadata", _model_metadata, "metadata", model="name"),
        _method("ModelInfer", None, "inference", model="model_name"),
        _method("ModelStreamInfer", None, "inference", model="model_name"),
        _method("ModelConfig", _model_config, "model-config", model="name"),
        _method("ModelStatistics", _model_statistics, "statistics", model="name"),
        _method("RepositoryIndex", _repository_index, "model-repository", always),
        _method("RepositoryModelLoad", _repository_model_load, "model-repository", always, "model_name"),
        _method("RepositoryModelUnload", _repository_model_unload, "model-repository", always, "model_name"),
        _method("SystemSharedMemoryStatus", _regions("system", pb.SystemSharedMemoryStatusResponse), "shared-memory"),
        _method("SystemSharedMemoryRegister", _register_system, "shared-memory", always),
        _method("SystemSharedMemoryUnregister", _UNREGISTER_SYSTEM, "shared-memory", always),
        _method("CudaSharedMemoryStatus", _regions("cuda", pb.CudaSharedMemoryStatusResponse), "shared-memory"),
        _method("CudaSharedMemoryRegister", _register_cuda, "shared-memory", always),
        _method("CudaSharedMemoryUnregister", _UNREGISTER_CUDA, "shared-memory", always),
        _method("TraceSetting", _trace_setting, "trace", always, "model_name"),
        _method("LogSettings", _log_settings, "logging", _log_settings_waits),
        Method("/grpc.health.v1.Health/Check", HealthCheckRequest, _health_check, "health", _health_check_waits),
        Method("/ray.serve.RayServeAPIService/Healthz", Empty, _healthz, "health"),
        *[Method(path, AnyMessage, None, "") for path in REFLECTION_PATHS],  # reflection.py makes their messages
    )
}
