"""The table of flags is Triton's, whole, and agrees with ServerOptions."""

from dataclasses import fields

from shoal.cli.environment import VARIABLES
from shoal.cli.flags import FLAGS, GROUPS, FlagSupport
from shoal.options import ServerOptions

#: Triton's command line as its documentation lists it, written by hand.
TRITON = """
    id exit-timeout-secs
    log-verbose log-info log-warning log-error log-format log-file
    model-store model-repository exit-on-error disable-auto-complete-config strict-readiness model-control-mode
    repository-poll-secs load-model model-config-name model-load-thread-count model-load-retry-count model-namespacing
    enable-peer-access
    allow-http http-address http-port reuse-http-port http-header-forward-pattern http-thread-count
    http-max-input-size http-restricted-api
    allow-grpc grpc-address grpc-port reuse-grpc-port grpc-header-forward-pattern grpc-infer-thread-count
    grpc-infer-allocation-pool-size grpc-max-response-pool-size grpc-use-ssl grpc-use-ssl-mutual grpc-server-cert
    grpc-server-key grpc-root-cert grpc-infer-response-compression-level grpc-keepalive-time grpc-keepalive-timeout
    grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data
    grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes grpc-max-connection-age
    grpc-max-connection-age-grace grpc-restricted-protocol
    allow-sagemaker sagemaker-port sagemaker-safe-port-range sagemaker-thread-count
    allow-vertex-ai vertex-ai-port vertex-ai-thread-count vertex-ai-default-model
    allow-metrics allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port metrics-interval-ms metrics-config
    trace-config
    backend-directory backend-config repoagent-directory cache-config cache-directory rate-limit rate-limit-resource
    pinned-memory-pool-byte-size cuda-memory-pool-byte-size cuda-virtual-address-size min-supported-compute-capability
    buffer-manager-thread-count host-policy model-load-gpu-limit allow-client-shm
    strict-model-config response-cache-byte-size trace-file trace-level trace-rate trace-count trace-log-frequency
""".split()  # noqa: SIM905 - to be compared with a page

SHOAL = """
    shm-client-slab-mib shm-worker-slab-mib shm-oversize-mib max-in-flight default-max-queue-size request-timeout-secs
    pid-file upgrade-timeout-secs request-deadline-ms client-socket client-count client-slab-mib
    model-load-timeout-secs model-execution-timeout-secs grpc-max-connections
    max-request-bytes max-control-bytes max-expansion max-upload-mib upload-timeout-secs min-upload-rate
    listen-backlog http-process-count
    http-use-ssl http-use-ssl-mutual http-server-cert http-server-key http-root-cert metrics-use-ssl
    api-keys allow-remote-admin grpc-process-count sagemaker-address vertex-ai-address install-requirements
    environment-cache-directory latency-target cpu-fallback cuda-mps models ui timing-percent poison-refusal-secs reload
    record record-config rollout-file shadow-file default-max-tokens openai-port log-access
allow-torchserve torchserve-inference-address torchserve-inference-port torchserve-management-address
torchserve-management-port torchserve-metrics-address torchserve-metrics-port
allow-torchserve-grpc torchserve-grpc-inference-address torchserve-grpc-inference-port
torchserve-grpc-management-address torchserve-grpc-management-port
""".split()  # noqa: SIM905 - to be compared with a page


def test_every_flag_of_triton_is_there_and_no_unknown_one() -> None:
    names = [name for flag in FLAGS for name in (flag.name, flag.alias) if name]
    assert sorted(names) == sorted(TRITON + SHOAL)


def test_an_honoured_flag_sets_a_field_and_every_field_has_a_flag_or_a_variable() -> None:
    honoured = {flag.option for flag in FLAGS if flag.fate is FlagSupport.HONOURED}
    of_store = {"model_store", "load_models"}  # which together are the option `store`
    assert of_store <= honoured
    of_command = {"store", "torchserve", "torchserve_https", "announcement"}  # set by the command `torchserve`
    assert {field.name for field in fields(ServerOptions)} == honoured - of_store | of_command | set(VARIABLES.values())
    assert honoured.isdisjoint(VARIABLES.values())


def test_every_flag_is_explained() -> None:
    assert all(flag.text for flag in FLAGS)
    assert "" not in GROUPS


def test_defaults_of_flags_are_values_of_their_kind() -> None:
    for flag in FLAGS:
        if flag.default not in (None, ""):
            assert flag.value.parse(str(flag.default)) == flag.default
