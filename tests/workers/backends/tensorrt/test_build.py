"""build.py: shapes, what an engine depends on, the cache; TensorRT is a fake, and this was not run on a real one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from shoal.errors import InternalError, InvalidArgumentError, UnsupportedError
from shoal.workers.backends.tensorrt.build import Order, build, cache_key, read_shape, shapes_of, weight_files
from tests.workers.backends.tensorrt.fake_gpu import Status, fake_gpu

LONG_NAME = f"sub/{'w' * 130}.bin"


@pytest.fixture
def order(tmp_path: Path) -> Order:
    path = tmp_path / "model.onnx"
    # As the package onnx writes two tensors' external_data: a location, and an offset; a longer location; a directory.
    path.write_bytes(
        b"graph \x1a\x1f\x6a\x17\x0a\x08location\x12\x0bweights.bin\x6a\x0d\x0a\x06offset\x12\x030x0 notes.txt"
        b"\x0a\x08location\x12\x8a\x01"
        + LONG_NAME.encode()
        + b" \x0a\x08location\x12\x011 \x0a\x08location\x12\x04none"
    )
    (tmp_path / "1").mkdir()
    (tmp_path / LONG_NAME).parent.mkdir()
    for name in ("weights.bin", LONG_NAME, "notes.txt", "1/weights.bin"):
        (tmp_path / name).write_bytes(b"1")
    return Order(path, {}, 8, fp16=False, workspace_mib=0)


class Building:
    """What TensorRT builds with: two inputs, of which one is dynamic."""

    def __init__(self, faults: tuple[str, ...] = (), result: bytes | None = b"an engine") -> None:
        self.faults, self.result = faults, result
        self.profile: dict[str, Any] = {}
        self.settings: list[Any] = []
        self.Logger = type("Logger", (), {"WARNING": 2, "__init__": lambda _self, _severity: None})
        self.MemoryPoolType = SimpleNamespace(WORKSPACE="workspace")
        self.BuilderFlag = SimpleNamespace(FP16="fp16")

    def Builder(self, _log: Any) -> "Building":
        return self

    def OnnxParser(self, _network: Any, _log: Any) -> Any:
        errors = [SimpleNamespace(desc=lambda fault=fault: fault) for fault in self.faults]
        return SimpleNamespace(
            parse_from_file=lambda _path: not errors, num_errors=len(errors), get_error=errors.__getitem__
        )

    def create_network(self, _flags: int) -> Any:
        inputs = [SimpleNamespace(name="X", shape=(-1, 3)), SimpleNamespace(name="K", shape=(2,))]
        return SimpleNamespace(num_inputs=2, get_input=inputs.__getitem__)

    def create_builder_config(self) -> Any:
        return SimpleNamespace(
            add_optimization_profile=self.settings.append,
            set_memory_pool_limit=lambda *pool: self.settings.append(pool),
            set_flag=self.settings.append,
        )

    def create_optimization_profile(self) -> Any:
        return SimpleNamespace(set_shape=lambda name, *shapes: self.profile.update({name: shapes}))

    def build_serialized_network(self, _network: Any, _config: Any) -> bytes | None:
        return self.result

    def put_into(self, tensorrt: Any) -> None:
        for name in ("Logger", "MemoryPoolType", "BuilderFlag", "Builder", "OnnxParser"):
            setattr(tensorrt, name, getattr(self, name))


def test_an_engine_is_built_once(order: Order, tmp_path: Path) -> None:
    building, target, cache, told = Building(), tmp_path / "model.plan", tmp_path / "cache", list[str]()
    with fake_gpu() as (_, tensorrt):
        building.put_into(tensorrt)
        order = order._replace(fp16=True, workspace_mib=2)
        build(order, target, cache, told.append)
        assert target.read_bytes() == b"an engine"
        assert building.profile == {"X": ((1, 3), (8, 3), (8, 3)), "K": ((2,), (2,), (2,))}
        assert building.settings[1:] == [("workspace", 2 << 20), "fp16"]
        building.result = b"another"
        target.unlink()
        build(order, target, cache, told.append)
        assert target.read_bytes() == b"an engine"
    [kept] = cache.iterdir()
    assert told == [
        "Building an engine for Fake GPU 9.0 with TensorRT 10.0; this may take minutes",
        f"Taken from the cache: {kept}",
    ]


@pytest.mark.parametrize(
    ("building", "shapes", "kind", "sentence"),
    [
        (Building(("no such operator", "nor this")), {}, InvalidArgumentError, "cannot read .*: no such operator; nor"),
        (Building(result=None), {}, InternalError, "TensorRT cannot build an engine"),
        (
            Building(),
            {"Z": ((1,), (2,), (4,))},
            InvalidArgumentError,
            "--shape Z=…: '.*model.onnx' has no such input, only X, K",
        ),
    ],
)
def test_what_cannot_be_built_leaves_nothing(
    order: Order, tmp_path: Path, building: Building, shapes: Any, kind: type[Exception], sentence: str
) -> None:
    order = order._replace(shapes=shapes)
    with fake_gpu() as (_, tensorrt):
        building.put_into(tensorrt)
        with pytest.raises(kind, match=sentence):
            build(order, tmp_path / "model.plan", tmp_path / "cache", print)
    assert not (tmp_path / "model.plan").exists()
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_gpu_nothing_is_built(order: Order, tmp_path: Path) -> None:
    with fake_gpu() as (runtime, _):
        runtime.fails["cudaGetDeviceProperties"] = Status.cudaErrorLaunchFailure
        with pytest.raises(UnsupportedError, match="and there is none: CUDA error 719"):
            build(order, tmp_path / "model.plan", tmp_path / "cache", print)


def test_a_version_that_has_no_such_flag(order: Order, tmp_path: Path) -> None:
    building = Building()
    building.BuilderFlag = SimpleNamespace()
    with fake_gpu() as (_, tensorrt):
        building.put_into(tensorrt)
        with pytest.raises(UnsupportedError, match="convert it to FP16 and leave --fp16 out"):
            build(order._replace(fp16=True), tmp_path / "model.plan", tmp_path / "cache", print)


def test_an_engine_depends_on_this(order: Order) -> None:
    def key(order: Order = order, device: str = "GPU 9.0", version: str = "10.0") -> str:
        return cache_key(order, device, version)

    first, shapes = key(), {"X": ((1, 3), (2, 3), (4, 3))}
    changed = [
        key(device="GPU 8.0"),
        key(version="10.1"),
        key(order._replace(shapes=shapes)),
        key(order._replace(max_batch_size=9)),
        key(order._replace(fp16=True)),
        key(order._replace(workspace_mib=1)),
    ]
    for name in ("notes.txt", "1/weights.bin"):  # neither is a location in the file
        (order.onnx.parent / name).write_bytes(b"2")
        assert key() == first
    for name in ("weights.bin", LONG_NAME):
        (order.onnx.parent / name).write_bytes(b"2")
        changed.append(key())
    order.onnx.write_bytes(b"another graph")
    changed.append(key())
    assert len({first, *changed}) == 10


def test_weights_that_onnx_has_put_beside_a_file(tmp_path: Path) -> None:
    weights = onnx.numpy_helper.from_array(np.zeros(1024, np.float32), "W")
    path = tmp_path / "model.onnx"
    (tmp_path / "sub").mkdir()
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [weights])), path,
        save_as_external_data=True, location="sub/weights.bin",
    )  # fmt: skip
    assert list(weight_files(path)) == [tmp_path / "sub" / "weights.bin"]


@pytest.mark.parametrize("max_batch_size", [0, -1])
def test_a_batch_size_that_is_none(order: Order, tmp_path: Path, max_batch_size: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"--max-batch-size must be at least 1, got {max_batch_size}"):
        build(order._replace(max_batch_size=max_batch_size), tmp_path / "model.plan", tmp_path / "cache", print)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("X=1x3:2x3:4x3", ("X", ((1, 3), (2, 3), (4, 3)))),
        ("a=b=7", ("a=b", ((7,), (7,), (7,)))),
    ],
)
def test_shapes_as_they_are_written(text: str, expected: object) -> None:
    assert read_shape(text) == expected


@pytest.mark.parametrize("text", ["X", "=1", "X=", "X=1x", "X=1:2", "X=axb", "X=4:2:1", "X=1x2:2:3", "X=-1"])
def test_shapes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected <input>=|must not shrink"):
        read_shape(text)


def test_shapes_that_are_not_given(order: Order) -> None:
    assert shapes_of("X", (4, 3), order) == ((4, 3), (4, 3), (4, 3))
    assert shapes_of("X", (), order) == ((), (), ())
    with pytest.raises(InvalidArgumentError, match=r"input 'X' has the shape \[-1, -1\]: say how large"):
        shapes_of("X", (-1, -1), order)
