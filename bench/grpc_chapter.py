"""The chapter of docs/benchmarks.md on gRPC: servers, workloads, and targets."""

import functools
from collections.abc import Sequence
from typing import Any

from bench.document import Conditions, figures
from bench.grpc_words import channel, grpc_answer, grpc_request
from bench.peers import COMPILED_PYTHON, Peer, compiled_peer, launch_shoal, launch_triton, shoal_version, triton_title
from bench.results import Row
from bench.table import BUILDS, OURS, count, head, is_missing, line
from bench.targets import Target, table
from bench.workloads import IDENTITY_16, IDENTITY_IMAGE, Workload

TEXT = """\
## Shoal's gRPC beside Triton's

Written by `scripts/bench --grpc --write`. {rounds} rounds of {seconds} s for each server, which are all up and
take turns of half a second; the tables show medians. “× Triton” is Shoal's figure divided by Triton's; with parentheses
it is the median of all pairs of turns beside each other, between whose figures half of them lie. A target is met where
all rounds meet it.

{targets}
{summary}
{streams}{by_process}
### Conditions

{machine}
- The load generator ({generator}, one thread) runs on the same cores and takes its part of them. It sends the same
  ModelInfer again and again, with raw tensors.
- Each server is started anew for every model in every round. Its answer is checked with grpcio, to the bit, before the
  load and after it. h2load knows no gRPC, so the bytes of the answers are counted, too: a call that was refused has
  none, and is an error.
- What a column says is explained in the chapter above.
- {others}

{peers}

### Every figure, gRPC

{details}"""

WORKLOADS = (
    Workload("grpc-c1", "16 floats, 1 connection", IDENTITY_16, "grpc", 1),
    Workload("grpc-c16", "16 floats, 16 connections", IDENTITY_16, "grpc", 16),
    Workload(
        "grpc-streams", "16 floats, 100 connections with 100 calls each", IDENTITY_16, "grpc", 100, streams=100
    ),
    Workload("grpc-large", "602 KB in and out, 8 connections", IDENTITY_IMAGE, "grpc", 8),
)  # fmt: skip


def _triton_version(port: int) -> str:
    import tritonclient.grpc.service_pb2 as service

    method = "/inference.GRPCInferenceService/ServerMetadata"
    with channel(port) as opened:
        call: Any = opened.unary_unary(method)
        message: Any = service.ServerMetadataResponse.FromString(call(b"", timeout=10))
    return triton_title(message.version)


SHOAL = Peer(
    OURS, "Shoal", "Shoal", functools.partial(launch_shoal, grpc=()), grpc_request, grpc_answer, shoal_version,
    "`shoal serve` with its defaults: one lane that speaks HTTP/2 itself.",
)  # fmt: skip
TRITON = Peer(
    "triton", "Triton (Python backend)", "Triton", functools.partial(launch_triton, is_grpc=True), grpc_request,
    grpc_answer, _triton_version,
    "The real `tritonserver` that the wheel of nvidia-pytriton carries; the model is a Python file there. A Triton "
    "with its identity backend would spend less per request.",
)  # fmt: skip
PEERS = (SHOAL, compiled_peer(SHOAL, functools.partial(launch_shoal, grpc=(), python=COMPILED_PYTHON)), TRITON)


TARGETS = (
    Target("grpc-c16", "requests/s", lambda sample: sample.requests_per_s, 3),
    Target("grpc-c16", "CPU µs/request", lambda sample: sample.cpu_us, 70, is_ratio=False, is_most=True),
    Target("grpc-c1", "p50 ms", lambda sample: sample.p50_us, 0.7, is_most=True, unit=1000),
    Target("grpc-large", "requests/s", lambda sample: sample.requests_per_s, 1.5),
    Target("grpc-streams", "failed requests", lambda sample: sample.errors, 0, is_ratio=False, is_most=True),
)


def is_measured(peer: Peer, workload: Workload) -> bool:
    """Whether a peer takes part in a workload: the crowd of streams tests only Shoal's own HTTP/2."""
    return workload.streams == 1 or peer.name in BUILDS


def markdown(rows: Sequence[Row], where: Conditions) -> str:
    """The chapter, as Markdown."""
    return TEXT.format(**figures(rows, where), targets=targets(rows), streams=streams(rows))


def targets(rows: Sequence[Row]) -> str:
    """A table with a line per target."""
    return table(TARGETS, rows, TRITON)


def streams(rows: Sequence[Row]) -> str:
    """A table that shows whether a connection or a call starves where there are many."""
    crowded = [row for row in rows if row.workload.streams > 1 and not is_missing(row)]
    if not crowded:
        return ""
    columns = [
        "",
        "requests/s",
        "of the slowest connection",
        "of the fastest",
        "p50 ms",
        "slowest request ms",
        "errors",
    ]
    lines = head(columns)
    for row in crowded:
        median = row.median
        times = [f"{each / 1000:.1f}" for each in (median.p50_us, median.slowest_us)]
        rates = [f"{each:.1f}" for each in (median.least_per_s, median.most_per_s)]
        lines.append(line([row.workload.title, count(median.requests_per_s), *rates, *times, count(median.errors)]))
    return "\n".join(lines) + "\n"
