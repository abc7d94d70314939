"""Command lines as people and start scripts write them: what they come to, what is warned of, what is refused."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from shoal.cli.serve import CommandLine, CommandLineError, parse
from shoal.cloud_url import CloudUrl
from shoal.options import HostPolicy, ServerOptions
from shoal.shared_settings import MetricsConfig

DEFAULTS = ServerOptions(http_address="10.0.0.1")
GOOD = replace(DEFAULTS, model_repository=(Path("models"),), metrics_address="10.0.0.1")


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
        ("--http-port=-47 --allow-http=false", {"http_port": -47, "allow_http": False}),
        ("--grpc-port=70000 --allow-grpc=0", {"grpc_port": 70000, "allow_grpc": False}),
        ("--sagemaker-port=70000 --vertex-ai-port=-1", {"sagemaker_port": 70000, "vertex_ai_port": -1}),
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
        ("--max-control-bytes=1000 --max-expansion=0", {"max_control_bytes": 1000, "max_expansion": 0}),
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
        (
            "--model-load-gpu-limit=0:0.8 --model-load-gpu-limit=1:1",
            {"model_load_gpu_limit": ((0, 0.8), (1, 1.0))},
        ),
        (
            "--cuda-memory-pool-byte-size=0:64 --cuda-memory-pool-byte-size=1:0",
            {"cuda_memory_pool_byte_size": ((0, 64), (1, 0))},
        ),
        ("--min-supported-compute-capability=7.5", {"min_supported_compute_capability": 7.5}),
        ("--reuse-http-port --reuse-grpc-port=1", {"reuse_http_port": True, "reuse_grpc_port": True}),
        (
            "--grpc-address=::1 --grpc-port=9001 --grpc-process-count=2",
            {"grpc_address": "::1", "grpc_port": 9001, "grpc_process_count": 2},
        ),
        (
            "--grpc-use-ssl --grpc-use-ssl-mutual=1 --grpc-server-cert=c --grpc-server-key=k --grpc-root-cert=r",
            {
                "grpc_use_ssl": True, "grpc_use_ssl_mutual": True, "grpc_server_cert": "c", "grpc_server_key": "k",
                "grpc_root_cert": "r",
            },
        ),
        (
            "--grpc-keepalive-time=1000 --grpc-keepalive-timeout=50 --grpc-keepalive-permit-without-calls=1 "
            "--grpc-http2-max-pings-without-data=0 --grpc-http2-min-recv-ping-interval-without-data=10 "
            "--grpc-http2-max-ping-strikes=3 --grpc-max-connection-age=60000 --grpc-max-connection-age-grace=500",
            {
                "grpc_keepalive_time": 1000,
                "grpc_keepalive_timeout": 50,
                "grpc_keepalive_permit_without_calls": True,
                "grpc_http2_max_pings_without_data": 0,
                "grpc_http2_min_recv_ping_interval_without_data": 10,
                "grpc_http2_max_ping_strikes": 3,
                "grpc_max_connection_age": 60000,
                "grpc_max_connection_age_grace": 500,
            },
        ),
        (
            "--grpc-infer-response-compression-level=HIGH --grpc-header-forward-pattern=^x-|id "
            "--grpc-restricted-protocol=trace,health:admin-key=a=b",
            {
                "grpc_infer_response_compression_level": "high", "grpc_header_forward_pattern": "^x-|id",
                "grpc_restricted_protocol": {
                    "trace": ("triton-grpc-protocol-admin-key", "a=b"),
                    "health": ("triton-grpc-protocol-admin-key", "a=b"),
                },
            },
        ),
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
        "--model-control-mode=none", "--model-control-mode=NONE", "--rate-limit=off", "--allow-grpc=true",
        "--allow-client-shm=0", "--allow-sagemaker=false", "--allow-vertex-ai=false", "--grpc-use-ssl=false",
        "--grpc-server-cert=", "--log-file=", "--reuse-http-port=false", "--model-load-retry-count=0",
        "--http-header-forward-pattern=", "--model-namespacing=off", "--repository-poll-secs=15",
        "--grpc-infer-thread-count=2", "--grpc-infer-allocation-pool-size=8", "--grpc-keepalive-time=7200000",
        "--backend-directory=/opt/tritonserver/backends", "--min-supported-compute-capability=6.0",
    ],
)  # fmt: skip
def test_what_the_server_does_anyway_is_taken_without_a_word(arguments: str) -> None:
    assert understood(arguments) == (GOOD, ())


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        (
            "--grpc-infer-thread-count=8",
            "a lane serves all its connections in one thread; --grpc-process-count adds lanes",
        ),
        ("--grpc-infer-allocation-pool-size=4", "messages lie in shared memory, whose bounds have flags of their own"),
        ("--grpc-max-response-pool-size=4", "messages lie in shared memory, whose bounds have flags of their own"),
        ("--pinned-memory-pool-byte-size=0", "Shoal keeps no such memory pool"),
        ("--cuda-virtual-address-size=0:64", "Shoal keeps no such memory pool"),
        ("--enable-peer-access=true", "backends decide for themselves about access between GPUs"),
        ("--buffer-manager-thread-count=2", "tensors are gathered by the worker that runs them"),
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


def test_the_cache_has_a_name_and_a_size_in_either_way_of_saying_so() -> None:
    sized = replace(GOOD, cache_config={"local": {"size": "1048576"}})
    assert understood("--cache-config=local,size=1048576", "--cache-directory=/opt/tritonserver/caches") == (sized, ())
    warning = "'--response-cache-byte-size' has been deprecated! Please use '--cache-config' instead."
    assert understood("--response-cache-byte-size=1048576") == (sized, (warning,))
    assert (GOOD.cache_bytes, sized.cache_bytes) == (0, 1048576)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("foo", "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got foo"),
        ("local,size", "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,size"),
        ("local,x=1", "Failed to initialize LocalCache: config didn't contain a valid 'size' field."),
        ("local,size=-5", "Failed to initialize LocalCache: config didn't contain a valid 'size' field."),
        ("local,size=100", "'size' is 100 bytes; a cache has from 1000 to 4277141504"),
        ("local,size=4277141505", "'size' is 4277141505 bytes; a cache has from 1000 to 4277141504"),
        ("nope,size=1", "unable to find 'libtritoncache_nope.so' for cache. Searched: /opt/tritonserver/caches"),
        ("redis,port=1", "Failed to initialize RedisCache, didn't specify address. Must at a minimum specify 'host'"),
        (
            "local,size=5000 --cache-config=redis,host=a",
            "found multiple cache configurations, but only a single cache is currently supported",
        ),
        (
            "local,size=5000 --response-cache-byte-size=5000",
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other.",
        ),
    ],
)
def test_a_cache_that_cannot_be_is_refused(arguments: str, sentence: str) -> None:
    assert sentence in refusal(*f"--cache-config={arguments}".split())


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

    monkeypatch.setattr("importlib.metadata.version", missing)
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
        ("models", "Unexpected argument: models\nA model repository follows its flag: --model-repository=models"),
        ("--http-port=none", "Bad option: \"--http-port\".\nexpected an integer, got 'none'"),
        ("--http-port=70000", 'Bad option: "--http-port".\nexpected an integer from 0 to 65535, got 70000'),
        ("--metrics-port=-47", 'Bad option: "--metrics-port".\nexpected an integer from 0 to 65535, got -47'),
        (
            "--model-config-name=",
            'Bad option: "--model-config-name".\nError: empty argument for --model-config-name',
        ),
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


def test_the_format_of_the_log_comes_from_the_command_line_before_the_environment() -> None:
    environ = {"SHOAL_LOG_FORMAT": "json"}
    assert understood(environ=environ).options.log_format == "json"
    assert understood("--log-format=ISO8601", environ=environ).options.log_format == "ISO8601"
    assert refusal(environ={"SHOAL_LOG_FORMAT": "xml"}).startswith('Bad option: "--log-format".')


def test_a_terminal_gets_lines_for_people(tmp_path: Path) -> None:
    """A server that refuses to start, once with a terminal as its stderr and once without."""
    command = [sys.executable, "-c", "from shoal.cli import main; raise SystemExit(main())", "serve"]
    command += [f"--model-repository={tmp_path}", f"--api-keys={tmp_path}/none"]
    environ = {**os.environ, "SHOAL_LOG_FORMAT": "json"}
    ours, theirs = os.openpty()
    for stderr, beginning in ((theirs, "E"), (subprocess.PIPE, "{")):
        found = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=stderr, env=environ, check=False)
        said = (os.read(ours, 4096) if found.stderr is None else found.stderr).decode()
        assert said.startswith(beginning), said
    os.close(ours)
    os.close(theirs)


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
