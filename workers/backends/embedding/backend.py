"""The embedding backend: looks up the ids in a batch's inputs, and writes the rows of the tables straight into the
block that clients read.

A request with an id that a table does not have fails alone, unless a setting replaces unknown ids. Runs in a worker.
"""

import os
import time
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.model_config.signature import Signature
from shoal.workers.answers import Answers
from shoal.workers.backends.backend import Backend, BackendModel, Device, joinable
from shoal.workers.backends.embedding.options import STORES, LookUp, look_ups
from shoal.workers.backends.embedding.outputs import EmbeddingOutput, PendingLookUp
from shoal.workers.backends.embedding.rows import Rows, TableSpec
from shoal.workers.backends.embedding.stores import OpenStore, StoreRows, open_store, public_name
from shoal.workers.backends.embedding.table import TableRows
from shoal.workers.ragged import RaggedBatches
from shoal.workers.requests import Request, gather, is_wanted
from shoal.workers.tensors import Array

_NO_ENDS: Mapping[str, Array] = {}


class EmbeddingBackend(Backend):
    """The tables of a model, and the outputs that are made of their rows."""

    def __init__(self) -> None:
        # Changed by load and unload.
        self._ragged: RaggedBatches | None = None
        self._tables: tuple[Rows, ...] = ()
        self._outputs: tuple[EmbeddingOutput, ...] = ()

    def load(self, model: BackendModel, device: Device) -> None:
        del device
        tables: dict[tuple[str, TableSpec, str], Rows] = {}
        stores: dict[str, OpenStore] = {}
        outputs = []
        for look_up in look_ups(model, Signature.from_config(model.config)):
            spec = TableSpec(
                look_up.ids.datatype, look_up.output.datatype, look_up.dims, look_up.scale, look_up.datatype
            )
            key = (look_up.table, spec, look_up.key)
            what = f"table '{public_name(look_up.table)}' of model '{model.name}'"
            if key not in tables:  # outputs with equal keys share an object, so that all see a replaced table at once
                tables[key] = _rows(look_up, model, what, spec, stores)
                tables[key].refresh()
            outputs.append(EmbeddingOutput(look_up, tables[key], what))
            outputs[-1].check()
        self._ragged = RaggedBatches(model.config) or None
        self._tables, self._outputs = tuple(tables.values()), tuple(outputs)

    def execute(self, requests: Sequence[Request], answers: Answers) -> None:
        """Answer a batch. The tables' files are checked for changes once, so all requests see the same tables."""
        for table in self._tables:
            table.refresh()
        if len(requests) > 1:
            requests = joinable(requests, answers, () if self._ragged is None else self._ragged.inputs)
        self._answer(requests, answers)

    def unload(self) -> None:
        self._tables = self._outputs = ()

    def _answer(self, requests: Sequence[Request], answers: Answers) -> None:
        ragged = self._ragged
        inputs = gather(requests) if ragged is None else ragged.gather(requests)
        ends = _NO_ENDS if ragged is None else ragged.ends(requests)
        found = [
            (output, output.find(inputs, ends))
            for output in self._outputs
            if output.is_asked(inputs) and is_wanted(output.name, requests)
        ]
        if any(len(each.lacking) for _, each in found):
            answerable = _refuse_lacking(requests, found, answers)
            if len(answerable) < len(requests):
                if answerable:
                    self._answer(answerable, answers)
                return
        placed = answers.place(requests, {output.name: each.shape for output, each in found})
        answers.input_end_ns = time.monotonic_ns()
        for output, each in found:
            output.take(each, placed[output.name])
        answers.output_start_ns = time.monotonic_ns()


def _rows(look_up: LookUp, model: BackendModel, what: str, spec: TableSpec, stores: dict[str, OpenStore]) -> Rows:
    table = look_up.table
    if not table.startswith(STORES):
        return TableRows(os.path.join(model.version_dir, table), what, spec)
    if table not in stores:
        stores[table] = open_store(table, model.version_dir, what)
    return StoreRows(what, spec, look_up.key, stores[table])


def _refuse_lacking(
    requests: Sequence[Request], found: Sequence[tuple[EmbeddingOutput, PendingLookUp]], answers: Answers
) -> list[Request]:
    """The requests for whose ids all wanted outputs have rows. The others fail, each with the first id that its table
    lacks."""
    total = sum(request.parsed.rows for request in requests)
    answerable, start = [], 0
    for request in requests:
        end = start + request.parsed.rows
        for output, each in found:
            if not request.parsed.wants(output.name):
                continue
            # Positions of missing rows ascend.
            first, last = np.searchsorted(each.lacking, [each.first_id_of(row, total) for row in (start, end)])
            if first < last:
                answers.fail(request.position, output.why_lacking(each, int(each.lacking[first])))
                break
        else:
            answerable.append(request)
        start = end
    return answerable
