"""The text of GET /metrics, in Prometheus's format: all families, with their figures at one moment. Pure.

Written by hand because prometheus-client appends `_total` to the name of every counter, and Triton's counters have no
such suffix. Every family is printed from the start, a version's series only while the version is READY; families that
--metrics-config turns off are not printed at all, nor those of models' own before a model defines them. Labels are
sorted by name, `le` and `quantile` last, which is how Triton prints them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from shoal import metric_families as families
from shoal.frontend.state import ServerState
from shoal.memo import memoized
from shoal.metric_families import Family, Figure, Latency
from shoal.model_config.model_metrics import first_response_bounds
from shoal.shm.counters import RowView
from shoal.shm.windows import quantile_us
from shoal.star.models import ModelEntry
from shoal.version import __version__

_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})
_ESCAPES = {**_HELP_ESCAPES, ord('"'): '\\"'}
_NS_PER_US, _NS_PER_MS, _NS_PER_S = 1000, 1e6, 1e9
#: Bounds of Shoal's histograms: 2^n ns for these n, which are 16 µs to 137 s.
_BITS = range(14, 38)
_SECONDS = tuple((1 << bits) / _NS_PER_S for bits in _BITS)
_ROWS = tuple(1 << power for power in range(11))

Labels = tuple[tuple[str, str], ...]


class ExternalFigures(NamedTuple):
    """The figures that are not read from the models' counters in shared memory."""

    gauges: Mapping[str, Any] | None  # the supervisor's (supervisor/questions/gauges.py); None if it did not answer
    cpu: Mapping[str, float]  # the figures of `Cpu.read` (listener.py)
    gpus: Sequence[Mapping[str, Any]]  # the figures of `shoal.nvml.Gpus`, one mapping for each GPU


class _Version(NamedTuple):
    """A model version, the labels of its series, and its counters, which are read once, so that its figures belong
    together."""

    entry: ModelEntry
    labels: Labels
    row: RowView


def exposition(state: ServerState, external: ExternalFigures, now_ns: int) -> str:
    """The text of all families; `now_ns` is the monotonic time."""
    versions = [_Version(entry, _labels(entry), state.read_counters(entry)) for entry in state.models.ready_entries()]
    lines = [
        *_triton(state, versions, now_ns),
        *_machine(state, external),
        *_shoal(versions, external.gauges, now_ns),
        *_keys(state),
        *custom_lines(external.gauges),
    ]
    return "\n".join(lines) + "\n"


# --- Triton's families ---


def _triton(state: ServerState, versions: Sequence[_Version], now_ns: int) -> Iterator[str]:
    config = state.metrics_config
    yield from _cells(families.COUNTERS, versions)
    yield from _header(families.FAILURES)
    for version in versions:
        for reason, cell in families.FAILURE_CELLS.items():
            yield _sample(families.FAILURES.name, (*version.labels, ("reason", reason)), version.row.cells[cell])
    if config.counter_latencies:
        yield from _cells(families.DURATIONS, versions)
        yield from _cells(families.MODEL_CACHE, [version for version in versions if version.entry.is_cached])
    if config.summary_latencies:
        windows = [(version, state.read_windows(version.entry, now_ns)) for version in versions]
        for latency in families.SUMMARIES:
            yield from _header(latency.family)
            for version, bins in windows:
                if bins is not None:
                    yield from _summary(latency, version, bins[latency.phase], config.summary_quantiles)
        for family in families.CACHE_SUMMARIES:
            yield from _header(family)
    if config.histogram_latencies:
        yield from _header(families.FIRST_RESPONSES)
        for version in versions:
            yield from _first_responses(version)
    yield from _cells((families.PENDING,), versions)
    yield from _plain(families.LOAD_DURATION, ((version.labels, version.entry.load_seconds) for version in versions))


