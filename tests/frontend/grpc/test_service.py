"""frontend/grpc/service.py: what each rpc finds and refuses, from bytes to bytes; no process but this one."""

from dataclasses import replace
from typing import Any

import pytest

from shoal.errors import (
    InternalError,
    InvalidArgumentError,
    ShoalError,
    UnavailableError,
    UnsupportedError,
)
from shoal.frontend.grpc.messages import REFLECTION_PATHS, HealthCheckRequest, HealthCheckResponse
from shoal.frontend.grpc.messages import service as pb
from shoal.frontend.grpc.service import (
    METHODS,
    MODEL_INFER,
    MODEL_STREAM_INFER,
    GrpcCall,
    check_access,
    find,
    refuse_while_exiting,
    run,
)
from shoal.frontend.state import ServerState
from shoal.grpc_settings import GrpcSettings
from shoal.shm.counters import CELL, CounterTable
from tests.frontend.conftest import LOG_SETTINGS, EchoTransport

ASK = ". POST /v2/repository/index says why"

RPC = "/inference.GRPCInferenceService/"


class Caller:
    """Calls rpcs by name, as the road does; `transport` is the supervisor."""

    def __init__(self, state: ServerState, transport: EchoTransport) -> None:
        self.state = state
        self.transport: EchoTransport | None = transport
        self.metadata: dict[str, str] = {}
        self.peer = "127.0.0.1"

    def __call__(self, name: str, /, **fields: Any) -> Any:
        method = find(RPC + name)
        check_access(method, self.state, self.metadata, self.peer)
        request = method.request(**fields).SerializeToString()
        answer = run(method, GrpcCall(self.state, self.transport, self.metadata, self.peer), memoryview(request))
        return getattr(pb, f"{name}Response").FromString(answer)

    def waits(self, name: str, /, **fields: Any) -> bool:
        method = find(RPC + name)
        return method.waits(self.state, method.request(**fields).SerializeToString())

    def refusal(self, name: str, /, **fields: Any) -> tuple[type[ShoalError], str]:
        with pytest.raises(ShoalError) as raised:
            self(name, **fields)
        return type(raised.value), str(raised.value)


@pytest.fixture
def call(state: ServerState, transport: EchoTransport) -> Caller:
    return Caller(state, transport)


@pytest.fixture
def lane(call: Caller) -> Caller:
    """Where nothing can be asked."""
    call.transport = None
    return call


def test_every_rpc_of_the_service_is_there_and_only_inference_has_no_handler() -> None:
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    paths = {RPC + method.name for method in service.methods}
    paths |= REFLECTION_PATHS
    assert set(METHODS) == paths | {"/grpc.health.v1.Health/Check", "/ray.serve.RayServeAPIService/Healthz"}
    streams = {path for path, method in METHODS.items() if method.handler is None}
    assert streams == {MODEL_INFER, MODEL_STREAM_INFER, *REFLECTION_PATHS}
    with pytest.raises(UnsupportedError, match=r"^unknown method ./grpc\.health\.v1\.Health/Watch."):
        find("/grpc.health.v1.Health/Watch")


def test_calls_without_questions_are_answered_by_the_lane(lane: Caller) -> None:
    assert lane("ServerLive").live
    assert not lane("ServerReady").ready  # as strict readiness has it: two models are not settled
    lane.state.strict_readiness = False
    assert lane("ServerReady").ready
    assert lane("ModelReady", name="simple").ready
    assert not lane("ModelReady", name="asleep", version="7").ready
    assert not lane.waits("ModelReady", name="simple")
    assert not lane.waits("ModelReady", name="none")
    metadata = lane("ServerMetadata")
    assert (metadata.name, metadata.version, metadata.extensions[0]) == ("triton", "2.73.0", "classification")


def test_a_stopping_server_says_so(call: Caller) -> None:
    call.state.exiting = True
    for name in ("ServerLive", "ServerReady"):
        assert call.refusal(name) == (UnavailableError, "Server exiting")
    assert call.refusal("ModelReady", name="simple") == (UnavailableError, "Server not ready")
    with pytest.raises(
        UnavailableError, match=r"^GRPC server is shutting down and has stopped accepting new requests\.$"
    ):
        refuse_while_exiting(call.state)
    call.state.exiting = False
    refuse_while_exiting(call.state)


