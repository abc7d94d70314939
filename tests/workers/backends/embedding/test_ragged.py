"""Ragged ids: bags of different lengths in one batch, each request with its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.workers.tensors import Array
from tests.workers.backends.embedding.asking import ask, loaded
from tests.workers.worker_harness import Batcher, loop_of, model_config, tensor_config

TABLE: Array = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    np.save(tmp_path / "vectors.npy", TABLE)
    return tmp_path


def config(data_type: str = "TYPE_INT64", **settings: str) -> dict[str, Any]:
    """Ragged `ids`; `places`, which every request has three of, are looked up beside them."""
    return model_config(
        [
            tensor_config("ids", data_type, [-1], allow_ragged_batch=True),
            tensor_config("places", "TYPE_INT64", [3], optional=True),
        ],
        [tensor_config("vectors", "TYPE_FP32", [4]), tensor_config("where", "TYPE_FP32", [3, 4])],
        backend="embedding",
        parameters={
            "vectors.ids": "ids", "vectors.pooling": "sum", "where.ids": "places", "where.table": "vectors.npy",
        } | settings,
    )  # fmt: skip


REQUESTS: list[list[list[int]]] = [[[1, 2, 3]], [[4], [5]], [[], []], [[9, 9, 0, 1, 2, 3, 4], [8, 8, 8, 8, 8, 8, 8]]]


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_each_request_has_bags_of_its_length(directory: Path, batcher: Batcher, pooling: str) -> None:
    configuration = config(**{"vectors.pooling": pooling})
    loop = loop_of(batcher, configuration, loaded(directory, configuration))
    asked = [np.array(bags, np.int64) for bags in REQUESTS]
    batcher.send(*(batcher.request([("ids", "INT64", ids)], outputs=["vectors"]) for ids in asked))
    assert loop.step() == 1
    for done, ids in zip(batcher.done(), asked, strict=True):
        rows = TABLE[ids]
        pooled = rows.sum(axis=1) if pooling == "sum" else rows.sum(axis=1) / max(1, ids.shape[1])
        assert np.allclose(done.outputs["vectors"], pooled, atol=1e-6)


def test_other_inputs_of_the_batch_are_rows_as_ever(directory: Path) -> None:
    configuration = config()
    asked = [{"ids": np.array(bags, np.int64), "places": np.arange(3 * len(bags)).reshape(-1, 3)} for bags in REQUESTS]
    answers = ask(loaded(directory, configuration), configuration, *asked)
    assert np.array_equal(answers.outputs["where"], TABLE[np.concatenate([each["places"] for each in asked])])
    assert answers.outputs["vectors"].shape == (7, 4)
    assert np.allclose(answers.outputs["vectors"][2], TABLE[5])


def test_who_asks_for_an_unknown_id_fails_alone(directory: Path) -> None:
    configuration = config(**{"vectors.padding_id": "-1"})
    asked = [[[1]], [[2, -1, 3], [4, 5, 77]], [[6, 7]], [[-2, 0]], [[8, -1]]]
    answers = ask(loaded(directory, configuration), configuration, *({"ids": np.array(ids)} for ids in asked))
    assert [str(error).split()[1] for error in answers.errors] == ["77", "-2"]
    assert answers.positions == [0, 2, 4]
    assert np.allclose(answers.outputs["vectors"], [TABLE[1], TABLE[6] + TABLE[7], TABLE[8]])


def test_ids_may_be_strings(directory: Path) -> None:
    (directory / "named").mkdir()
    np.save(directory / "named" / "vectors.npy", TABLE[:2])
    np.save(directory / "named" / "ids.npy", np.array([b"a", b"b"]))
    configuration = config("TYPE_STRING", **{"vectors.table": "named", "vectors.unknown_id": "zeros"})
    asked = [[[b"b"]], [[b"a", b"a", b"x"]]]
    answers = ask(loaded(directory, configuration), configuration, *({"ids": np.array(ids, object)} for ids in asked))
    assert np.allclose(answers.outputs["vectors"], [TABLE[1], 2 * TABLE[0]])
