"""The situations of isolation: work beside an idle model, each measured in quiet and then under load.

A situation gets a server of its own (`site.py`) and returns a `Measure`. Every wait has a deadline.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from bench.background_load import raw
from bench.errors import BenchmarkError
from bench.isolation.beside import beside
from bench.isolation.crowd import Crowd, Guests
from bench.isolation.figures import (
    OK,
    TAKEOVER,
    Bar,
    Measure,
    PacedRequest,
    Situation,
    Unit,
    compared,
    longest_silence_s,
    lost,
)
from bench.isolation.models import identity, python
from bench.isolation.probe import (
    EVENT_AT,
    LONG_PATIENCE_S,
    PATIENCE_S,
    HttpProbe,
    LiveProbe,
    Probe,
    infer,
    paced,
)
from bench.isolation.readers import SITUATIONS as READERS
from bench.isolation.site import Site, cpu_us, wait_until, warm
from bench.workloads import Request, binary_request

#: Seconds of an execution that other requests must not wait for.
EXECUTION_S = 5.0
UNEVEN_S = 10.0
#: Seconds after an event until everything runs again, or until requests that wait for an execution have been handled.
AFTER_S = 1.5
BACKLOG = 600
CALLS = 1400
NUM_LANES, NUM_CONNECTIONS, CONNECT_S = 4, 200, 0.01
LARGE_REQUEST_FLOATS = 4 * 1024 * 1024
ZIPPERS, UNFINISHED = 300, 70
BUSY, CLIENTS, LONE, SLICES = 64, 32, 1500, 10
GRPC = ("--grpc-process-count=1",)
QUICK = identity()


def http_backlog(site: Site) -> Measure:
    """Two slow models, each with many requests waiting, but fewer than the queue may hold."""
    load = site.guests(("slow_a", [1]), ("slow_b", [1]), count=2 * BACKLOG)
    return beside(site.http("quick", num_connections=8), load)


def grpc_backlog(site: Site) -> Measure:
    """More calls for a slow model than a lane may have in flight at once."""
    return beside(site.grpc("quick"), site.callers("slow_a", [1], CALLS, channels=14))


def _away(probe: Probe, event: Callable[[], float]) -> tuple[float, list[PacedRequest]]:
    """The longest time without an answer after the event, in ms, and all requests."""
    moments: list[float] = []
    answers = paced(probe, AFTER_S, event=lambda: moments.append(event()), patience_s=LONG_PATIENCE_S)
    if not moments:
        raise BenchmarkError("too few requests were answered before the event")
    return 1000 * longest_silence_s(answers, moments[0]), answers


def _kill_beside(site: Site, probe: Probe, title: str, model: str) -> Measure:
    """A process is killed while no worker executes, and again while a worker of `model` does."""
    with warm(probe):
        quiet_ms, _ = _away(probe, lambda: site.kill(title))
        site.wait_for_standby()
        paced(probe, 0.3)  # a fresh process is warm after that
        with site.executing(model, EXECUTION_S):
            loaded_ms, loaded = _away(probe, lambda: site.kill(title))
    return _of_event(quiet_ms, loaded_ms, loaded)


def _of_event(quiet_ms: float, loaded_ms: float, loaded: Sequence[PacedRequest]) -> Measure:
    most_ms = 1000 * LONG_PATIENCE_S
    has_recovered = loaded[-1].status == OK or any(each.status == OK for each in loaded[EVENT_AT + 1 :])
    is_cut = loaded_ms >= most_ms or not has_recovered
    return Measure(quiet_ms, min(loaded_ms, most_ms), *lost(loaded), is_cut=is_cut)


def takeover_executing(site: Site) -> Measure:
    """The batcher is killed while a worker executes."""
    return _kill_beside(site, site.http("quick"), "shoal batcher", "task")


def takeover_gil(site: Site) -> Measure:
    """The batcher is killed while a worker that calls other models executes and keeps its GIL."""
    return _kill_beside(site, site.http("quick"), "shoal batcher", "holder")


def front_end_restart(site: Site) -> Measure:
    """The lane of gRPC is killed while a worker executes."""
    measure = _kill_beside(site, LiveProbe(site.grpc_port), "shoal grpc", "task")
    # Connections of a lane that dies fail: only the time counts.
    return replace(measure, num_refused=0, num_failed=0)


def worker_restart(site: Site) -> Measure:
    """A worker is killed and started again while another keeps its GIL."""
    return _kill_beside(site, site.http("quick"), "shoal worker quick_0_0", "holder")


def stopped_lane(site: Site) -> Measure:
    """The batcher is killed while a lane is stopped. Raises BenchmarkError if no lane has the probe's connection."""
    probe = site.http("quick")
    with warm(probe):
        quiet_ms, _ = _away(probe, lambda: site.kill("shoal batcher"))
        site.wait_for_standby()
        (mine,) = probe.ports
        lanes = site.connections("shoal http", site.http_port)
        others = [pid for pid, ports in lanes.items() if mine not in ports]
        if len(others) == len(lanes):
            raise BenchmarkError("no lane has the client's connection")
        try:
            os.kill(others[0], signal.SIGSTOP)
            loaded_ms, loaded = _away(probe, lambda: site.kill("shoal batcher"))
        finally:
            with suppress(ProcessLookupError):  # the lane may have been replaced
                os.kill(others[0], signal.SIGCONT)
    return _of_event(quiet_ms, loaded_ms, loaded)


