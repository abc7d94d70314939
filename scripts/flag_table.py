"""The tables of flags in docs/migrate-from-triton.md, written from shoal/cli/flags.py.

`python scripts/flag_table.py` rewrites the tables; a test fails when the page differs from the flags.
"""

from collections.abc import Iterable
from pathlib import Path

from shoal.cli import TRITONS_DEFAULTS
from shoal.cli.flags import GROUPS, Flag
from shoal.cli.serve import help_text
from shoal.options import ServerOptions

PAGE = Path(__file__).parents[1] / "docs" / "migrate-from-triton.md"
BEGIN, END = "<!-- flags: begin -->\n", "<!-- flags: end -->\n"

#: Triton's command line as its documentation lists it, written by hand; flags that are not in it are Shoal's own.
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

_TRITONSERVER = ServerOptions(**TRITONS_DEFAULTS)


def tables() -> str:
    """Triton's flags, group by group in the order of --help, then Shoal's own."""
    parts = []
    for title, flags in GROUPS.items():
        if tritons := [flag for flag in flags if flag.name in TRITON]:
            parts.append(f"### {title}\n\n{_table(tritons)}")
    own = [flag for flags in GROUPS.values() for flag in flags if flag.name not in TRITON]
    return "\n".join([*parts, f"### Shoal's own\n\n{_table(own)}"])


def page(text: str) -> str:
    """The page's text with its tables replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def _table(flags: Iterable[Flag]) -> str:
    return "| flag | | what becomes of it |\n| --- | --- | --- |\n" + "".join(map(_row, flags))


def _row(flag: Flag) -> str:
    text = help_text(flag, _TRITONSERVER).removeprefix("ignored: ")
    return f"| `--{flag.name}` | {'honoured' if flag.is_honoured else 'no effect'} | {text} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
