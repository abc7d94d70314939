"""The embedding backend against plain numpy: tables of all kinds, batches, bags, unknown ids."""

import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import InvalidArgumentError
from shoal.model_config.autocomplete import ModelIO
from shoal.workers.backends.embedding.outputs import PIECE_NBYTES, add_up, pieces
from shoal.workers.tensors import Array
from tests.workers.backends.embedding.asking import ask, config, loaded, vectors
from tests.workers.worker_harness import CPU, Batcher, loop_of, model, model_config, tensor_config

RANDOM = np.random.default_rng(0)
TABLE: Array = RANDOM.normal(size=(10, 4)).astype(np.float32)
SINGLE = config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, 4]))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    np.save(tmp_path / "vectors.npy", TABLE)
    return tmp_path


def refusal(directory: Path, configuration: dict[str, Any], ids: Any, **more: Array) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        vectors(directory, configuration, ids, **more)
    return str(caught.value)


# --- rows ---


@pytest.mark.parametrize("data_type", ["INT8", "INT32", "INT64", "UINT16", "UINT64"])
def test_rows_by_number(directory: Path, data_type: str) -> None:
    found = vectors(directory, config((f"TYPE_{data_type}", [-1]), ("TYPE_FP32", [-1, 4])), [3, 0, 9, 3])
    assert np.array_equal(found, TABLE[[3, 0, 9, 3]])


@pytest.mark.parametrize(("data_type", "num_rows", "negative"), [("INT8", 200, -100), ("INT16", 70_000, -1)])
@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_negative_id_is_unknown_however_narrow_its_type(
    tmp_path: Path, data_type: str, num_rows: int, negative: int, is_scaled: bool
) -> None:
    table = np.arange(num_rows * 4, dtype=np.float32).reshape(-1, 4)
    (tmp_path / "items").mkdir()
    np.save(tmp_path / "items" / "vectors.npy", table)
    if is_scaled:
        np.save(tmp_path / "items" / "scales.npy", np.full(num_rows, 2, np.float32))
    configuration = config((f"TYPE_{data_type}", [1]), ("TYPE_FP32", [1, 4]), 8, table="items")
    answers = ask(
        loaded(tmp_path, configuration),
        configuration,
        *({"ids": np.array([[number]], data_type.lower())} for number in (3, negative)),
    )
    assert [str(error) for error in answers.errors] == [f"id {negative} is not in table 'items' of model 'm'"]
    assert np.array_equal(answers.outputs["vectors"], table[[[3]]] * (2 if is_scaled else 1))


def test_no_ids_have_no_rows(directory: Path) -> None:
    assert vectors(directory, SINGLE, []).shape == (0, 4)


def test_ids_of_many_dimensions(directory: Path) -> None:
    ids = RANDOM.integers(0, 10, (2, 3))
    found = vectors(directory, config(("TYPE_INT64", [-1, 3]), ("TYPE_FP32", [-1, 3, -1])), ids)
    assert np.array_equal(found, TABLE[ids])


@pytest.mark.parametrize("shape", [(10,), (10, 2, 3)])
def test_rows_of_any_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    table = RANDOM.normal(size=shape).astype(np.float32)
    np.save(tmp_path / "vectors.npy", table)
    found = vectors(tmp_path, config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, *shape[1:]])), [9, 1])
    assert np.array_equal(found, table[[9, 1]])