def _spread(site: Site) -> tuple[list[int], HttpProbe]:
    """Make connections one after another; returns how many each lane has, and the probe that holds the connections."""
    probe = HttpProbe(site.http_port, infer("quick", [1.0]), NUM_CONNECTIONS)
    begin_s = time.monotonic()
    for number in range(NUM_CONNECTIONS):
        time.sleep(max(0.0, begin_s + number * CONNECT_S - time.monotonic()))
        probe.connect(number)
    wait_until(
        lambda: sum(map(len, site.connections("shoal http", site.http_port).values())) >= NUM_CONNECTIONS,
        "connections to be accepted",
    )
    return sorted(map(len, site.connections("shoal http", site.http_port).values()), reverse=True), probe


def lanes_shared(site: Site) -> Measure:
    """The number of connections of the lane with the fewest."""
    counts, probe = _spread(site)
    probe.close()
    return Measure(NUM_CONNECTIONS / NUM_LANES, min(counts), note="connections of each lane: " + _by_lane(counts))


def lanes_busy(site: Site) -> Measure:
    """A probe on connections spread over the lanes, beside clients that ask every 20 ms, with 20,000 floats in JSON."""
    counts, probe = _spread(site)
    measure = beside(probe, site.guests(("quick", [0.123456] * 20_000), count=4, every_s=0.02))
    return replace(measure, note=f"{measure.note}; connections of each lane: {_by_lane(counts)}")


def _by_lane(counts: Sequence[int]) -> str:
    return " : ".join(map(str, counts))


def large_request(site: Site) -> Measure:
    """Requests of 16 MiB to a model with two instances, one of which executes; they come at longer intervals than a
    segment is kept."""
    floats = LARGE_REQUEST_FLOATS
    request = binary_request("task", {"INPUT0": ("FP32", [floats], bytes(4 * floats))}, ["OUTPUT0"])
    probe = HttpProbe(site.http_port, raw(request))
    with warm(probe, 0.001):
        quiet = paced(probe, 2.5, 1.25, patience_s=LONG_PATIENCE_S)
        with site.executing("task", EXECUTION_S):
            loaded = paced(probe, 2.5, 1.25, patience_s=LONG_PATIENCE_S)
    quiet_ms, loaded_ms = (1000 * max(each.time_s for each in answers) for answers in (quiet, loaded))
    return _of_event(quiet_ms, loaded_ms, loaded)


def uneven(site: Site) -> Measure:
    """One client whose requests take 0.3 s, beside four clients that send fast ones without a pause.

    The measurement runs long enough that the first slow request, which is not foreseen, is less than a hundredth of
    all.
    """
    with site.guests(("task", [0.0]), count=4):
        return beside(site.http("task", [0.0]), site.guests(("task", [0.3]), count=1), UNEVEN_S)


def _metrics(site: Site, load: Crowd) -> Measure:
    """GET /metrics beside a crowd: it is needed most when a server is loaded."""
    request = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    probe = HttpProbe(site.metrics_port, request, keeps_open=False)
    with warm(probe, 0.2):
        quiet = paced(probe, 1.0, 0.1)
        with load:
            loaded = paced(probe, 1.0, 0.1, patience_s=LONG_PATIENCE_S)
    return compared(quiet, loaded, LONG_PATIENCE_S, f"the crowd had {load.words}")


def metrics_gzip(site: Site) -> Measure:
    """/metrics beside clients of a slow model that accept gzip."""
    request = infer("slow_a", [1.0])
    zipped = Request(request.path, {**request.headers, "Accept-Encoding": "gzip"}, request.body)
    return _metrics(site, Crowd(Guests(site.http_port, [raw(zipped).decode("latin-1")], ZIPPERS)))


