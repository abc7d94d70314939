"""The inputs of the requests that `run`, `infer` and `bench` send: from the command line, from a file, or made up.

A value becomes an array of the input's datatype, in a shape that fits. Files are read, nothing is printed.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal import bf16
from shoal.cli.pictures import ENDINGS, PictureError, picture, split
from shoal.cli.recorded_inputs import recorded_inputs
from shoal.cli.request_arguments import read_file
from shoal.cli.serve import CommandLineError
from shoal.datatypes import BF16, BYTES, FP32, Datatype, format_shape
from shoal.errors import InvalidArgumentError
from shoal.frontend.v2.generate import fitted
from shoal.model_config.messages import Config
from shoal.model_config.signature import Signature, TensorSpec
from shoal.recorder.folder import SUFFIX as RECORDING_SUFFIX
from shoal.testing.tensors import to_array
from shoal.workers.tensors import Array

if TYPE_CHECKING:
    from shoal.recorder.recorded import RecordedRequest

#: The most requests of a recording that are read (ours): all are kept in memory, and sent in turns.
MAX_RECORDED = 1000


class InputError(CommandLineError):
    """The given inputs are no request to this model; the message says why, and what would be one."""


@dataclass(frozen=True)
class RunRequest:
    """A request to the model, made of the command's arguments and files."""

    inputs: Mapping[str, Array] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


def read_requests(
    config: Config,
    given: Sequence[tuple[str, str]],
    data: Path | None,
    sample: str | None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    rows: int = 1,
) -> list[RunRequest]:
    """The requests of the file or recording `data`; without `data`, one request. Each has the inputs `given` on the
    command line; inputs that are still missing are made up as `sample` says.

    `shapes` are those of made-up inputs, with or without the batch dimension. A batch of 1 is repeated to `rows` rows.
    Raises InputError.
    """
    parser = RequestParser(Signature.from_config(config), shapes or {}, rows)
    parser.check_shapes()
    requests = [RunRequest()] if data is None else parser.read(data)
    own = {name: parser.value(name, text) for name, text in given}
    return [parser.completed(replace(each, inputs={**each.inputs, **own}), sample) for each in requests]


