"""Metrics of models' own, added up over their instances: workers report changes, /metrics is told the totals.

What a dead instance has counted or observed stays in the total. A gauge is what was set last, plus what instances have
added since; what a dead one had added goes with it, or a gauge of requests in flight would never come down again. What
one model's instances have made is gone when the model is. Pure but for the log; runs in the supervisor.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_log = logging.getLogger(__name__)

#: Of one model (ours). A worker has such a bound, too; its instances may each have other labels.
MAX_SERIES = 1000

Labels = tuple[tuple[str, str], ...]
#: What a worker tells of a family, as msgpack carries it: [name, kind, description, [[labels, change], …]].
Change = Sequence[Any]


@dataclass(slots=True)
class _Counter:
    total: float = 0.0

    def add(self, _instance: int, change: float) -> None:
        self.total += change

    def leave(self, _instance: int) -> None:
        """What it has counted has happened."""

    def told(self) -> float:
        return self.total


@dataclass(slots=True)
class _Gauge:
    value: float = 0.0
    added: dict[int, float] = field(default_factory=dict)  # since it was set, by instance

    def add(self, instance: int, change: tuple[float | None, float]) -> None:
        value, added = change
        if value is not None:
            self.value, self.added = value, {}
        self.added[instance] = self.added.get(instance, 0.0) + added

    def leave(self, instance: int) -> None:
        self.added.pop(instance, None)

    def told(self) -> float:
        return self.value + sum(self.added.values())


@dataclass(slots=True)
class _Histogram:
    bounds: tuple[float, ...] = ()
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def add(self, _instance: int, change: tuple[Sequence[float], Sequence[int], float]) -> None:
        bounds, counts, total = change
        if not self.counts:
            self.bounds, self.counts = tuple(bounds), [0] * len(counts)
        if self.bounds == tuple(bounds):  # as in Triton, the first to make it says what its buckets are
            self.counts = [before + more for before, more in zip(self.counts, counts, strict=True)]
            self.total += total

    def leave(self, _instance: int) -> None:
        """What it has observed has happened."""

    def told(self) -> tuple[tuple[float, ...], list[int], float]:
        return self.bounds, self.counts, self.total


_KINDS: dict[str, type[_Counter | _Gauge | _Histogram]] = {
    "counter": _Counter, "gauge": _Gauge, "histogram": _Histogram,
}  # fmt: skip


class _Key(NamedTuple):
    family: str
    labels: Labels


@dataclass(slots=True)
class _Family:
    kind: str
    description: str
    series: dict[Labels, _Counter | _Gauge | _Histogram] = field(default_factory=dict)


class CustomMetrics:
    """All families that models have made, and who has a part in which series."""

    def __init__(self, reserved: Collection[str]) -> None:
        """`reserved` are the names of the server's own families."""
        self._reserved = reserved
        # Changed by add, leave and forget.
        self._families: dict[str, _Family] = {}
        self._of_model: dict[int, set[_Key]] = {}
        self._of_instance: dict[int, set[_Key]] = {}
        self._has_complained: set[tuple[int, str]] = set()

    def add(self, model_id: int, instance: int, changes: Iterable[Change]) -> None:
        """An instance of a model reports what has changed."""
        for name, kind, description, series in changes:
            family = self._find(model_id, name, kind, description)
            if family is None:
                continue
            for pairs, change in series:
                key = _Key(name, tuple((label, value) for label, value in pairs))
                if self._has_room(model_id, key):
                    self._of_instance.setdefault(instance, set()).add(key)
                    family.series.setdefault(key.labels, _KINDS[kind]()).add(instance, change)

    def _find(self, model_id: int, name: str, kind: str, description: str) -> _Family | None:
        """The family of this name; None where it is another's."""
        if name in self._reserved:
            self._complain(model_id, name, "the server has a family of that name itself")
            return None
        family = self._families.setdefault(name, _Family(kind, description))
        if family.kind != kind:
            self._complain(model_id, name, f"another model has made it a {family.kind}, not a {kind}")
            return None
        return family

    def _has_room(self, model_id: int, key: _Key) -> bool:
        keys = self._of_model.setdefault(model_id, set())
        if key not in keys and len(keys) >= MAX_SERIES:
            self._complain(model_id, key.family, f"a model may have {MAX_SERIES} series, this one has more")
            return False
        keys.add(key)
        return True

    def _complain(self, model_id: int, name: str, why: str) -> None:
        if (model_id, name) not in self._has_complained:
            self._has_complained.add((model_id, name))
            _log.warning("/metrics does not show all of a model's metric family '%s': %s", name, why)

    def leave(self, instance: int) -> None:
        """An instance has ended: what it had added to gauges goes."""
        for name, labels in self._of_instance.pop(instance, ()):
            family = self._families.get(name)
            if family is not None and labels in family.series:
                family.series[labels].leave(instance)

    def forget(self, model_id: int) -> None:
        """Nothing is left of a model: its series go, but for those in which another has a part."""
        own = self._of_model.pop(model_id, set())
        self._has_complained = {each for each in self._has_complained if each[0] != model_id}
        for name, labels in own.difference(*self._of_model.values()):
            family = self._families[name]
            del family.series[labels]
            if not family.series:
                del self._families[name]

    def told(self) -> list[list[Any]]:
        """[name, kind, description, [[labels, figures], …]] of each family, as msgpack can carry it."""
        return [
            [name, family.kind, family.description, [[labels, each.told()] for labels, each in family.series.items()]]
            for name, family in sorted(self._families.items())
            if family.series
        ]