@pytest.mark.parametrize(
    ("data_type", "dtype"), [("TYPE_INT32", np.int32), ("TYPE_BOOL", np.bool_), ("TYPE_BF16", np.uint16)]
)
def test_rows_that_are_no_floats_go_as_they_are(tmp_path: Path, data_type: str, dtype: Any) -> None:
    table = RANDOM.integers(0, 2, (10, 4)).astype(dtype)
    np.save(tmp_path / "vectors.npy", table)
    found = vectors(tmp_path, config(("TYPE_INT64", [-1]), (data_type, [-1, 4])), [9, 1])
    assert found.dtype == dtype
    assert np.array_equal(found, table[[9, 1]])


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint8, np.float64])
@pytest.mark.parametrize("output", ["FP16", "FP32", "FP64"])
def test_other_numbers_become_the_output(tmp_path: Path, dtype: Any, output: str) -> None:
    table = RANDOM.integers(0, 100, (10, 4)).astype(dtype)
    np.save(tmp_path / "vectors.npy", table)
    found = vectors(tmp_path, config(("TYPE_INT64", [-1]), (f"TYPE_{output}", [-1, 4]), scale="0.5"), [9, 1])
    assert found.dtype.itemsize * 8 == int(output[2:])
    assert np.array_equal(found, table[[9, 1]] * 0.5)


def test_a_scale_per_row(tmp_path: Path) -> None:
    table = RANDOM.integers(-128, 128, (10, 4)).astype(np.int8)
    scales = RANDOM.uniform(size=10).astype(np.float32)
    (tmp_path / "items").mkdir()
    np.save(tmp_path / "items" / "vectors.npy", table)
    np.save(tmp_path / "items" / "scales.npy", scales)
    found = vectors(tmp_path, config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, 4]), table="items"), [9, 1, 9])
    assert np.array_equal(found, (table * scales[:, None])[[9, 1, 9]])


# --- batches ---


def test_a_batch_is_looked_up_at_once_and_lies_in_the_block(directory: Path, batcher: Batcher) -> None:
    configuration = config(("TYPE_INT64", [3]), ("TYPE_FP32", [3, 4]), 8)
    loop = loop_of(batcher, configuration, loaded(directory, configuration))
    asked = [RANDOM.integers(0, 10, (rows, 3)) for rows in (1, 3, 2)]
    batcher.send(*(batcher.request([("ids", "INT64", ids)]) for ids in asked))
    assert loop.step() == 1
    for done, ids in zip(batcher.done(), asked, strict=True):
        assert np.array_equal(done.outputs["vectors"], TABLE[ids])


def test_an_id_per_row_without_a_dimension(directory: Path) -> None:
    configuration = model_config(
        [tensor_config("ids", "TYPE_INT64", [1], reshape={"shape": []})],
        [tensor_config("vectors", "TYPE_FP32", [4])],
        backend="embedding",
    )
    answers = ask(loaded(directory, configuration), configuration, {"ids": np.array([7])}, {"ids": np.array([1, 2])})
    assert np.array_equal(answers.outputs["vectors"], TABLE[[7, 1, 2]])


def test_who_asks_for_an_unknown_id_fails_alone(directory: Path, batcher: Batcher) -> None:
    configuration = config(("TYPE_INT64", [2]), ("TYPE_FP32", [2, 4]), 8)
    loop = loop_of(batcher, configuration, loaded(directory, configuration))
    asked = [[[1, 2]], [[3, 4], [5, 10]], [[6, 7]], [[-1, 0]], [[8, 9]]]
    batcher.send(*(batcher.request([("ids", "INT64", np.array(ids))]) for ids in asked))
    loop.step()
    first, second, third, fourth, fifth = batcher.done()
    assert second.sentence == "id 10 is not in table 'vectors.npy' of model 'm'"
    assert fourth.sentence == "id -1 is not in table 'vectors.npy' of model 'm'"
    for done, ids in zip((first, third, fifth), (asked[0], asked[2], asked[4]), strict=True):
        assert np.array_equal(done.outputs["vectors"], TABLE[ids])


def test_where_all_ids_are_unknown_all_fail(directory: Path) -> None:
    configuration = config(("TYPE_INT64", [1]), ("TYPE_FP32", [1, 4]), 8)
    requests = [{"ids": np.array([[number]])} for number in (10, 2**62)]
    answers = ask(loaded(directory, configuration), configuration, *requests)
    assert [str(error).split()[1] for error in answers.errors] == ["10", str(2**62)]


