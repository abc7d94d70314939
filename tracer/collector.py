"""The collector of traces: numbers and counts them, and writes or exports them. Runs in the tracer."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from shoal.tracer.settings import OPENTELEMETRY, TraceSetting
from shoal.tracer.trace import Numbered, Trace, to_json
from shoal.tracer.trace_file import TraceFile

if TYPE_CHECKING:
    from shoal.tracer.spans import SpanExport

#: Traces that may wait until the tracer is sent their setting (ours: that takes milliseconds).
MAX_EARLY = 4096


class Collector:
    """All settings that are on, and the traces collected under them.

    `first_number` is the number of the first trace. `export` is given where a setting's mode is OpenTelemetry.
    """

    def __init__(self, first_number: int, since_s: float, export: "SpanExport | None") -> None:
        self._numbers = itertools.count(first_number)
        self._since_s = since_s
        self._export = export
        # Changed by set and add: collections by their settings' revisions, files by name.
        self._collections: dict[int, Collection] = {}
        self._files: dict[str, TraceFile] = {}
        self._newest = 0  # the highest revision so far
        self._early: deque[tuple[Trace, int]] = deque(maxlen=MAX_EARLY)

    def set(self, settings: Iterable[TraceSetting]) -> None:
        """Put these settings in force, and write the traces collected under settings that are no longer in force."""
        before, self._collections = self._collections, {}
        for setting in settings:
            kept = before.pop(setting.revision, None)
            self._collections[setting.revision] = kept or Collection(setting, self._file(setting))
        for collection in before.values():
            collection.close()
        self._newest = max([self._newest, *self._collections])
        early, self._early = self._early, deque(maxlen=MAX_EARLY)
        for trace, wall_offset_ns in early:
            self.add(trace, wall_offset_ns)

    def _file(self, setting: TraceSetting) -> TraceFile | None:
        if setting.mode == OPENTELEMETRY:
            return None
        if setting.file not in self._files:
            self._files[setting.file] = TraceFile(setting.file, self._since_s)
        return self._files[setting.file]

    def add(self, trace: Trace, wall_offset_ns: int) -> bool:
        """Take a trace; False where its setting is no longer in force, or its count is reached."""
        if trace.revision > self._newest:  # front ends are sent settings before the tracer
            self._early.append((trace, wall_offset_ns))
            return True
        collection = self._collections.get(trace.revision)
        if collection is None or not collection.takes(trace):
            return False
        numbered = [*self._numbered(trace, 0)]
        if collection.file is not None:
            collection.keep(b",".join([to_json(number, each, collection.level, up) for number, up, each in numbered]))
        elif self._export is not None:
            self._export.add(numbered, wall_offset_ns)
        return True

    def _numbered(self, trace: Trace, parent: int) -> Iterator[Numbered]:
        """A trace and its children with their numbers, each after its parent."""
        number = next(self._numbers)
        yield number, parent, trace
        for child in trace.children:
            yield from self._numbered(child, number)

    def write(self) -> dict[int, int]:
        """Write the traces that may be written now; returns, by revision, how many were counted since the last call."""
        counts = {}
        for revision, collection in self._collections.items():
            collection.write()
            if collection.num_counted:
                counts[revision], collection.num_counted = collection.num_counted, 0
        return counts

    def close(self) -> None:
        """Write and export everything."""
        self.set(())
        if self._export is not None:
            self._export.close()


class Collection:
    """The traces collected under one setting."""

    def __init__(self, setting: TraceSetting, file: TraceFile | None) -> None:
        self.file = file
        self.level = setting.level
        self._log_frequency = setting.log_frequency
        # Changed as traces are collected and written.
        self._left = setting.count  # traces still wanted; -1: no limit
        self.num_counted = 0
        self._kept: list[bytes] = []

    def takes(self, trace: Trace) -> bool:
        """Whether the trace is wanted: front ends learn late that a setting's count is reached."""
        if not trace.is_counted or self._left < 0:
            return True
        if self._left == 0:
            return False
        self._left -= 1
        self.num_counted += 1
        return True

    def keep(self, text: bytes) -> None:
        """Keep a trace for the setting's file, and write a numbered file if it is full, or the count is reached."""
        self._kept.append(text)
        if self._left == 0 or len(self._kept) == self._log_frequency:
            self._flush(is_indexed=True)

    def write(self) -> None:
        """Write the kept traces to the one file of a setting that has no limit and no numbered files."""
        if self._left < 0 and not self._log_frequency:
            self._flush(is_indexed=False)

    def close(self) -> None:
        """Write all kept traces."""
        self._flush(is_indexed=self._log_frequency > 0)

    def _flush(self, *, is_indexed: bool) -> None:
        kept, self._kept = self._kept, []
        if kept and self.file is not None:
            (self.file.write_indexed if is_indexed else self.file.append)(kept)