def metrics_chunked(site: Site) -> Measure:
    """/metrics beside bodies in chunks that do not end."""
    head = 'POST /v2/models/quick/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"inp\r\n'
    return _metrics(site, Crowd(Guests(site.http_port, [head], UNFINISHED, bytes_per_s=0)))


def batcher_cpu(site: Site) -> Measure:
    """The batcher's CPU time for a lone request, while another model's instances execute and other clients idle.

    The least of several slices counts: other programs on the machine can only add to it.
    """
    probe = site.http("quick")

    def cost_us() -> tuple[float, list[PacedRequest]]:
        (batcher,) = site.pids("shoal batcher")
        figures, answers = [], []
        for _ in range(SLICES):
            before_us = cpu_us(batcher)
            some = [PacedRequest(0.0, 0.0, probe.ask(PATIENCE_S)) for _ in range(LONE // SLICES)]
            figures.append((cpu_us(batcher) - before_us) / len(some))
            answers += some
        return min(figures), answers

    with warm(probe):
        quiet_us, _ = cost_us()
        with site.guests(("busy", [1.0]), count=BUSY), site.clients(CLIENTS):
            paced(probe, 0.3)
            loaded_us, loaded = cost_us()
    return Measure(quiet_us, loaded_us, *lost(loaded))


_TAKEOVER = {"quick": QUICK, "task": python("task"), "holder": python("holder")}
_SLOW = {"quick": QUICK, "slow_a": identity(200), "slow_b": identity(200)}
_LANES = (f"--http-process-count={NUM_LANES}",)

SITUATIONS = (
    Situation(
        "http-backlog", f"two slow models with {BACKLOG} requests waiting each, HTTP, one lane", "p99",
        http_backlog, _SLOW, ("--http-process-count=1",),
    ),
    Situation(
        "grpc-backlog", f"{CALLS:,} calls of a slow model, gRPC", "p99", grpc_backlog,
        {"quick": QUICK, "slow_a": identity(20)}, GRPC,
    ),
    *READERS,
    Situation(
        "takeover", f"a batcher killed while a worker executes {EXECUTION_S:g} s", "until the next answer",
        takeover_executing, _TAKEOVER, bar=TAKEOVER,
    ),
    Situation(
        "takeover-gil", f"a batcher killed while a BLS model in native code keeps its GIL for {EXECUTION_S:g} s",
        "until the next answer", takeover_gil, _TAKEOVER, bar=TAKEOVER,
    ),
    Situation(
        "takeover-stopped", "a batcher killed while a lane is stopped", "until the next answer", stopped_lane,
        {"quick": QUICK}, bar=TAKEOVER,
    ),
    Situation(
        "front-end", f"gRPC's lane killed while a worker executes {EXECUTION_S:g} s", "until ServerLive answers",
        front_end_restart, _TAKEOVER, GRPC,
    ),
    Situation(
        "worker-gil", f"a worker killed while a BLS model in native code keeps its GIL for {EXECUTION_S:g} s",
        "until its model answers", worker_restart, _TAKEOVER,
    ),
    Situation(
        "lanes", f"{NUM_LANES} lanes and {NUM_CONNECTIONS} connections opened {1000 * CONNECT_S:g} ms apart",
        "of the lane with the fewest", lanes_shared, {"quick": QUICK}, _LANES,
        Bar(0.5, is_least=True), Unit.CONNECTIONS,
    ),
    Situation(
        "lanes-busy", f"{NUM_LANES} lanes, {NUM_CONNECTIONS} connections, and 4 clients with 180 KB of JSON", "p99",
        lanes_busy, {"quick": QUICK}, _LANES,
    ),
    Situation(
        "large-request", f"16 MiB for two instances of which one executes {EXECUTION_S:g} s", "slowest",
        large_request, {"task": python("task", 2)},
    ),
    Situation(
        "uneven", "4 instances, one client with requests of 0.3 s beside fast ones", "p99 of the fast ones", uneven,
        {"task": python("task", 4)},
    ),
    Situation(
        "metrics-gzip", f"{ZIPPERS} clients with Accept-Encoding: gzip on a model of 100 ms", "p99 of /metrics",
        metrics_gzip, {"slow_a": identity(100)},
    ),
    Situation(
        "metrics-chunked", f"{UNFINISHED} chunked bodies that do not end", "p99 of /metrics", metrics_chunked,
        {"quick": QUICK},
    ),
    Situation(
        "batcher-cpu", f"{BUSY} instances at work and {CLIENTS} idle clients", "of the batcher for a lone request",
        batcher_cpu, {"quick": QUICK, "busy": identity(6000, BUSY)}, bar=Bar(1.5), unit=Unit.CPU_US,
    ),
)  # fmt: skip
