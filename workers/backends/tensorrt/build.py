"""The making of an engine from an ONNX file; engines are cached by all that they depend on: file, shapes, GPU, version
of TensorRT.

Runs in `shoal build-engine`, on a machine with the GPU that the engine is for. Functions that need neither GPU nor
TensorRT are pure.
"""

import hashlib
import importlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from shoal.errors import InternalError, InvalidArgumentError, UnsupportedError

Shape: TypeAlias = tuple[int, ...]
_INSTALL = "pip install 'shoal[tensorrt]'"
#: Finds where an ONNX file names a file of weights: the entry of TensorProto.external_data (onnx.proto) whose field 1,
#: `key`, is `location`, up to the length of its field 2, `value`, which has seven bits to a byte; the name follows.
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x80-\xff]*[\x00-\x7f])")
_PIECE_BYTES = 1 << 20


class Order(NamedTuple):
    """The description of an engine to be built."""

    onnx: Path
    shapes: Mapping[str, tuple[Shape, Shape, Shape]]  # of inputs: least, best, largest; else the file's
    max_batch_size: int  # largest first dimension of inputs without `shapes`, where it is dynamic
    fp16: bool
    workspace_mib: int  # memory for building; 0: TensorRT's default, all of the GPU's memory


def read_shape(text: str) -> tuple[str, tuple[Shape, Shape, Shape]]:
    """The name and three shapes in `X=1x3x8:4x3x8:8x3x8`; one shape stands for all three. Raises ValueError for any
    other text."""
    name, equals, rest = text.rpartition("=")
    parts = [tuple(int(size) for size in part.split("x") if size.isdecimal()) for part in rest.split(":")]
    written = ["x".join(map(str, part)) for part in parts]
    if not (name and equals and all(parts)) or ":".join(written) != rest or len(parts) not in (1, 3):
        raise ValueError(f"expected <input>=<least>:<best>:<most>, as in X=1x3x224:8x3x224:32x3x224, got '{text}'")
    least, best, most = parts * 3 if len(parts) == 1 else parts
    if not len(least) == len(best) == len(most) or not all(
        low <= middle <= high for low, middle, high in zip(least, best, most, strict=True)
    ):
        raise ValueError(
            f"the three shapes of '{name}' must have as many dimensions each, and must not shrink: '{rest}'"
        )
    return name, (least, best, most)


def shapes_of(name: str, declared: Shape, order: Order) -> tuple[Shape, Shape, Shape]:
    """The least, best and largest shape that the profile allows for an input that the file declares as `declared`.
    Raises InvalidArgumentError if neither the file nor the order determines them."""
    if name in order.shapes:
        return order.shapes[name]
    if -1 in declared[1:]:
        raise InvalidArgumentError(
            f"input '{name}' has the shape {list(declared)}: say how large it may be with --shape {name}=…:…:…"
        )
    if declared[:1] != (-1,):
        return declared, declared, declared
    rest, most = declared[1:], order.max_batch_size
    return (1, *rest), (most, *rest), (most, *rest)


def cache_key(order: Order, device: str, version: str) -> str:
    """The name of an engine in the cache, equal for orders with equal engines. Weights in files of their own count,
    too, if the ONNX file names these files."""
    digest = hashlib.sha256()
    for path in (order.onnx, *sorted(set(weight_files(order.onnx)))):
        file_digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                file_digest.update(piece)
        digest.update(file_digest.digest())
    shapes = sorted((name, *map(tuple, shapes)) for name, shapes in order.shapes.items())
    digest.update(repr((shapes, order.max_batch_size, order.fp16, order.workspace_mib, device, version)).encode())
    return digest.hexdigest()[:32]


def weight_files(onnx: Path) -> Iterator[Path]:
    """The paths of the files of weights that an ONNX file names, relative to the ONNX file's directory; a file that is
    named repeatedly comes repeatedly."""
    data = onnx.read_bytes()  # at most 2 GiB, as an ONNX file is a protobuf message
    for match in _LOCATION.finditer(data):
        nbytes = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(match[1]))
        path = onnx.parent / os.fsdecode(data[match.end() : match.end() + nbytes])
        if path.is_file():
            yield path


def build(order: Order, target: Path, cache: Path, report: Callable[[str], None]) -> None:
    """Write the engine to `target`, taken from the cache or built now. `report` is called with each line for the user.
    Raises InvalidArgumentError for an order or file that cannot be built, UnsupportedError without TensorRT or a GPU,
    InternalError if TensorRT fails."""
    if order.max_batch_size < 1:
        raise InvalidArgumentError(f"--max-batch-size must be at least 1, got {order.max_batch_size}")
    try:
        tensorrt: Any = importlib.import_module("tensorrt")
        from shoal.workers import cuda
    except ImportError as error:
        raise UnsupportedError(f"engines cannot be built here: {error}. Install it with: {_INSTALL}") from error
    try:
        device = cuda.device_name()
    except cuda.CudaError as error:
        raise UnsupportedError(f"engines are built on the GPU that they are for, and there is none: {error}") from error
    kept = cache / f"{cache_key(order, device, tensorrt.__version__)}.plan"
    if kept.exists():
        report(f"Taken from the cache: {kept}")
    else:
        report(f"Building an engine for {device} with TensorRT {tensorrt.__version__}; this may take minutes")
        cache.mkdir(parents=True, exist_ok=True)
        _replace(kept, _serialized(tensorrt, order))
    _replace(target, kept.read_bytes())


def _replace(path: Path, data: bytes) -> None:
    """Replace a file in one step, never leaving it half written: a server may be reading it, or another build writing
    it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(data)
    shutil.move(part, path)


def _serialized(tensorrt: Any, order: Order) -> bytes:
    logger = tensorrt.Logger(tensorrt.Logger.WARNING)
    tensorrt.init_libnvinfer_plugins(logger, "")
    builder = tensorrt.Builder(logger)
    network = builder.create_network(0)
    parser = tensorrt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(order.onnx)):
        faults = "; ".join(parser.get_error(index).desc() for index in range(parser.num_errors))
        raise InvalidArgumentError(f"TensorRT cannot read '{order.onnx}': {faults}")
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    for name in order.shapes.keys() - {tensor.name for tensor in inputs}:
        raise InvalidArgumentError(
            f"--shape {name}=…: '{order.onnx}' has no such input, only {', '.join(tensor.name for tensor in inputs)}"
        )
    for tensor in inputs:
        profile.set_shape(tensor.name, *shapes_of(tensor.name, tuple(tensor.shape), order))
    config.add_optimization_profile(profile)
    if order.workspace_mib:
        config.set_memory_pool_limit(tensorrt.MemoryPoolType.WORKSPACE, order.workspace_mib << 20)
    if order.fp16:
        if not hasattr(tensorrt.BuilderFlag, "FP16"):
            raise UnsupportedError(
                f"TensorRT {tensorrt.__version__} computes as the file says: convert it to FP16 and leave --fp16 out"
            )
        config.set_flag(tensorrt.BuilderFlag.FP16)
    serialized = builder.build_serialized_network(network, config)
    if serialized is None:
        raise InternalError(f"TensorRT cannot build an engine from '{order.onnx}'; its log above says why")
    return bytes(serialized)
