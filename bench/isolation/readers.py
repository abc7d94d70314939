"""Situations with clients that do not read, or read slowly: beside an idle model, and beside others of the same model.

The requests of such clients take the instance's time whether they read or not. So other clients of the model are
compared with how they fare beside the same clients when those read at once.
"""

from collections.abc import Callable

from bench.isolation.beside import beside, beside_either
from bench.isolation.crowd import Crowd
from bench.isolation.figures import Measure, Situation
from bench.isolation.models import identity, python
from bench.isolation.probe import Probe, StreamProbe, message
from bench.isolation.site import Site
from bench.isolation.windows import closed_windows

#: Calls on one connection, with 1 MiB each.
CLOSED, CLOSED_FLOATS = 90, 262_144
#: HTTP clients, with 6 MB each.
READERS, LARGE_FLOATS = 16, 1_500_000
#: A stream's responses and their floats: more bytes than any window and slab hold.
RESPONSES, RESPONSE_FLOATS = 400, 262_144
_GRPC = ("--grpc-process-count=1",)
_SAME = "p99; quiet: they read"


def _stream(site: Site, *, is_silent: bool) -> Crowd:
    return site.callers("stream", [RESPONSES, RESPONSE_FLOATS], 1, is_stream=True, is_silent=is_silent)


def _windows(site: Site) -> Crowd:
    return Crowd(closed_windows(site.grpc_port, "sized", [CLOSED_FLOATS], CLOSED))


def _readers(site: Site, bytes_per_s: float | None) -> Crowd:
    return site.guests(("sized", [LARGE_FLOATS]), count=READERS, bytes_per_s=bytes_per_s)


def _idle(crowd: Callable[[Site], Crowd], *, is_grpc: bool) -> Callable[[Site], Measure]:
    return lambda site: beside(site.grpc("quick") if is_grpc else site.http("quick"), crowd(site))


def _same(
    probe: Callable[[Site], Probe], reading: Callable[[Site], Crowd], crowd: Callable[[Site], Crowd]
) -> Callable[[Site], Measure]:
    return lambda site: beside_either(probe(site), reading(site), crowd(site))


def _beside_same(name: str, what: str, bytes_per_s: float) -> Situation:
    """The situation of other clients of a model whose large answers are read at this pace."""
    measure = _same(
        lambda site: site.http("sized", [16]),
        lambda site: _readers(site, None),
        lambda site: _readers(site, bytes_per_s),
    )
    return Situation(name, f"{what}, of the same model", _SAME, measure, _SIZED)


_QUICK, _STREAM, _SIZED = {"quick": identity()}, {"stream": python("stream")}, {"sized": python("sized")}
_UNREAD_STREAM = "a gRPC stream of which nothing is read"
_UNREAD_CALLS = f"{CLOSED} gRPC calls with 1 MiB each whose windows stay at zero"
_UNREAD_ANSWERS = f"{READERS} HTTP clients that read nothing of 6 MB answers"
_SLOWLY_READ = f"{READERS} HTTP clients that read 6 MB answers at 1 MB/s"

SITUATIONS = (
    Situation(
        "grpc-unread", _UNREAD_STREAM, "p99", _idle(lambda site: _stream(site, is_silent=True), is_grpc=True),
        _QUICK | _STREAM, _GRPC,
    ),
    Situation(
        "grpc-windows", _UNREAD_CALLS, "p99", _idle(_windows, is_grpc=True), _QUICK | _SIZED, _GRPC,
    ),
    Situation(
        "http-unread", _UNREAD_ANSWERS, "p99", _idle(lambda site: _readers(site, 0.0), is_grpc=False),
        _QUICK | _SIZED,
    ),
    Situation(
        "http-slow-readers", _SLOWLY_READ, "p99", _idle(lambda site: _readers(site, 1e6), is_grpc=False),
        _QUICK | _SIZED,
    ),
    Situation(
        "grpc-unread-same", f"{_UNREAD_STREAM}, of the same model", _SAME,
        _same(
            lambda site: StreamProbe(site.grpc_port, message("stream", [1, 16])),
            lambda site: _stream(site, is_silent=False), lambda site: _stream(site, is_silent=True),
        ),
        _STREAM, _GRPC,
    ),
    Situation(
        "grpc-windows-same", f"{_UNREAD_CALLS}, of the same model", _SAME,
        _same(
            lambda site: site.grpc("sized", [16]),
            lambda site: site.callers("sized", [CLOSED_FLOATS], CLOSED), _windows,
        ),
        _SIZED, _GRPC,
    ),
    _beside_same("http-unread-same", _UNREAD_ANSWERS, 0.0),
    _beside_same("http-slow-readers-same", _SLOWLY_READ, 1e6),
)  # fmt: skip