class RequestParser:
    """Reads requests to a model by the model's signature. `shapes` and `rows` are those of `read_requests`."""

    def __init__(self, signature: Signature, shapes: Mapping[str, Sequence[int]], rows: int) -> None:
        self._signature = signature
        self._shapes = shapes
        self._rows = rows

    # -- the command line -----------------------------------------------------------------------------------------

    def value(self, name: str, text: str) -> Array:
        """An input's tensor from `text`: JSON, @ and a file, or plain text. Raises InputError if it does not fit."""
        spec = self._spec(name)
        if text.startswith("@"):
            path, scale = split(text[1:])
            is_picture = path.suffix.lower() in ENDINGS and spec.datatype is not BYTES
            return self._from_picture(spec, path, scale) if is_picture else self._from_file(spec, Path(text[1:]))
        try:
            value = json.loads(text)
        except ValueError:
            if spec.datatype is not BYTES:
                raise InputError(f"Input {self._described(spec)} cannot be {text!r}: give it JSON or @file.") from None
            value = text
        if spec.datatype is BYTES and not isinstance(value, (str, list)):
            value = text  # a text may look like a number, true or null
        return self._array(spec, value)

    def _from_file(self, spec: TensorSpec, path: Path) -> Array:
        try:
            if path.suffix == ".npy":
                return self._shaped(spec, np.load(path, allow_pickle=False))
            contents = read_file(path)
        except (OSError, ValueError, EOFError) as error:  # EOFError: an empty .npy
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InputError(f"Input '{spec.name}': cannot read {path}: {why}") from None
        if path.suffix == ".json":
            return self._array(spec, _json(contents, path))
        if spec.datatype is BYTES:
            return self._array(spec, [contents])  # a file of any other kind, such as an image
        raise InputError(f"Input {self._described(spec)} is read from .npy, .json or a picture, not from {path}.")

    def _from_picture(self, spec: TensorSpec, path: Path, scale: str) -> Array:
        datatype = FP32 if spec.datatype is BF16 else spec.datatype
        try:
            return self._shaped(spec, picture(path, spec.dims, scale, datatype.dtype))
        except PictureError as error:
            raise InputError(f"Input {self._described(spec)}: {error}.") from None

    # -- a file of requests ---------------------------------------------------------------------------------------

    def read(self, path: Path) -> list[RunRequest]:
        """All requests of a file in one of the three forms of --data, or the first ones of a recording. Raises
        InputError for any other file."""
        if path.is_dir() or path.suffix == RECORDING_SUFFIX:
            return self._recorded(path)
        try:
            document = _json(read_file(path), path)
        except OSError as error:
            raise InputError(f"--data: cannot read {path}: {error.strerror}") from None
        if not isinstance(document, dict):
            raise InputError(f"--data: {path} holds no JSON object.")
        if isinstance(document.get("inputs"), list):
            return [self._infer_request(document)]
        if isinstance(document.get("data"), list) and "data" not in self._signature.inputs:
            steps = [step for each in document["data"] for step in (each if isinstance(each, list) else [each])]
            return [RunRequest(self._contents(step)) for step in steps]
        return [RunRequest(self._contents(document))]

    def _recorded(self, path: Path) -> list[RunRequest]:
        """The first answered requests to the model in a recording, without requests of sequences. Raises InputError if
        there are none."""
        from shoal.cli.records import open_recording
        from shoal.recorder.entry import Outcome

        def fits(request: "RecordedRequest") -> bool:
            is_alone = request.sequence[0] in (0, "")
            return request.model == self._signature.name and request.outcome is Outcome.OK and is_alone

        recording, _ = open_recording(str(path))
        try:
            found = [
                RunRequest(
                    recorded_inputs(each, self._signature),
                    each.requested_outputs, dict(each.parameters), each.id,
                )
                for each in islice(filter(fits, recording), MAX_RECORDED)
            ]  # fmt: skip
        except (OSError, ValueError) as error:
            raise InputError(f"--data: the recording {path} cannot be read: {error}") from None
        if not found:
            raise InputError(f"--data: the recording {path} has no answered request to model '{self._signature.name}'.")
        return found

    def _infer_request(self, document: Mapping[str, Any]) -> RunRequest:
        """A request from the body of POST …/infer, with tensors in JSON."""
        try:
            inputs = {
                each["name"]: self._content(each["name"], {"content": each["data"], "shape": each["shape"]})
                for each in document["inputs"]
            }
            outputs = [each["name"] for each in document.get("outputs", ())]
        except KeyError as error:
            raise InputError(f"--data: an input or output has no {error}.") from None
        except TypeError:
            raise InputError("--data: each of the inputs and outputs is an object, as POST …/infer takes it.") from None
        return RunRequest(inputs, outputs, document.get("parameters", {}), document.get("id", ""))

    def _contents(self, step: Any) -> dict[str, Array]:
        if not isinstance(step, dict):
            raise InputError(f"--data: a request is an object of inputs, not {step!r}.")
        return {name: self._content(name, value) for name, value in step.items()}

    def _content(self, name: str, value: Any) -> Array:
        """A tensor from a file: a value, {"content": [...], "shape": [...]} or {"b64": "..."}."""
        spec = self._spec(name)
        if not isinstance(value, dict):
            return self._array(spec, value)
        try:
            if "b64" in value:
                return self._decoded(spec, base64.b64decode(value["b64"], validate=True))
            array = to_array(value["content"], spec)
            # perf_analyzer's files have shapes without the batch dimension.
            return self._shaped(spec, array.reshape(value["shape"]) if "shape" in value else array)
        except (KeyError, ValueError, TypeError, binascii.Error, InvalidArgumentError) as error:
            raise InputError(f"Input {self._described(spec)}: {error}") from None

    def _decoded(self, spec: TensorSpec, data: bytes) -> Array:
        if spec.datatype is BYTES:
            return self._array(spec, [data])
        return self._shaped(spec, np.frombuffer(data, spec.datatype.dtype))

    def check_shapes(self) -> None:
        """Raise InputError where `shapes` names an input that the model has not."""
        for name in self._shapes:
            self._spec(name)

    # -- samples --------------------------------------------------------------------------------------------------

    def completed(self, request: RunRequest, sample: str | None) -> RunRequest:
        """The request with all required inputs, made up as `sample` says. Raises InputError where one is missing."""
        missing = [
            spec for spec in self._signature.inputs.values() if spec.name not in request.inputs and not spec.optional
        ]
        if missing and sample is None:
            wanted = "; ".join(f"missing input {self._described(spec)}" for spec in missing)
            raise InputError(f"{wanted}. Give it as {missing[0].name}=<value>, or with --data or --sample.")
        try:
            made_up = {spec.name: self._sample(spec, str(sample)) for spec in missing}
            inputs = {**request.inputs, **made_up}
            return replace(request, inputs={name: self._repeated(array) for name, array in inputs.items()})
        except (MemoryError, OverflowError, ValueError):  # numpy raises the latter two for impossible sizes
            raise InputError("A request of this --shape and --batch-size does not fit into memory.") from None

    def _sample(self, spec: TensorSpec, sample: str) -> Array:
        """A made-up tensor; BF16 is made up as float32."""
        array = _SAMPLES[sample](FP32 if spec.datatype is BF16 else spec.datatype, self._made_up_shape(spec))
        return self._shaped(spec, array)

    def _made_up_shape(self, spec: TensorSpec) -> tuple[int, ...]:
        """The shape of --shape; without it the input's dims, with 1 for those of any size. Raises InputError for a
        --shape that the model does not take."""
        dims = self._signature.full_dims(spec)
        if spec.name not in self._shapes:
            return tuple(1 if dim == -1 else dim for dim in dims)
        shape = tuple(self._shapes[spec.name])
        if _fits(shape, dims):
            return shape
        if self._signature.max_batch_size > 0 and _fits(shape, spec.dims):
            return (1, *shape)
        raise InputError(f"Input {self._described(spec)} cannot have the shape {format_shape(shape)} of --shape.")

    def _repeated(self, array: Array) -> Array:
        """The array, with its row repeated if it has a single one and requests are to have more."""
        if self._rows == 1 or self._signature.max_batch_size == 0 or array.shape[0] != 1:
            return array
        return np.repeat(array, self._rows, axis=0)

    # -- shapes ---------------------------------------------------------------------------------------------------

    def _array(self, spec: TensorSpec, value: Any) -> Array:
        try:
            return self._shaped(spec, to_array(value, spec))
        except InvalidArgumentError as error:
            raise InputError(f"Input {self._described(spec)}: {error}") from None

    def _shaped(self, spec: TensorSpec, array: Array) -> Array:
        """The array in a shape that the model takes: its own, with a batch of 1 added, or reshaped. Raises InputError
        if none fits."""
        dims = self._signature.full_dims(spec)
        array = bf16.words_of(array) if spec.datatype is BF16 else array
        if _fits(array.shape, dims):
            return array
        if self._signature.max_batch_size > 0 and _fits(array.shape, spec.dims):
            return array[np.newaxis]
        shape = fitted(dims, array.size) if array.ndim <= 1 else None
        if shape is None:
            raise InputError(f"Input {self._described(spec)} is given in shape {format_shape(array.shape)}.")
        return array.reshape(shape)

    def _spec(self, name: str) -> TensorSpec:
        spec = self._signature.inputs.get(name)
        if spec is None:
            known = ", ".join(self._described(each) for each in self._signature.inputs.values())
            takes = f"takes {known}" if known else "has no inputs: its configuration names none"
            raise InputError(f"'{name}' is no input of model '{self._signature.name}', which {takes}.")
        return spec

    def _described(self, spec: TensorSpec) -> str:
        return f"'{spec.name}' ({spec.datatype.name}, shape {format_shape(self._signature.full_dims(spec))})"


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))


def _json(data: bytes, path: Path) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise InputError(f"{path} is no JSON: {error}") from None


def _filled(text: bytes, number: int) -> Callable[[Datatype, tuple[int, ...]], Array]:
    def fill(datatype: Datatype, shape: tuple[int, ...]) -> Array:
        return np.full(shape, text if datatype is BYTES else number, datatype.dtype)

    return fill


def _random(datatype: Datatype, shape: tuple[int, ...]) -> Array:
    """Random values, the same in every run, so that a failure of the model is repeatable."""
    generator = np.random.default_rng(0)
    if datatype is BYTES:
        numbers = generator.integers(0, 1000, shape)
        return np.array([f"text {number}".encode() for number in numbers.flat], object).reshape(shape)
    if datatype.dtype.kind == "f":
        return generator.random(shape).astype(datatype.dtype)
    return generator.integers(0, 2 if datatype.dtype.kind == "b" else 100, shape).astype(datatype.dtype)


_SAMPLES: Mapping[str, Callable[[Datatype, tuple[int, ...]], Array]] = {
    "zeros": _filled(b"", 0),
    "ones": _filled(b"1", 1),
    "random": _random,
}