def test_a_version_that_is_no_number_is_an_error_of_readiness_too(lane: Caller) -> None:
    for name in ("ModelReady", "ModelMetadata"):
        assert lane.refusal(name, name="simple", version="x")[0] is InvalidArgumentError


def test_a_model_that_has_a_word_in_it_is_asked_on_the_road(call: Caller, make_message: Any) -> None:
    entry = call.state.models.lookup("simple", "1")
    call.state.models.apply(make_message("simple", 1, entry.model_id, entry.config, has_ready_check=True))
    assert call.waits("ModelReady", name="simple", version="1")
    assert call.transport is not None
    call.transport.answers["is_ready"] = False
    assert not call("ModelReady", name="simple", version="1").ready
    assert call.transport.asked == [("is_ready", {"model": entry.model_id})]


def test_model_config_keeps_every_kind_of_field(lane: Caller) -> None:
    config = lane("ModelConfig", name="simple").config
    assert (config.name, config.max_batch_size, config.input[1].data_type) == ("simple", 8, 8)
    assert config.dynamic_batching.max_queue_delay_microseconds == 9007199254740993
    echo = lane("ModelConfig", name="écho b").config
    assert (list(echo.input[0].reshape.shape), dict(echo.metric_tags)) == ([-1], {"team": 'a"b\\c\nd'})


def test_statistics_are_the_batchers(lane: Caller, counters: CounterTable) -> None:
    row = counters.row(4)
    row.cells[CELL["success_count"]] = 10
    row.cells[CELL["queue_ns"]] = 104
    row.count_execution(4, 1, 2, 3)
    row.publish()
    (model,) = lane("ModelStatistics", name="écho b").model_stats
    assert (model.name, model.version, model.execution_count) == ("écho b", "1", 1)
    assert (model.inference_stats.queue.count, model.inference_stats.queue.ns) == (10, 104)
    assert (model.batch_stats[0].batch_size, model.batch_stats[0].compute_infer.ns) == (4, 2)
    versions = [(each.name, each.version) for each in lane("ModelStatistics").model_stats]
    assert versions == [("asleep", "7"), ("simple", "1"), ("simple", "3"), ("stream", "1"), ("écho b", "1")]
    assert lane.refusal("ModelStatistics", name="none") == (
        InvalidArgumentError,
        "requested model 'none' is not available",
    )


def test_the_index_is_the_supervisors(call: Caller) -> None:
    assert call.transport is not None
    assert call.waits("RepositoryIndex")
    call.transport.answers["index"] = [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "b", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "c"},
    ]
    models = [(each.name, each.version, each.state, each.reason) for each in call("RepositoryIndex").models]
    assert models == [("a", "1", "READY", ""), ("b", "1", "UNAVAILABLE", "unloaded"), ("c", "", "", "")]
    assert [each.name for each in call("RepositoryIndex", ready=True).models] == ["a"]


NO_REPOSITORY = UnsupportedError, "'repository_name' specification is not supported"


@pytest.mark.parametrize("name", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
def test_no_repository_can_be_named(call: Caller, name: str) -> None:
    assert call.refusal(name, repository_name="r") == NO_REPOSITORY


def test_a_model_is_loaded_with_a_configuration_and_files(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    call.state.model_control_mode = "explicit"
    assert call.transport is not None
    call.transport.answers["load"] = None
    call("RepositoryModelLoad", model_name="m")
    files = {"config": {"string_param": "{}"}, "file:1/model.onnx": {"bytes_param": b"\x00not base64"}}
    assert call.waits("RepositoryModelLoad", model_name="m")
    call("RepositoryModelLoad", model_name="m", parameters=files)
    (_, plain), (_, loaded) = call.transport.asked
    assert plain == {"model": "m", "config": None, "directory": None}
    assert (loaded["config"], loaded["model"]) == ("{}", "m")
    assert (tmp_path / loaded["directory"] / "1/model.onnx").read_bytes() == b"\x00not base64"


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"config": {"bytes_param": b"{}"}}, "invalid value type for load parameter 'config', expected string_param."),
        ({"config": {}}, "invalid value type for load parameter 'config', expected string_param."),
        ({"file:a": {"string_param": ""}}, "invalid value type for load parameter 'file:a', expected bytes_param."),
    ],
)
def test_a_load_that_is_refused(call: Caller, parameters: dict[str, Any], sentence: str) -> None:
    call.state.model_control_mode = "explicit"
    assert call.refusal("RepositoryModelLoad", model_name="m", parameters=parameters) == (
        InvalidArgumentError,
        sentence,
    )
    assert call.transport is not None
    assert not call.transport.asked