def _cells(cells: Iterable[families.Cell], versions: Sequence[_Version]) -> Iterator[str]:
    for family, cell, divisor in cells:
        yield from _plain(family, ((version.labels, version.row.cells[cell] // divisor) for version in versions))


def _summary(
    latency: Latency, version: _Version, bins: Sequence[int], quantiles: Sequence[tuple[float, float]]
) -> Iterator[str]:
    name, cells = latency.family.name, version.row.cells
    yield _sample(f"{name}_count", version.labels, cells["success_count"])
    yield _sample(f"{name}_sum", version.labels, cells[latency.cell] // _NS_PER_US)
    for quantile, _ in quantiles:
        yield _sample(name, version.labels, quantile_us(bins, quantile), f'quantile="{_number(quantile)}"')


def _first_responses(version: _Version) -> Iterator[str]:
    bounds = first_response_bounds(version.entry.config)
    counts = version.row.first_response[: len(bounds) + 1]
    sum_ms = version.row.first_response_ns / _NS_PER_MS
    return _histogram(families.FIRST_RESPONSES.name, version.labels, bounds, counts, sum_ms)


# --- the machine's ---


def _machine(state: ServerState, external: ExternalFigures) -> Iterator[str]:
    cache = state.read_cache_figures()
    for figure in families.CACHE:
        yield from _figures(figure, [((), cache)])
    for family in families.PINNED_MEMORY:
        yield from _plain(family, [((), 0)])
    for figure in families.GPU_FAMILIES:
        yield from _figures(figure, [((("gpu_uuid", gpu["uuid"]),), gpu) for gpu in external.gpus])
    for figure in families.CPU_FAMILIES:
        yield from _figures(figure, [((), external.cpu)])


# --- Shoal's own ---


def _shoal(versions: Sequence[_Version], gauges: Mapping[str, Any] | None, now_ns: int) -> Iterator[str]:
    for latency in families.HISTOGRAMS:
        yield from _header(latency.family)
        for version in versions:
            yield from _latencies(latency, version)
    yield from _header(families.BATCH_ROWS)
    for version in versions:
        yield from _batch_rows(version)
    yield from _plain(families.QUEUE_AGE, ((version.labels, _queue_age_s(version.row, now_ns)) for version in versions))
    yield from _cells(families.POISON, versions)
    yield from _cells(families.RECORDING, versions)
    yield from _cells(families.ROLLOUT, versions)
    yield from _plain(families.INSTANCES_WANTED, ((each.labels, each.entry.num_instances) for each in versions))
    yield from _plain(families.INSTANCES_UP, ((each.labels, each.entry.num_instances_up) for each in versions))
    seen = gauges or {"instances": (), "front_ends": ()}
    yield from _memory(seen.get("memory", ()))
    instances = [(tuple((label, str(each[label])) for label in families.INSTANCE), each) for each in seen["instances"]]
    pairs = [
        (tuple([(label, str(each[label])) for label in ("model", "version", "shadow_version")]), each)
        for each in seen.get("shadows", ())
    ]
    for figure in families.SHADOW_FAMILIES:
        yield from _figures(figure, pairs)
    for figure in families.INSTANCE_FAMILIES:
        yield from _figures(figure, instances)
    yield from _front_ends(seen["front_ends"])
    yield from _plain(families.BUILD_INFO, [((("version", __version__),), 1)])
    expiries = seen.get("certificates", {}).items()
    yield from _plain(families.CERTIFICATE_EXPIRY, [((("protocol", name),), value) for name, value in expiries])
    failed = seen.get("handshakes_failed", {}).items()
    yield from _plain(families.HANDSHAKES_FAILED, [((("protocol", name),), value) for name, value in failed])
    yield from _rollouts(seen.get("rollouts", {}))
    for figure in families.SERVER_FAMILIES:
        yield from _figures(figure, [((), seen)])


def _memory(models: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    labelled = [((("model", each["model"]), ("version", str(each["version"]))), each) for each in models]
    yield from _plain(families.MODEL_MEMORY, [(labels, each["nbytes"]) for labels, each in labelled])
    on_gpus = [
        ((*labels, ("gpu_uuid", uuid)), nbytes) for labels, each in labelled for uuid, nbytes in each["gpus"].items()
    ]
    yield from _plain(families.MODEL_GPU_MEMORY, on_gpus)


def _rollouts(seen: Mapping[str, Any]) -> Iterator[str]:
    weights = [
        ((("model", model), ("version", str(number))), share) for model, number, share in seen.get("weights", ())
    ]
    yield from _plain(families.ROLLOUT_WEIGHT, weights)
    states = [
        ((("model", model), ("version", str(number)), ("phase", phase)), 1)
        for model, number, phase in seen.get("states", ())
    ]
    yield from _plain(families.ROLLOUT_STATE, states)


def _keys(state: ServerState) -> Iterator[str]:
    """The figures of the API keys with limits that have been used."""
    uses = [((("api_key", name),), use) for name, use in tuple(state.key_uses.uses.items())]
    for family, figure, _ in families.KEY_FAMILIES:
        yield from _plain(family, [(labels, getattr(use, figure)) for labels, use in uses])


def _latencies(latency: Latency, version: _Version) -> Iterator[str]:
    by_bits = version.row.histograms[latency.phase]
    # A time of n bits lies below 2^n ns, so the bucket for times of n bits has the bound 2^n.
    counts = [sum(by_bits[: _BITS.start + 1]), *by_bits[_BITS.start + 1 : _BITS.stop], sum(by_bits[_BITS.stop :])]
    total = version.row.cells[latency.cell] / _NS_PER_S
    return _histogram(latency.family.name, version.labels, _SECONDS, counts, total)


def _batch_rows(version: _Version) -> Iterator[str]:
    counts = [0] * (len(_ROWS) + 1)
    for batch in version.row.batches:
        counts[(batch.batch_size - 1).bit_length() if batch.batch_size <= _ROWS[-1] else -1] += batch.num_executions
    sum_rows = sum(batch.batch_size * batch.num_executions for batch in version.row.batches)
    return _histogram(families.BATCH_ROWS.name, version.labels, _ROWS, counts, sum_rows)


def _queue_age_s(row: RowView, now_ns: int) -> float:
    oldest_ns = row.cells["oldest_queued_ns"]
    return max(0, now_ns - oldest_ns) / _NS_PER_S if oldest_ns else 0


def _front_ends(processes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The figures of front-end processes, added up by the processes' title, since single processes come and go."""
    groups: dict[Labels, list[Mapping[str, Any]]] = {}
    for process in processes:
        groups.setdefault((("process", process["process"]),), []).append(process)
    yield from _plain(families.FRONT_ENDS, [(labels, len(group)) for labels, group in groups.items()])
    for family, figure, _ in families.FRONT_END_FAMILIES:
        sums = [(labels, sum(each.get(figure, 0) for each in group)) for labels, group in groups.items()]
        yield from _plain(family, sums)
    ratios = [(labels, max(each.get("ring_used_ratio", 0) for each in group)) for labels, group in groups.items()]
    yield from _plain(families.FRONT_END_RINGS, ratios)


# --- models' own ---


def custom_lines(gauges: Mapping[str, Any] | None, more: Labels = ()) -> Iterator[str]:
    """The lines of families that models define themselves, as supervisor/questions/custom_metrics.py returns them;
    `more` labels are added."""
    for name, kind, text, series in (gauges or {}).get("custom", ()):
        family = Family(name, kind, (), text)
        yield from _header(family)
        for pairs, figures in series:
            labels = (*((label, value) for label, value in pairs), *more)
            if kind == "histogram":
                yield from _histogram(name, labels, *figures)
            else:
                yield _sample(name, labels, figures)


# --- lines ---


def _header(family: Family) -> tuple[str, str]:
    text = family.help.translate(_HELP_ESCAPES)
    return f"# HELP {family.name} {text}", f"# TYPE {family.name} {family.kind}"


def _plain(family: Family, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """The lines of a family of counters or gauges."""
    yield from _header(family)
    for labels, value in samples:
        yield _sample(family.name, labels, value)


def _figures(figure: Figure, sources: Iterable[tuple[Labels, Mapping[str, Any]]]) -> Iterator[str]:
    """The lines of one family, one for each source (labels, and figures by name) that has the family's figure."""
    samples = (
        (labels, source[figure.figure] / figure.divisor) for labels, source in sources if figure.figure in source
    )
    return _plain(figure.family, samples)


def _histogram(
    name: str, labels: Labels, bounds: Sequence[float], counts: Sequence[int], total: float
) -> Iterator[str]:
    """The lines of a histogram; `counts` has a number for each bucket, the last for values above all bounds."""
    *cumulated, count = accumulate(counts)
    yield _sample(f"{name}_count", labels, count)
    yield _sample(f"{name}_sum", labels, total)
    for bound, seen in zip((*bounds, math.inf), (*cumulated, count), strict=True):
        yield _sample(f"{name}_bucket", labels, seen, f'le="{_number(bound)}"')


def _sample(name: str, labels: Labels, value: float, last: str = "") -> str:
    text = ",".join(filter(None, (_text(labels), last)))
    return f"{name}{{{text}}} {_number(value)}" if text else f"{name} {_number(value)}"


@memoized("metric_number", 1024)  # every answer has the same bounds
def _number(value: float) -> str:
    """A number as Triton prints it: whole numbers have no decimal point."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
    return str(int(value)) if value == int(value) else repr(value)


def _labels(entry: ModelEntry) -> Labels:
    tags: Mapping[str, str] = entry.config.get("metric_tags", {})
    namespace = (("namespace", entry.namespace),) if entry.namespace else ()
    tagged = ((f"_{key}", value) for key, value in tags.items())
    return ("model", entry.name), ("version", str(entry.version)), *namespace, *tagged


@memoized("metric_labels", 4096)  # every answer has the same labels
def _text(labels: Labels) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(labels))
