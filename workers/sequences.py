"""Control tensors and states: the inputs of a sequence batcher's model besides the tensors that clients send.

    control tensors   START, END, READY and the correlation id, where the configuration names an input for them
    rows              for slots without a request, where each slot is a row of the batch (Triton's direct strategy): a
                      row of this kind, before that of the last slot with a request, has the tensors of another
                      request, is not READY, belongs to no sequence, and is not answered
    states            for the slot's sequence: what its last request put out, or the initial value

So backends see these tensors as inputs and outputs like any other. A state stays in this process, since its sequence
stays with this instance. There is at most one per slot; it is copied once, out of memory that the backend may use
again, and the next execution reads the copy in place. Runs in a worker.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shoal.datatypes import BYTES, Datatype, format_shape
from shoal.errors import InternalError, InvalidArgumentError
from shoal.model_config import files, sequences
from shoal.model_config.messages import Config
from shoal.model_config.signature import Signature, TensorSpec
from shoal.sequences import END, FLAGS, SLOT_SHIFT, START
from shoal.shm.layout import NO_BLOCK, B, Record
from shoal.workers.requests import InputPlace, Request
from shoal.workers.tensors import Array, encode_strings, open_strings

#: Name of the directory of initial states in a model's directory (Triton's).
DIRECTORY = "initial_state"
#: The largest file with an initial state of strings, in bytes: its size does not follow from a shape. The same limit
#: holds for warm-up files.
MAX_STRINGS_BYTES = 64 << 20


class BooleanControl(NamedTuple):
    """A control tensor with one of two values."""

    name: str
    kind: str
    place: InputPlace
    values: tuple[Array, Array]  # the value for false, the value for true


class State(NamedTuple):
    """An implicit state of a model."""

    input_name: str
    output_name: str
    spec: TensorSpec
    initial: Array


class SequenceTensors:
    """The control and state tensors of one instance."""

    def __init__(self, config: Config, version_dir: str) -> None:
        """Read the configuration of a model with `sequence_batching`. Raises ShoalError for an initial state that
        cannot be read."""
        given = sequences.with_sequence_tensors(config)
        signature = Signature.from_config(given)
        batching = config["sequence_batching"]
        self._model = config["name"]
        self._leading = (1,) if signature.max_batch_size > 0 else ()
        #: Whether each slot is a row of the batch (Triton's direct strategy).
        self.fills_rows = "oldest" not in batching and signature.max_batch_size > 1
        self._controls: list[BooleanControl] = []
        self._correlation: tuple[str, InputPlace] | None = None
        for control in sequences.controls(config):
            spec = signature.inputs[control.name]
            place = self._place(spec, (1,))
            if control.kind == sequences.CORRELATION_KIND:
                self._correlation = control.name, place
            else:
                no, yes = (np.full(place[1], value, spec.datatype.dtype) for value in control.values)
                self._controls.append(BooleanControl(control.name, control.kind, place, (no, yes)))
        self.states = tuple(
            State(
                state["input_name"],
                state["output_name"],
                signature.inputs[state["input_name"]],
                _initial(state, signature.inputs[state["input_name"]], self._leading, config["name"], version_dir),
            )
            for state in sequences.states(config)
        )
        # Changed by complete: slot → id of the sequence in it; ids of sequences whose slot was given to another
        # sequence before a request with END came.
        self._ids: dict[int, int | str] = {}
        self._ended: list[int | str] = []
        # Changed by keep: slot → the sequence whose states are kept, and its states by the names of their inputs.
        self._kept: dict[int, tuple[int, dict[str, Array]]] = {}

    def _place(self, spec: TensorSpec, dims: tuple[int, ...]) -> InputPlace:
        return spec, self._leading + dims, 0, 0

    # -- in ---------------------------------------------------------------------------------------------------------

    def with_gaps(self, records: Sequence[Record]) -> Sequence[Record]:
        """The batch's records, one for each slot if slots are rows; a slot without a request gets a record without
        KEY."""
        if not self.fills_rows:
            return records
        by_slot = {slot_of(record): record for record in records}
        gap = gap_like(records[0])
        return [by_slot.get(slot, gap) for slot in range(max(by_slot) + 1)]

    def complete(self, request: Request) -> None:
        """Add to a request the tensors that its client does not send. Raises InternalError unless the request has one
        row: each added tensor has one row, and a request of more rows would shift the rows of the batch's other
        requests."""
        record, parsed = request.record, request.parsed
        if self._leading and parsed.rows != 1:
            raise InternalError(f"a request of a sequence to model '{self._model}' has {parsed.rows} rows, must have 1")
        is_ready = record[B.KEY] != 0
        flags = record[B.FLAGS] & FLAGS
        correlation_id = (request.correlation_id or record[B.CORRELATION]) if is_ready else 0
        if is_ready:
            self._note(slot_of(record), correlation_id, is_last=bool(flags & END))
        says = {"CONTROL_SEQUENCE_START": flags & START, "CONTROL_SEQUENCE_END": flags & END}
        inputs, tensors, lent = dict(parsed.inputs), dict(request.tensors), dict(parsed.lent)
        for name, kind, control, values in self._controls:
            inputs[name] = control
            tensors[name] = values[bool(says.get(kind, is_ready))]
            lent[name] = NO_BLOCK
        if self._correlation is not None:
            name, control = self._correlation
            inputs[name], lent[name] = control, NO_BLOCK
            tensors[name] = _correlation(correlation_id, control)
        if self.states:
            correlation, kept = self._kept.get(slot_of(record), (0, {}))
            if flags & START or correlation != record[B.CORRELATION] or not is_ready:
                kept = {}
            for state in self.states:
                tensors[state.input_name] = tensor = kept.get(state.input_name, state.initial)
                inputs[state.input_name] = state.spec, tensor.shape, 0, tensor.nbytes
                lent[state.input_name] = NO_BLOCK
        request.complete(replace(parsed, inputs=inputs, lent=lent), tensors, (correlation_id, flags))

    def _note(self, slot: int, correlation_id: int | str, *, is_last: bool) -> None:
        before = self._ids.pop(slot, correlation_id)
        if before != correlation_id:
            self._ended.append(before)
        if not is_last:
            self._ids[slot] = correlation_id

    def ended(self) -> list[int | str]:
        """Ids of the sequences that have ended without END, which is noticed when another sequence comes in their slot;
        each id is returned once."""
        ended, self._ended = self._ended, []
        return ended

    # -- out --------------------------------------------------------------------------------------------------------

    def keep(self, requests: Sequence[Request], outputs: Mapping[str, Array]) -> None:
        """Keep the states among the outputs, which have a row for each request, for the next requests of the requests'
        sequences. Raises InternalError for a state whose datatype or shape is not as configured."""
        for row, request in enumerate(requests):
            record = request.record
            if not record[B.KEY]:
                continue
            slot = slot_of(record)
            if record[B.FLAGS] & END:
                self._kept.pop(slot, None)
                continue
            # A state that the model does not return keeps its value.
            kept = {state.input_name: request.inputs[state.input_name] for state in self.states}
            for state in self.states:
                array = outputs.get(state.output_name)
                if array is not None:
                    kept[state.input_name] = self._next(state, array[row : row + 1] if self._leading else array)
            self._kept[slot] = record[B.CORRELATION], kept

    def _next(self, state: State, array: Array) -> Array:
        datatype, dims = state.spec.datatype, self._leading + state.spec.dims
        fits = array.ndim == len(dims) and all(want in (-1, got) for want, got in zip(dims, array.shape, strict=True))
        if not fits or (array.dtype != datatype.dtype and datatype is not BYTES):
            raise InternalError(
                f"model '{self._model}' returned the state '{state.output_name}' as {array.dtype} of shape "
                f"{format_shape(array.shape)}, expected {datatype.name} of shape {format_shape(dims)}"
            )
        if datatype is BYTES:
            return open_strings(state.output_name, array.shape, memoryview(encode_strings(array)))
        return array.copy()


def gap_like(record: Sequence[int]) -> Record:
    """A record without KEY, for the row of a slot without a request; its tensors are those of `record`."""
    gap = list(record)
    gap[B.KEY] = gap[B.FLAGS] = gap[B.CORRELATION] = 0
    return tuple(gap)


def slot_of(record: Sequence[int]) -> int:
    """The slot of the request that this record of a batch is for."""
    return (record[B.FLAGS] >> SLOT_SHIFT) - 1


def _correlation(correlation_id: int | str, place: InputPlace) -> Array:
    datatype, shape = place[0].datatype, place[1]
    if datatype is BYTES:
        array: Array = np.empty(shape, BYTES.dtype)
        array[...] = str(correlation_id or "").encode("utf-8", "surrogatepass")
        return array
    # A guest may send an id of the wrong type, which counts as 0. As in Triton, a tensor of 32 bits gets the lower 32
    # of the id's 64 bits.
    number = correlation_id if isinstance(correlation_id, int) else 0
    return np.full(shape, number & 2**64 - 1, np.uint64).astype(datatype.dtype)


# -- initial states ------------------------------------------------------------------------------------------------


def _initial(state: Config, spec: TensorSpec, leading: tuple[int, ...], model: str, version_dir: str) -> Array:
    """The initial state of a sequence: the configured one, or else, as in Triton, zeros, with each variable dimension
    1."""
    given = state["initial_state"][0] if state["initial_state"] else {}
    dims = tuple(max(dim, 1) if not given else dim for dim in given.get("dims", spec.dims))
    shape = leading + dims
    if "data_file" in given:
        data = _read(given["data_file"], spec.datatype, math.prod(dims), state["input_name"], model, version_dir)
        if spec.datatype is BYTES:
            return open_strings(state["input_name"], shape, memoryview(data))
        return np.frombuffer(data, spec.datatype.dtype).reshape(shape)
    if spec.datatype is BYTES:
        return np.full(shape, b"", BYTES.dtype)
    return np.zeros(shape, spec.datatype.dtype)


def _read(filename: str, datatype: Datatype, num_elements: int, name: str, model: str, version_dir: str) -> bytes:
    what = f"data file '{filename}' of the initial state for input '{name}' in model '{model}'"
    directory = Path(version_dir).parent / DIRECTORY
    path = files.inside(directory, filename, f"{what} is outside directory '{DIRECTORY}' of the model")
    nbytes = MAX_STRINGS_BYTES if datatype is BYTES else num_elements * datatype.itemsize
    try:
        data = files.read(path, nbytes)
    except OSError as error:
        raise InternalError(f"failed to open text file for read {path}: {error.strerror}") from error
    if datatype is not BYTES and len(data) < nbytes:
        raise InvalidArgumentError(
            f"initial_state setting expects {nbytes} bytes for the state '{name}' of model '{model}', but the data "
            f"provided from {filename} only has {len(data)} bytes"
        )
    return data