# --- many outputs ---


def test_many_tables_and_only_what_is_asked_for(tmp_path: Path) -> None:
    users, items = TABLE, RANDOM.normal(size=(5, 2)).astype(np.float16)
    np.save(tmp_path / "user.npy", users)
    np.save(tmp_path / "items-v3.npy", items)
    configuration = model_config(
        [tensor_config("user_id", "TYPE_INT64", [1], optional=True), tensor_config("item_ids", "TYPE_INT32", [-1])],
        [
            tensor_config("user", "TYPE_FP32", [1, 4]),
            tensor_config("items", "TYPE_FP32", [-1, 2]),
            tensor_config("history", "TYPE_FP32", [2]),
        ],
        backend="embedding",
        parameters={
            "user.ids": "user_id",
            "ids": "item_ids",
            "items.table": "items-v3.npy",
            "history.table": "items-v3.npy",
            "history.pooling": "mean",
        },
    )
    backend = loaded(tmp_path, configuration)
    inputs = {"user_id": np.array([[3]]), "item_ids": np.array([[4, 0]], np.int32)}
    answers = ask(backend, configuration, inputs)
    assert np.array_equal(answers.outputs["user"], users[[[3]]])
    assert np.array_equal(answers.outputs["items"], items[[[4, 0]]].astype(np.float32))
    assert np.allclose(answers.outputs["history"], items[[4, 0]].astype(np.float32).mean(axis=0))
    assert list(ask(backend, configuration, inputs, outputs=[["items"]]).outputs) == ["items"]
    assert set(ask(backend, configuration, {"item_ids": inputs["item_ids"]}).outputs) == {"items", "history"}


def test_an_unknown_id_of_an_unwanted_output_fails_no_request(directory: Path) -> None:
    names = ("a", "b")
    configuration = model_config(
        [tensor_config(f"{name}_id", "TYPE_INT64", [1]) for name in names],
        [tensor_config(name, "TYPE_FP32", [1, 4]) for name in names],
        backend="embedding",
        parameters={"table": "vectors.npy", "a.ids": "a_id", "b.ids": "b_id"},
    )
    backend = loaded(directory, configuration)
    asked = [{"a_id": np.array([[a]]), "b_id": np.array([[b]])} for a, b in ((1, 99), (2, 3), (4, 98))]
    answers = ask(backend, configuration, *asked, outputs=(("a",), ("a", "b"), ("a", "b")))
    assert [str(error).split()[1] for error in answers.errors] == ["98"]
    assert answers.positions == [0, 1]
    assert np.array_equal(answers.outputs["a"], TABLE[[[1], [2]]])
    assert np.array_equal(answers.outputs["b"][1], TABLE[[3]])


# --- ids that are no numbers of rows ---


def test_ids_of_an_index(tmp_path: Path) -> None:
    write_indexed(tmp_path, np.array([-7, 3, 10**12]), TABLE[:3])
    configuration = config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, 4]), table="items")
    assert np.array_equal(vectors(tmp_path, configuration, [10**12, -7, 3]), TABLE[[2, 0, 1]])
    for unknown in (-8, 0, 10**12 + 1):
        assert refusal(tmp_path, configuration, [3, unknown]) == (f"id {unknown} is not in table 'items' of model 'm'")


def test_ids_that_are_strings(tmp_path: Path) -> None:
    write_indexed(tmp_path, np.array([b"a", b"abc", b"b"]), TABLE[:3])
    configuration = config(("TYPE_STRING", [-1]), ("TYPE_FP32", [-1, 4]), table="items")
    found = vectors(tmp_path, configuration, [b"b", b"abc", b"a"])
    assert np.array_equal(found, TABLE[[2, 1, 0]])
    for unknown in (b"", b"ab", b"abcd", b"a\0", b"zzz"):
        assert "is not in table" in refusal(tmp_path, configuration, [unknown])