@pytest.mark.parametrize("name", ["RepositoryModelLoad", "RepositoryModelUnload"])
def test_who_may_change_what_is_served(call: Caller, name: str) -> None:
    not_allowed = UnavailableError, "explicit model load / unload is not allowed if polling is enabled"
    assert call.refusal(name, model_name="m") == not_allowed
    call.state.model_control_mode = "explicit"
    traversal = "invalid model name '../m', model name must not contain path traversal characters"
    assert call.refusal(name, model_name="../m") == (InvalidArgumentError, traversal)
    for call.peer, call.metadata in (("10.0.0.7", {}), ("127.0.0.1", {"x-forwarded-for": "10.0.0.7"}), ("", {})):
        with pytest.raises(UnavailableError, match=r"^models, log settings, trace settings and ") as raised:
            call(name, model_name="m")
        assert raised.value.grpc_status == 7  # PERMISSION_DENIED
    call.state.allow_remote_admin = True
    assert call.transport is not None
    call.transport.answers |= {"load": None, "unload": None}
    call(name, model_name="m")


def test_unloading(call: Caller) -> None:
    call.state.model_control_mode = "explicit"
    assert call.transport is not None
    call.transport.answers["unload"] = None
    call("RepositoryModelUnload", model_name="m")
    call("RepositoryModelUnload", model_name="m", parameters={"unload_dependents": {"bool_param": True}})
    assert [arguments["unload_dependents"] for _, arguments in call.transport.asked] == [False, True]
    wrong = {"unload_dependents": {"string_param": "true"}}
    sentence = "invalid value type for 'unload_dependents' parameter, expected bool_param."
    assert call.refusal("RepositoryModelUnload", parameters=wrong) == (InvalidArgumentError, sentence)


def test_trace_settings(call: Caller) -> None:
    assert call.transport is not None
    call.transport.answers["trace_settings"] = {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "1000"}
    answer = call("TraceSetting", model_name="simple")
    assert {name: list(each.value) for name, each in answer.settings.items()} == {
        "trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": ["1000"],
    }  # fmt: skip
    call(
        "TraceSetting", settings={"trace_level": {"value": ["OFF"]}, "trace_rate": {"value": ["5"]}, "trace_count": {}}
    )
    assert [arguments for _, arguments in call.transport.asked] == [
        {"model": "simple", "changes": None}, {"model": "", "changes": {"level": 0, "rate": 5, "count": None}},
    ]  # fmt: skip


def test_a_trace_setting_has_one_value(call: Caller) -> None:
    refused = call.refusal("TraceSetting", settings={"trace_rate": {"value": ["1", "2"]}})
    assert refused == (InvalidArgumentError, "expect only 1 value for 'trace_rate'")


def test_log_settings(call: Caller) -> None:
    assert not call.waits("LogSettings")
    told = call("LogSettings").settings
    assert (told["log_info"].bool_param, told["log_verbose_level"].uint32_param) == (True, 0)
    assert (told["log_format"].string_param, told["log_file"].WhichOneof("parameter_choice")) == (
        "default",
        "string_param",
    )
    changes: dict[str, Any] = {"log_info": {"bool_param": False}, "log_verbose_level": {"uint32_param": 2}}
    assert call.waits("LogSettings", settings=changes)
    assert call.transport is not None
    call.transport.answers["log_settings"] = {**LOG_SETTINGS, "log_verbose": 2**40}
    assert call("LogSettings", settings=changes).settings["log_verbose_level"].uint32_param == 2**32 - 1
    assert call.transport.asked == [("log_settings", {"changes": {"log_info": False, "log_verbose": 2}})]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("LogSettings", {"log_info": {"bool_param": False}}),
        ("TraceSetting", {"trace_level": {"value": ["TIMESTAMPS"]}}),
        ("TraceSetting", {"trace_level": {}}),
    ],
)
def test_settings_are_read_by_all_and_changed_by_administrators(
    call: Caller, name: str, settings: dict[str, Any]
) -> None:
    assert call.transport is not None
    call.transport.answers |= {"trace_settings": {"trace_rate": "1000"}, "log_settings": LOG_SETTINGS}
    call.peer = "10.0.0.7"
    call(name)
    asked = len(call.transport.asked)
    with pytest.raises(UnavailableError, match=r" trace settings and shared-memory regions are changed ") as raised:
        call(name, settings=settings)
    assert raised.value.grpc_status == 7  # PERMISSION_DENIED
    assert len(call.transport.asked) == asked
    call.state.allow_remote_admin = True
    call(name, settings=settings)


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"log_verbose_level": {"bool_param": True}}, InvalidArgumentError, "expect int32 for 'log_verbose_level'"),
        ({"log_format": {}}, InvalidArgumentError, "expect string for 'log_format'"),
        ({"log_file": {}}, UnsupportedError, "log file location can not be updated through network protocol"),
    ],
)  # fmt: skip
def test_log_settings_that_are_refused(
    call: Caller, settings: dict[str, Any], error: type[ShoalError], sentence: str
) -> None:
    assert call.refusal("LogSettings", settings=settings) == (error, sentence)
    assert call.transport is not None
    assert not call.transport.asked


