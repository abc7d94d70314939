"""The inputs and outputs of an ONNX file, and the files that it needs, read without ONNX Runtime.

For `shoal check`, which loads nothing. Pure but for the file, which is mapped: its weights are passed over, not read.
A file is protobuf (onnx/onnx.proto): fields of a tag, number << 3 | wire type, and a value, which is a varint or a
length followed by bytes.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shoal.errors import InvalidArgumentError
from shoal.model_config.autocomplete import IOTensor, ModelIO

#: TensorProto.DataType → config.pbtxt's name; others have no datatype in Triton's protocol.
_DATA_TYPES = {
    1: "TYPE_FP32", 2: "TYPE_UINT8", 3: "TYPE_INT8", 4: "TYPE_UINT16", 5: "TYPE_INT16", 6: "TYPE_INT32",
    7: "TYPE_INT64", 8: "TYPE_STRING", 9: "TYPE_BOOL", 10: "TYPE_FP16", 11: "TYPE_FP64", 12: "TYPE_UINT32",
    13: "TYPE_UINT64", 16: "TYPE_BF16",
}  # fmt: skip
#: From this version of the format on, an initializer that is an input too is a default; before, it is a constant.
_FIRST_WITH_DEFAULTS = 4
_EXTERNAL = 1  # TensorProto.DataLocation
_MOST_NESTING = 8  # how deep lists and optional values may lie in each other

# Numbers of fields, by the message of onnx.proto that has them.
_IR_VERSION, _GRAPH = 1, 7  # of ModelProto
_INITIALIZER, _INPUT, _OUTPUT, _SPARSE = 5, 11, 12, 15  # of GraphProto
_TENSOR_NAME, _EXTERNAL_DATA, _DATA_LOCATION = 8, 13, 14  # of TensorProto
_TENSOR, _SEQUENCE, _MAP, _SPARSE_TENSOR, _OPTIONAL = 1, 4, 5, 8, 9  # of TypeProto


class OnnxFile(NamedTuple):
    """The interface of a model file."""

    io: ModelIO
    initializers: tuple[IOTensor, ...]  # inputs with a default
    unknown_ranks: frozenset[str]  # inputs and outputs whose shape the file leaves out; their dims are ()
    locations: frozenset[str]  # paths of the files with its weights, from the file's directory


def read(path: Path) -> OnnxFile:
    """The interface of a model file. Raises InvalidArgumentError if it is no ONNX model, and OSError."""
    with path.open("rb") as file:
        try:
            return _model(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
        except (IndexError, ValueError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"'{path}' is no ONNX model, or was cut short: {error}") from None


def _model(data: memoryview) -> OnnxFile:
    version, graph = 0, None
    for number, value in _fields(data):
        if number == _IR_VERSION and isinstance(value, int):
            version = value
        elif number == _GRAPH and isinstance(value, memoryview):
            graph = value
    if graph is None:
        raise ValueError("it has no graph")
    inputs: list[IOTensor] = []
    outputs: list[IOTensor] = []
    weights: set[str] = set()
    unknown: set[str] = set()
    locations: set[str] = set()
    for number, value in _fields(graph):
        if not isinstance(value, memoryview):
            continue
        if number in (_INPUT, _OUTPUT):
            tensor, has_rank = _value_info(value)
            (inputs if number == _INPUT else outputs).append(tensor)
            if not has_rank:
                unknown.add(tensor.name)
        elif number == _INITIALIZER:
            _initializer(value, weights, locations)
        elif number == _SPARSE:
            for inner, values in _fields(value):
                if inner == 1 and isinstance(values, memoryview):
                    _initializer(values, weights, locations)
    defaults = [each for each in inputs if each.name in weights] if version >= _FIRST_WITH_DEFAULTS else []
    required = [each for each in inputs if each.name not in weights]
    return OnnxFile(ModelIO(tuple(required), tuple(outputs)), tuple(defaults), frozenset(unknown), frozenset(locations))


def _initializer(tensor: memoryview, names: set[str], locations: set[str]) -> None:
    location, is_external = "", False
    for number, value in _fields(tensor):
        if number == _TENSOR_NAME:
            names.add(_text(value))
        elif number == _DATA_LOCATION:
            is_external = value == _EXTERNAL
        elif number == _EXTERNAL_DATA and isinstance(value, memoryview):
            entry = {inner: _text(text) for inner, text in _fields(value)}
            if entry.get(1) == "location":
                location = entry.get(2, "")
    if is_external and location:
        locations.add(location)


def _value_info(data: memoryview) -> tuple[IOTensor, bool]:
    """An input or output, and whether the file says its rank."""
    name, kind, dims = "", "", None
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2 and isinstance(value, memoryview):
            kind, dims = _type(value)
    return IOTensor(name, kind, dims or ()), dims is not None


def _type(data: memoryview, depth: int = 0) -> tuple[str, tuple[int, ...] | None]:
    """The datatype of a TypeProto, in ONNX Runtime's words where config.pbtxt has none, and its dims if it has any."""
    if depth > _MOST_NESTING:
        raise ValueError("types are nested too deeply")
    for number, value in _fields(data):
        if not isinstance(value, memoryview):
            continue
        if number == _TENSOR:
            return _tensor(value)
        inner = next((part for field, part in _fields(value) if field == 1 and isinstance(part, memoryview)), b"")
        if number == _SEQUENCE:
            return f"seq({_type(memoryview(inner), depth + 1)[0]})", None
        if number in (_MAP, _SPARSE_TENSOR, _OPTIONAL):
            return {_MAP: "map()", _SPARSE_TENSOR: "sparse_tensor()"}.get(number, "optional()"), None
    return "", None


def _tensor(data: memoryview) -> tuple[str, tuple[int, ...] | None]:
    kind, dims = 0, None
    for number, value in _fields(data):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and isinstance(value, memoryview):
            dims = tuple(_dim(each) for inner, each in _fields(value) if inner == 1 and isinstance(each, memoryview))
    return _DATA_TYPES.get(kind, f"tensor of ONNX's type {kind}"), dims


def _dim(data: memoryview) -> int:
    """The size of a dimension; -1 if the file gives it a name, or nothing."""
    value = next((each for number, each in _fields(data) if number == 1 and isinstance(each, int)), -1)
    return value if 0 <= value < 1 << 63 else -1


def _text(value: int | memoryview) -> str:
    return bytes(value if isinstance(value, memoryview) else b"").decode()


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The numbers and values of a message's fields; a value of fixed size is returned as its bytes."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise ValueError("a field has no number")
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of wire type {kind}")
        if at + size > end:
            raise IndexError("it ends within a field")
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise IndexError("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number of more than ten bytes")
