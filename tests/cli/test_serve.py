"""Command lines as people and start scripts write them: what they come to, what is warned of, what is refused."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shoal.cli import main, tritonserver
from shoal.cli.environment import VARIABLES
from shoal.cli.serve import CommandLine, CommandLineError, parse
from shoal.cloud_url import CloudUrl
from shoal.options import HostPolicy, MetricsConfig, ServerOptions

DEFAULTS = ServerOptions(http_address="10.0.0.1")
GOOD = replace(DEFAULTS, model_repository=(Path("models"),), metrics_address="10.0.0.1")
NO_GRPC = "gRPC is not served yet; clients reach the server over HTTP"


def understood(*arguments: str, environ: Mapping[str, str] | None = None) -> CommandLine:
    argv = ["--model-repository=models", *arguments]
    return parse(argv, prog="tritonserver", defaults=DEFAULTS, environ=environ or {})


def refusal(*arguments: str, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(CommandLineError) as error:
        understood(*arguments, environ=environ)
    return str(error.value)


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        ("", {}),
        ("--http-port=9000", {"http_port": 9000}),
        ("--http-port 9000", {"http_port": 9000}),
        ("--http-po 9000", {"http_port": 9000}),
        ("--http-port=9000 --http-port=9001", {"http_port": 9001}),
        ("--http-port=0 --metrics-port=0", {"http_port": 0, "metrics_port": 0}),
        ("--http-address=::1", {"http_address": "::1", "metrics_address": "::1"}),
        ("--http-address=::1 --metrics-address=0.0.0.0", {"http_address": "::1", "metrics_address": "0.0.0.0"}),
        ("--id=a=b", {"id": "a=b"}),
        ("--exit-on-error=false --strict-readiness OFF", {"exit_on_error": False, "strict_readiness": False}),
        ("--exit-on-error --allow-metrics 0", {"exit_on_error": True, "allow_metrics": False}),
        (
            "--allow-gpu-metrics=0 --allow-cpu-metrics=off --metrics-interval-ms=500",
            {"allow_gpu_metrics": False, "allow_cpu_metrics": False, "metrics_interval_ms": 500},
        ),
        (
            "--metrics-config summary_latencies=true --metrics-config=summary_quantiles=0.5:0.05,0.99:0.001 "
            "--metrics-config counter_latencies=true --metrics-config=counter_latencies=false",
            {"metrics_config": MetricsConfig(False, False, True, ((0.5, 0.05), (0.99, 0.001)))},
        ),
        ("--log-verbose --log-info=0", {"log_verbose": 1, "log_info": False}),
        ("--log-format iso8601", {"log_format": "ISO8601"}),
        ("--log-verbose=4", {"log_verbose": 4}),
        ("--disable-auto-complete-config", {"disable_auto_complete_config": True}),
        ("--model-config-name=large", {"model_config_name": "large"}),
        ("--model-r b --model-s c --model-r=b", {"model_repository": (GOOD.model_repository[0], Path("b"), Path("c"))}),
        (
            "--model-control-mode=explicit --load-model=a --load-model=b --load-model=a",
            {"model_control_mode": "explicit", "load_model": ("a", "b")},
        ),
        (
            "--model-control-mode=POLL --repository-poll-secs=3 --model-load-retry-count=2",
            {"model_control_mode": "poll", "repository_poll_secs": 3, "model_load_retry_count": 2},
        ),
        ("--model-namespacing=true", {"model_namespacing": True}),
        ("--shm-oversize-mib=96", {"shm_oversize_mib": 96, "max_request_bytes": 100663296}),
        ("--shm-oversize-mib=0", {"shm_oversize_mib": 0, "max_request_bytes": 16777216}),
        ("--max-request-bytes=1000", {"max_request_bytes": 1000}),
        (
            "--backend-config=onnxruntime,a=1 --backend-config=b=2 --backend-config onnxruntime,c=3",
            {"backend_config": {"onnxruntime": {"a": "1", "c": "3"}, "": {"b": "2"}}},
        ),
        (
            "--allow-sagemaker --sagemaker-address=10.0.0.2 --sagemaker-port=8081 --sagemaker-safe-port-range=1-9000",
            {
                "allow_sagemaker": True, "sagemaker_address": "10.0.0.2", "sagemaker_port": 8081,
                "sagemaker_safe_port_range": (1, 9000),
            },
        ),
        (
            "--vertex-ai-address=10.0.0.2 --vertex-ai-port=0 --vertex-ai-default-model=m",
            {"vertex_ai_address": "10.0.0.2", "vertex_ai_port": 0, "vertex_ai_default_model": "m"},
        ),
        (
            "--host-policy=gpu_0,numa-node=1 --host-policy=cpu,cpu-cores=0-1 --host-policy=gpu_0,cpu-cores=4-5",
            {"host_policy": {"gpu_0": HostPolicy(1, (4, 5)), "cpu": HostPolicy(None, (0, 1))}},
        ),
        ("--min-supported-compute-capability=7.5", {"min_supported_compute_capability": 7.5}),
        ("--log-file=/var/log/shoal.log", {"log_file": "/var/log/shoal.log"}),
        ("--http-header-forward-pattern=^x-|id", {"http_header_forward_pattern": "^x-|id"}),
        (
            "--http-restricted-api=trace,logging:admin-key=a=b --http-restricted-api health:Key=v:w",
            {
                "http_restricted_api": {
                    "trace": ("admin-key", "a=b"), "logging": ("admin-key", "a=b"), "health": ("Key", "v:w"),
                }
            },
        ),
    ],
)  # fmt: skip
def test_what_is_honoured(arguments: str, changes: dict[str, object]) -> None:
    assert understood(*arguments.split()) == (replace(GOOD, **changes), ())  # type: ignore[arg-type]  # many fields


@pytest.mark.parametrize(
    "arguments",
    [
        "--model-control-mode=none", "--model-control-mode=NONE", "--rate-limit=off", "--allow-grpc=false",
        "--allow-client-shm=0", "--allow-sagemaker=false", "--allow-vertex-ai=false", "--grpc-use-ssl=false",
        "--grpc-server-cert=", "--log-file=", "--reuse-http-port=false", "--model-load-retry-count=0",
        "--http-header-forward-pattern=", "--model-namespacing=off", "--repository-poll-secs=15",
        "--backend-directory=/opt/tritonserver/backends", "--min-supported-compute-capability=6.0",
    ],
)  # fmt: skip
def test_what_the_server_does_anyway_is_taken_without_a_word(arguments: str) -> None:
    assert understood(arguments) == (GOOD, ())


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("--grpc-port=8001", NO_GRPC),
        ("--allow-grpc", NO_GRPC),
        ("--grpc-address=0.0.0.0", NO_GRPC),
        ("--grpc-infer-allocation-pool-size=4", NO_GRPC),
        ("--grpc-max-response-pool-size=4", NO_GRPC),
        ("--grpc-infer-thread-count=2", NO_GRPC),
        ("--grpc-infer-response-compression-level=low", NO_GRPC),
        ("--grpc-keepalive-time=1", NO_GRPC),
        ("--grpc-keepalive-timeout=1", NO_GRPC),
        ("--grpc-keepalive-permit-without-calls=1", NO_GRPC),
        ("--grpc-http2-max-pings-without-data=1", NO_GRPC),
        ("--grpc-http2-min-recv-ping-interval-without-data=1", NO_GRPC),
        ("--grpc-http2-max-ping-strikes=1", NO_GRPC),
        ("--grpc-max-connection-age=1", NO_GRPC),
        ("--grpc-max-connection-age-grace=1", NO_GRPC),
        ("--pinned-memory-pool-byte-size=0", "Shoal keeps no such memory pool"),
        ("--cuda-memory-pool-byte-size=0:64", "Shoal keeps no such memory pool"),
        ("--cuda-virtual-address-size=0:64", "Shoal keeps no such memory pool"),
        ("--enable-peer-access=true", "backends decide for themselves about access between GPUs"),
        ("--buffer-manager-thread-count=2", "tensors are gathered by the worker that runs them"),
        ("--model-load-gpu-limit=0:0.5", "GPU memory is not watched while a model loads"),
        ("--repoagent-directory=x", "repository agents are not there yet"),
        ("--sagemaker-thread-count=1", "its requests are answered by the threads that --http-thread-count sets"),
        ("--vertex-ai-thread-count=1", "its requests are answered by the threads that --http-thread-count sets"),
    ],
)
def test_what_is_ignored_earns_one_warning(argument: str, reason: str) -> None:
    assert understood(argument) == (GOOD, (f"{argument.partition('=')[0]} is ignored: {reason}",))


def test_what_is_deprecated_earns_one_warning() -> None:
    warning = "'--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead."
    assert understood("--strict-model-config=false") == (GOOD, (warning,))


@pytest.mark.parametrize(
    "argument",
    [
        "--grpc-use-ssl=true",
        "--grpc-use-ssl-mutual", "--grpc-server-cert=a", "--grpc-server-key=a", "--grpc-root-cert=a",
        "--grpc-restricted-protocol=a:b=c",
        "--cache-config=local,size=1048576", "--cache-directory=a", "--response-cache-byte-size=1024",
        "--rate-limit=execution_count", "--rate-limit-resource=R:1",
        "--allow-client-shm=true",
        "--grpc-header-forward-pattern=x", "--reuse-http-port", "--reuse-grpc-port=true",
    ],
)  # fmt: skip
def test_what_is_not_there_yet_is_refused(argument: str) -> None:
    sentence = refusal(argument)
    assert sentence.startswith(f'Bad option: "{argument}') or "=" not in argument
    assert " not there yet; leave it out" in sentence


def test_a_refusal_names_the_feature_and_the_remedy() -> None:
    assert refusal("--rate-limit", "execution_count") == (
        'Bad option: "--rate-limit=execution_count".\n'
        "the rate limiter is not there yet; leave it out, or give its default, off"
    )


def test_settings_of_the_trace_are_collected_and_the_older_flags_come_first() -> None:
    arguments = "--trace-config=rate=2 --trace-rate=1 --trace-file a --trace-config triton,file=b --trace-level=min"
    options, warnings = understood(*arguments.split())
    assert options.trace_config == (
        ("triton", "file", "a"), ("", "level", "min"), ("", "rate", "1"), ("", "rate", "2"), ("triton", "file", "b"),
    )  # fmt: skip
    assert warnings == tuple(
        f"'--trace-{name}' has been deprecated! Please use '--trace-config' instead."
        for name in ("file", "level", "rate")
    )


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        (
            "--trace-config=rate",
            "--trace-config option format is '<trace mode>,<setting>=<value>' or '<setting>=<value>'. Got rate",
        ),
        ("--trace-rate=often", "expected an integer for rate, got 'often'"),
        ("--trace-level=LOUD", "invalid value for trace level option: LOUD"),
    ],
)
def test_a_trace_setting_that_makes_no_sense_is_refused(argument: str, sentence: str) -> None:
    assert refusal(argument) == f'Bad option: "{argument.partition("=")[0]}".\n{sentence}'


def test_export_needs_a_batch_that_fits_its_queue() -> None:
    arguments = ["--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,bsp_max_queue_size=100"]
    assert refusal(*arguments) == (
        "--trace-config opentelemetry,bsp_max_export_batch_size=512 exceeds bsp_max_queue_size=100; spans beyond the "
        "latter would be lost"
    )
    assert understood(*arguments, environ={"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "100"}).options.trace_config


def test_export_needs_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("shoal.tracing.command_line.version", missing)
    assert refusal("--trace-config=mode=opentelemetry") == (
        "--trace-config mode=opentelemetry needs opentelemetry-sdk, which is not installed; install it with: "
        "pip install 'shoal[opentelemetry]'"
    )


def test_the_successor_of_a_deprecated_flag_wins() -> None:
    for arguments in (
        ["--strict-model-config=false", "--disable-auto"],
        ["--disable-auto", "--strict-model-config=false"],
    ):
        assert understood(*arguments).options.disable_auto_complete_config is True
    assert understood("--strict-model-config").options.disable_auto_complete_config is True


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--nonsense", "unrecognized option '--nonsense'"),
        ("--htp-port=1", "unrecognized option '--htp-port'; did you mean '--http-port'?"),
        ("models", "Unexpected argument: models"),
        ("--http-port=none", "Bad option: \"--http-port\".\nexpected an integer, got 'none'"),
        ("--http-port=70000", 'Bad option: "--http-port".\nexpected an integer from 0 to 65535, got 70000'),
        ("--exit-on-error=maybe", 'Bad option: "--exit-on-error".\ninvalid value for bool option: maybe'),
        ("--grpc-port=x", "Bad option: \"--grpc-port\".\nexpected an integer, got 'x'"),
        ("--http-thread-count=0", 'Bad option: "--http-thread-count".\nexpected an integer from 1 to 1024, got 0'),
        (
            "--http-restricted-api=trace,health:k=v --http-restricted-api=logging,health:l=w",
            'Bad option: "--http-restricted-api".\n'
            "restricted api 'health' can not be specified in multiple config groups",
        ),
        (
            "--http-restricted-api=trace,trace:k=v",
            'Bad option: "--http-restricted-api".\n'
            "restricted api 'trace' can not be specified in multiple config groups",
        ),
        (
            "--http-port=9000 --metrics-port=9000",
            "The server cannot listen to HTTP requests and metrics requests at the same address and port 10.0.0.1:9000",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong(arguments: str, sentence: str) -> None:
    assert refusal(*arguments.split()) == sentence


@pytest.mark.parametrize("arguments", ["--http-port", "--log", "--disable-auto-complete-config=true"])
def test_what_getopt_refuses(arguments: str) -> None:
    assert arguments.partition("=")[0] in refusal(arguments)


def test_vertex_ai_configures_by_environment() -> None:
    environ = {"AIP_MODE": "PREDICTION", "AIP_STORAGE_URI": "mounted", "AIP_HTTP_PORT": "9090"}
    assert refusal(environ=environ) == "AIP_PREDICT_ROUTE is not defined for Vertex AI endpoint"
    environ |= {"AIP_PREDICT_ROUTE": "/p"}
    assert refusal(environ=environ) == "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"
    environ |= {"AIP_HEALTH_ROUTE": "/h"}
    options, warnings = parse([], prog="tritonserver", defaults=DEFAULTS, environ=environ)
    assert (options.model_repository, warnings) == ((Path("mounted"),), ())
    assert (options.allow_vertex_ai, options.allow_http, options.vertex_ai_port) == (True, False, 9090)
    assert (options.vertex_ai_predict_route, options.vertex_ai_health_route) == ("/p", "/h")
    flags = ("--allow-http", "--allow-vertex-ai=false", "--vertex-ai-port=1")
    options = understood(*flags, environ=environ).options
    assert options.model_repository == (Path("models"),)
    assert (options.allow_vertex_ai, options.allow_http, options.vertex_ai_port) == (False, True, 1)
    environ["AIP_STORAGE_URI"] = "gs://bucket/models/"
    line = parse([], prog="tritonserver", defaults=DEFAULTS, environ=environ)
    assert line.options.model_repository == (CloudUrl("gs", "bucket", "models"),)


def test_sagemaker_configures_by_environment() -> None:
    environ = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "m", "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate"}
    options = understood("--allow-sagemaker", environ=environ).options
    assert (options.sagemaker_default_model, options.sagemaker_inference_type) == ("m", "generate")
    assert options.sagemaker_ping_mode == "ready"
    environ = {"SAGEMAKER_TRITON_PING_MODE": "asleep"}
    assert refusal("--allow-sagemaker", environ=environ) == (
        "SAGEMAKER_TRITON_PING_MODE is 'asleep'. Must be one of: ready, live."
    )
    assert not understood(environ=environ).options.allow_sagemaker
    assert refusal("--allow-sagemaker", environ={"SAGEMAKER_TRITON_INFERENCE_TYPE": "guess"}) == (
        "Server has invalid inference type 'guess'. Must be one of: infer, generate, generate_stream."
    )


def test_a_repository_must_be_given() -> None:
    with pytest.raises(CommandLineError, match=r"^--model-repository must be specified$"):
        parse([], prog="tritonserver", defaults=DEFAULTS, environ={})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServerOptions]:
    """What the supervisor was started with; it ends at once with exit code 7."""
    calls: list[ServerOptions] = []

    def run(options: ServerOptions) -> int:
        calls.append(options)
        return 7

    supervisor = ModuleType("shoal.supervisor.supervisor")
    supervisor.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, "shoal.supervisor.supervisor", supervisor)
    for name in ("AIP_MODE", "AIP_STORAGE_URI", "AIP_HTTP_PORT", "SAGEMAKER_MULTI_MODEL", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_the_two_commands_differ_in_who_is_let_in_and_in_what_is_installed(
    started: list[ServerOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--model-repository=models"]) == 7
    assert tritonserver(["--model-repository=models", "--grpc-port=8001"]) == 7
    shoal, triton = started
    assert (shoal.http_address, shoal.metrics_address) == ("127.0.0.1", "127.0.0.1")
    assert not shoal.allow_remote_admin
    addresses = ("http_address", "metrics_address", "sagemaker_address", "vertex_ai_address")
    everywhere: dict[str, Any] = dict.fromkeys(addresses, "0.0.0.0")
    assert shoal.install_requirements  # Triton takes no notice of the file
    assert triton == replace(shoal, **everywhere, allow_remote_admin=True, install_requirements=False)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"Warning: --grpc-port is ignored: {NO_GRPC}\n")


def test_a_wrong_command_line_starts_nothing_and_exits_with_1(
    started: list[ServerOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tritonserver(["--nonsense"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "unrecognized option '--nonsense'\nUsage: tritonserver [options]\n'tritonserver --help' explains them.\n"
    )
    assert main(["serve"]) == 1
    assert capsys.readouterr().err.startswith("--model-repository must be specified\nUsage: shoal serve [options]\n")
    assert started == []


def test_help_tells_defaults_and_ends_with_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for arguments, address in ((["serve", "--help"], "127.0.0.1"), (["serve", "-h"], "127.0.0.1")):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 0
        text = " ".join(capsys.readouterr().out.split())
        assert f"address to listen on; 0.0.0.0 for all (default: {address})" in text
        assert "MiB of requests per front-end process (default: 64)" in text
        assert "exit with code 1 where a model fails to load at start (default: true)" in text
        assert "--trace-rate <integer> deprecated: use --trace-config" in text
        assert "the rate limiter is not there yet; only the default is taken: off" in text
        assert "(default: the HTTP address)" in text