def test_a_restricted_group_needs_its_metadata(lane: Caller) -> None:
    lane.state.grpc = replace(
        GrpcSettings(),
        restricted_protocol={
            "health": ("triton-grpc-protocol-Key", "välue"),
            "inference": ("triton-grpc-protocol-k", "v"),
        },
    )
    refused = UnavailableError, "This protocol is restricted, expecting header 'triton-grpc-protocol-Key'"
    assert lane.refusal("ServerLive") == refused
    lane.metadata = {"triton-grpc-protocol-key": "other"}
    assert lane.refusal("ServerLive") == refused
    lane.metadata = {"triton-grpc-protocol-key": "välue".encode().decode("latin-1")}
    assert lane("ServerLive").live
    assert lane("ServerMetadata").name == "triton"
    for name in ("ModelInfer", "ModelStreamInfer"):
        with pytest.raises(UnavailableError, match=r"'triton-grpc-protocol-k'$"):
            check_access(find(RPC + name), lane.state, {}, "127.0.0.1")


def test_bytes_that_are_no_message(call: Caller) -> None:
    method = find(RPC + "ModelReady")
    with pytest.raises(InternalError, match=r"^the request is no inference\.ModelReadyRequest: "):
        method.waits(call.state, b"\xff")
    with pytest.raises(InternalError, match=r"^the request is no inference\.ModelReadyRequest: "):
        run(method, GrpcCall(call.state, call.transport, {}, ""), b"\xff")


def health(call: Caller, service: str) -> int:
    method = find("/grpc.health.v1.Health/Check")
    answer = run(
        method, GrpcCall(call.state, call.transport, {}, ""), HealthCheckRequest(service=service).SerializeToString()
    )
    status: int = HealthCheckResponse.FromString(answer).status
    return status


def test_ray_s_haproxy_finds_its_word_where_the_server_is_ready(call: Caller) -> None:
    method, asked = find("/ray.serve.RayServeAPIService/Healthz"), GrpcCall(call.state, call.transport, {}, "")
    assert not method.waits(call.state, b"")
    assert b"success" not in run(method, asked, b"")
    call.state.strict_readiness = False
    assert run(method, asked, b"") == b"\x0a\x07success"


def test_health_is_the_servers_or_a_models(call: Caller, make_message: Any) -> None:
    assert [health(call, name) for name in ("", "whatever", "simple", "asleep", "gone")] == [2, 2, 1, 2, 2]
    call.state.strict_readiness = False
    assert [health(call, name) for name in ("", "whatever", "simple", "asleep", "gone")] == [1, 1, 1, 2, 2]
    method = find("/grpc.health.v1.Health/Check")
    asked = HealthCheckRequest(service="simple").SerializeToString()
    assert not method.waits(call.state, asked)
    entry = call.state.models.lookup("simple", None)
    call.state.models.apply(make_message("simple", entry.version, entry.model_id, entry.config, has_ready_check=True))
    assert method.waits(call.state, asked)
    assert call.transport is not None
    call.transport.answers["is_ready"] = False
    assert health(call, "simple") == 2
    call.state.exiting = True
    with pytest.raises(UnavailableError, match=r"^Server exiting$"):
        health(call, "")
