"""metrics.yaml, the file of `metrics_config`: the metrics of the server that are shown, and those of handlers.

dimensions:                          names of dimensions, which the lists below refer to by anchors
ts_metrics:    {counter: [{name, unit, dimensions}, …], gauge: […], histogram: […]}
model_metrics: {counter: […], gauge: […], histogram: […]}
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shoal.cli.torchserve.properties import PropertiesError

_KINDS = ("counter", "gauge", "histogram")
#: Short names of units → the names that are shown.
UNITS = {
    "ms": "Milliseconds", "s": "Seconds", "percent": "Percent", "count": "Count",
    "MB": "Megabytes", "GB": "Gigabytes", "kB": "Kilobytes", "B": "Bytes",
}  # fmt: skip


class Metric(NamedTuple):
    """A metric as it is declared."""

    kind: str  # one of _KINDS
    name: str
    unit: str  # as it is shown: a long name of UNITS, or the file's own word
    dimensions: tuple[str, ...]


class MetricsFile(NamedTuple):
    """All metrics that a file declares."""

    of_server: tuple[Metric, ...]
    of_handlers: tuple[Metric, ...]


def read_metrics_file(path: Path) -> MetricsFile:
    """The metrics of a file. Raises PropertiesError for one that cannot be read, or is of another form."""
    from shoal.repository.torchserve.yaml_config import YamlError, read_mapping  # few configurations name a file

    try:
        document = read_mapping(path)
    except YamlError as error:
        raise PropertiesError(f"metrics_config={path}: {error}") from error
    return MetricsFile(*(tuple(_metrics(document, part, path)) for part in ("ts_metrics", "model_metrics")))


def _metrics(document: Mapping[Any, Any], part: str, path: Path) -> Iterator[Metric]:
    kinds = document.get(part) or {}
    if not isinstance(kinds, dict) or not {*kinds} <= {*_KINDS}:
        raise PropertiesError(
            f"metrics_config={path}: '{part}' must be a mapping of {', '.join(_KINDS)}, got: {_shown(kinds)}"
        )
    for kind, declared in kinds.items():
        if declared is not None and not isinstance(declared, list):
            raise PropertiesError(
                f"metrics_config={path}: '{kind}' of '{part}' must be a list, got: {_shown(declared)}"
            )
        for each in declared or ():
            yield _metric(each, kind, f"metrics_config={path}: '{kind}' of '{part}'")


def _metric(declared: Any, kind: str, where: str) -> Metric:
    fields = declared if isinstance(declared, dict) else {}
    name, unit, dimensions = fields.get("name"), fields.get("unit"), fields.get("dimensions") or []
    if (
        not (isinstance(name, str) and name and isinstance(unit, str) and isinstance(dimensions, list))
        or not all(isinstance(each, str) for each in dimensions)
    ):  # fmt: skip
        raise PropertiesError(
            f"{where} must have entries with a name, a unit and a list of names of dimensions, got: {_shown(declared)}"
        )
    return Metric(kind, name, UNITS.get(unit, unit), tuple(dimensions))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