def write_indexed(directory: Path, ids: Array, rows: Array) -> None:
    (directory / "items").mkdir()
    np.save(directory / "items" / "vectors.npy", rows)
    np.save(directory / "items" / "ids.npy", ids)


# --- unknown ids, padding ---


def test_unknown_ids_may_be_zeros(directory: Path) -> None:
    found = vectors(directory, config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, 4]), unknown_id="zeros"), [1, 10, -5])
    assert np.array_equal(found, [TABLE[1], np.zeros(4), np.zeros(4)])


def test_an_id_may_stand_for_unknown_ones(directory: Path) -> None:
    found = vectors(directory, config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, 4]), unknown_id="2"), [1, 10, -5])
    assert np.array_equal(found, TABLE[[1, 2, 2]])


def test_an_id_that_stands_for_unknown_ones_must_be_known(directory: Path) -> None:
    configuration = config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, 4]), unknown_id="10")
    assert refusal(directory, configuration, [1]) == "id 10 is not in table 'vectors.npy' of model 'm'"


@pytest.mark.parametrize("padding_id", [-1, 3])
def test_padding_is_zeros_where_nothing_is_pooled(directory: Path, padding_id: int) -> None:
    configuration = config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, 4]), padding_id=str(padding_id), unknown_id="4")
    found = vectors(directory, configuration, [1, padding_id, 99])
    assert np.array_equal(found, [TABLE[1], np.zeros(4), TABLE[4]])


# --- bags ---


def expected_bags(bags: list[list[int]], table: Array, pooling: str) -> Array:
    rows = [table[bag].astype(np.float64) for bag in bags]
    pooled = [row.sum(axis=0) if pooling == "sum" else row.sum(axis=0) / max(1, len(row)) for row in rows]
    return np.array(pooled).reshape(len(bags), table.shape[1])


BAGS = st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=5)
POOLINGS = st.sampled_from(["sum", "mean"])


@settings(max_examples=40)
@given(bags=BAGS, pooling=POOLINGS, dtype=st.sampled_from([np.float32, np.float16, np.int8]))
def test_bags_by_offsets(bags: list[list[int]], pooling: str, dtype: Any) -> None:
    table = (TABLE * 50).astype(dtype)
    configuration = config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, 4]), offsets=True, pooling=pooling, padding_id="-1")
    padded = [[*bag, -1] if len(bag) % 2 else bag for bag in bags]
    ids = np.array([number for bag in padded for number in bag], np.int64)
    offsets = np.cumsum([0, *map(len, padded)])[: len(bags)].astype(np.int32)
    with tempfile.TemporaryDirectory() as directory:
        np.save(Path(directory) / "vectors.npy", table)
        found = vectors(Path(directory), configuration, ids, offsets=offsets)
    assert np.allclose(found, expected_bags(bags, table, pooling), rtol=1e-5, atol=1e-5)


@settings(max_examples=40)
@given(bags=BAGS.filter(bool), pooling=POOLINGS, length=st.integers(0, 3))
def test_bags_that_are_padded(bags: list[list[int]], pooling: str, length: int) -> None:
    configuration = config(("TYPE_INT64", [-1]), ("TYPE_FP32", [4]), 8, pooling=pooling, padding_id="-1")
    width = max(map(len, bags)) + length
    ids = np.array([[*bag, *[-1] * (width - len(bag))] for bag in bags], np.int64).reshape(len(bags), width)
    with tempfile.TemporaryDirectory() as directory:
        np.save(Path(directory) / "vectors.npy", TABLE)
        found = vectors(Path(directory), configuration, ids)
    assert np.allclose(found, expected_bags(bags, TABLE, pooling), rtol=1e-5, atol=1e-5)


