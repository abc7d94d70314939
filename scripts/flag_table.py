"""The tables of flags in docs/migrate-from-triton.md, written from shoal/cli/flags.py.

`python scripts/flag_table.py` rewrites the tables; a test fails when the page differs from the flags.
"""

from collections.abc import Iterable
from pathlib import Path

from shoal.cli import TRITONS_DEFAULTS
from shoal.cli.flags import GROUPS, Flag, FlagSupport
from shoal.cli.serve import help_text
from shoal.options import ServerOptions

PAGE = Path(__file__).parents[1] / "docs" / "migrate-from-triton.md"
BEGIN, END = "<!-- flags: begin -->\n", "<!-- flags: end -->\n"

#: Flags that Triton does not have.
OWN = frozenset({
    "shm-client-slab-mib", "shm-worker-slab-mib", "shm-oversize-mib", "max-in-flight", "default-max-queue-size",
    "openai-port", "default-max-tokens",
    "request-deadline-ms", "request-timeout-secs", "model-load-timeout-secs", "model-execution-timeout-secs",
    "max-request-bytes", "listen-backlog", "http-process-count", "grpc-process-count", "grpc-max-connections",
    "max-control-bytes", "max-expansion", "max-upload-mib", "upload-timeout-secs", "min-upload-rate",
    "sagemaker-address", "vertex-ai-address", "install-requirements",
    "environment-cache-directory", "client-socket", "client-count", "client-slab-mib", "latency-target", "cpu-fallback",
    "ui", "log-access", "record", "record-config",
})  # fmt: skip

_FATES = {FlagSupport.HONOURED: "honoured", FlagSupport.IGNORED: "no effect"}
_TRITONSERVER = ServerOptions(**TRITONS_DEFAULTS)


def tables() -> str:
    """Triton's flags, group by group in the order of --help, then Shoal's own."""
    parts = []
    for title, flags in GROUPS.items():
        if tritons := [flag for flag in flags if flag.name not in OWN]:
            parts.append(f"### {title}\n\n{_table(tritons)}")
    own = [flag for flags in GROUPS.values() for flag in flags if flag.name in OWN]
    return "\n".join([*parts, f"### Shoal's own\n\n{_table(own)}"])


def page(text: str) -> str:
    """The page's text with its tables replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def _table(flags: Iterable[Flag]) -> str:
    return "| flag | | what becomes of it |\n| --- | --- | --- |\n" + "".join(map(_row, flags))


def _row(flag: Flag) -> str:
    names = ", ".join(f"`--{name}`" for name in (flag.name, flag.alias) if name)
    text = help_text(flag, _TRITONSERVER).removeprefix("ignored: ")
    return f"| {names} | {_FATES[flag.fate]} | {text} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