@settings(max_examples=40)
@given(bags=BAGS, at_once=st.integers(1, 9))
def test_bags_are_added_up_in_pieces(bags: list[list[int]], at_once: int) -> None:
    ends = np.cumsum(list(map(len, bags)), dtype=np.int64)
    rows = TABLE[[number for bag in bags for number in bag]].reshape(-1, 4)
    sums: Array = np.zeros((len(bags), 4), np.float32)
    begins = 0
    for which, begin, end in pieces(ends, at_once):
        assert begins == begin < end <= begin + at_once
        add_up(rows[begin:end], ends[which] - begin, sums[which])
        begins = end
    assert begins == len(rows)
    assert np.allclose(sums, expected_bags(bags, TABLE, "sum"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("table", ["vectors.npy", "lmdb:vectors.lmdb"])
def test_pooling_takes_a_piece_of_the_rows_at_a_time(directory: Path, table: str) -> None:
    rows: Array = np.ones((4, 1024), np.float32)
    np.save(directory / "vectors.npy", rows)
    with lmdb.open(f"{directory}/vectors.lmdb", subdir=False) as store, store.begin(write=True) as changes:
        for number in range(4):
            changes.put(b"%d" % number, rows[number].tobytes())
    configuration = config(
        ("TYPE_UINT8", [-1]), ("TYPE_FP32", [1024]), 8, pooling="mean", table=table, padding_id="7", unknown_id="zeros"
    )
    backend = loaded(directory, configuration)
    ids = np.tile(np.arange(8, dtype=np.uint8), (2, 4096))  # 256 MiB of rows
    tracemalloc.start()
    answers = ask(backend, configuration, {"ids": ids})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.allclose(answers.outputs["vectors"], 4 / 7)
    assert most < 3 * PIECE_NBYTES


def test_padding_hides_a_row_that_is_no_number(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", np.array([[np.nan], [np.inf], [2]], np.float32))
    configuration = config(("TYPE_INT64", [-1]), ("TYPE_FP32", [1]), 8, pooling="mean", padding_id="0")
    assert vectors(tmp_path, configuration, [[2, 0, 0], [1, 2, 0]]).tolist() == [[2], [np.inf]]


def test_bags_of_halves_are_added_up_as_floats(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", np.full((2, 1), 2049, np.float16) + np.float16(0))
    configuration = config(("TYPE_INT64", [-1]), ("TYPE_FP16", [1]), 8, pooling="mean")
    assert vectors(tmp_path, configuration, [[0, 1, 0]]).tolist() == [[2048]]


def test_unknown_ids_in_a_bag_of_many_requests(directory: Path) -> None:
    configuration = config(("TYPE_INT64", [2]), ("TYPE_FP32", [4]), 8, pooling="sum")
    requests = [{"ids": np.array(ids)} for ids in ([[1, 2]], [[3, 77]], [[4, 5]])]
    answers = ask(loaded(directory, configuration), configuration, *requests)
    assert answers.positions == [0, 2]
    assert np.allclose(answers.outputs["vectors"], TABLE[[1, 4]] + TABLE[[2, 5]])
    assert [str(error) for error in answers.errors] == ["id 77 is not in table 'vectors.npy' of model 'm'"]


@pytest.mark.parametrize("offsets", [[1], [0, 3, 2], [0, 5], [-1, 2], []])
def test_offsets_that_are_none(directory: Path, offsets: list[int]) -> None:
    configuration = config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, 4]), offsets=True, pooling="sum")
    assert refusal(directory, configuration, [1, 2, 3, 4], offsets=np.array(offsets, np.int32)) == (
        "input 'offsets' must begin with 0, never fall and stay within the 4 ids"
    )


# --- the contract ---


def test_it_has_nothing_to_tell_of_files(directory: Path) -> None:
    assert loaded(directory, SINGLE).describe(model(SINGLE), CPU) == ModelIO((), ())


def test_an_unloaded_model_maps_nothing(directory: Path) -> None:
    backend = loaded(directory, SINGLE)
    maps = Path("/proc/self/maps")
    assert str(directory) in maps.read_text()
    backend.unload()
    assert str(directory) not in maps.read_text()
