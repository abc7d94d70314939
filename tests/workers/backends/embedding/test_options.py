"""What config.pbtxt may say about look-ups, and the sentence for each thing that it may not."""

from typing import Any

import pytest

from shoal.datatypes import FP16
from shoal.errors import InvalidArgumentError
from shoal.model_config.signature import Signature
from shoal.workers.backends.embedding.options import LookUp, look_ups
from tests.workers.worker_harness import model, model_config, tensor_config

IDS, OTHER = tensor_config("ids", "TYPE_INT64", [-1]), tensor_config("other", "TYPE_INT32", [-1])
VECTORS = tensor_config("vectors", "TYPE_FP32", [-1, 8])


def read(inputs: Any = (IDS,), outputs: Any = (VECTORS,), max_batch_size: int = 0, **parameters: str) -> Any:
    named = {key.replace("__", "."): value for key, value in parameters.items()}
    config = model_config(inputs, outputs, max_batch_size=max_batch_size, parameters=named)
    return look_ups(model(config), Signature.from_config(config))


def only(*args: Any, **parameters: Any) -> LookUp:
    [look_up] = read(*args, **parameters)
    assert isinstance(look_up, LookUp)
    return look_up


def test_without_settings() -> None:
    look_up = only()
    assert (look_up.table, look_up.ids.name, look_up.dims, look_up.pooling) == ("vectors.npy", "ids", (8,), "none")
    assert (look_up.padding_id, look_up.unknown_id, look_up.zeros, look_up.scale) == (None, None, False, None)
    assert (look_up.offsets, look_up.key, look_up.datatype.name) == (None, "{id}", "FP32")


def test_a_setting_of_an_output_goes_before_that_of_all() -> None:
    outputs = [VECTORS, tensor_config("a.b", "TYPE_FP32", [-1, 8])]
    first, second = read(
        [IDS, OTHER], outputs, ids="ids", a__b__ids="other", table="x.npy", vectors__table="y.npy", unrelated="!",
        datatype="TYPE_FP16", key="user:{id}:vector", unknown_id="zeros", vectors__unknown_id="7", scale="0.5",
    )  # fmt: skip
    assert (first.ids.name, first.table, first.unknown_id, first.zeros) == ("ids", "y.npy", 7, False)
    assert (second.ids.name, second.table, second.unknown_id, second.zeros) == ("other", "x.npy", None, True)
    assert (second.datatype, second.key, second.scale) == (FP16, "user:{id}:vector", 0.5)


def test_the_log_tells_of_what_looks_like_a_setting(caplog: pytest.LogCaptureFixture) -> None:
    read(poolng="sum", tabel="x", max_rss="1GiB", autoscale="true", min_instances="2", idempotent="true", key="{id}")
    assert caplog.messages == [
        "model 'm': parameter 'poolng' is no setting, 'pooling' is",
        "model 'm': parameter 'tabel' is no setting, 'table' is",
    ]


def test_offsets_are_not_ids() -> None:
    look_up = only([OTHER, IDS], offsets="other", pooling="sum")
    assert (look_up.ids.name, look_up.offsets) == ("ids", "other")


STRINGS = tensor_config("ids", "TYPE_STRING", [-1])


def test_ids_that_are_strings() -> None:
    look_up = only([STRINGS], padding_id="", unknown_id="nobody")
    assert (look_up.padding_id, look_up.unknown_id) == (b"", b"nobody")


def where(sentence: str) -> str:
    return f"model 'm', output 'vectors': {sentence}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"vectors__tabel": "x.npy"},
            "model 'm': there is no setting 'tabel' for output 'vectors', there are: table, ids, offsets, pooling, "
            "padding_id, unknown_id, scale, datatype, key",
        ),
        ({"vector__table": "x"}, "model 'm': parameter 'vector.table' is of an output that is not configured"),
        ({"inputs": [IDS, OTHER]}, where("ids must name one of the inputs; there are: ids, other")),
        ({"ids": "id"}, where("ids names no input: id; there are: ids")),
        (
            {"inputs": [tensor_config("ids", "TYPE_FP32", [-1])]},
            where("ids 'ids' must be whole numbers or strings, not TYPE_FP32"),
        ),
        (
            {"inputs": [tensor_config("ids", "TYPE_BF16", [-1])]},
            where("ids 'ids' must be whole numbers or strings, not TYPE_BF16"),
        ),
        ({"pooling": "max"}, where("pooling must be none, sum, mean, got 'max'")),
        ({"padding_id": "x"}, where("padding_id must be an id of TYPE_INT64, got 'x'")),
        ({"unknown_id": "none"}, where("unknown_id must be error, zeros or an id of TYPE_INT64, got 'none'")),
        ({"padding_id": str(2**63)}, where(f"padding_id must be an id of TYPE_INT64, got '{2**63}'")),
        ({"scale": "x"}, where("scale must be a number, got 'x'")),
        ({"datatype": "FP16"}, where("datatype must be that of a tensor, such as TYPE_FP16, got 'FP16'")),
        ({"key": "user"}, where("key must contain '{id}' once, got 'user'")),
        ({"table": "../x.npy"}, where("table '../x.npy' must lie in the version's directory")),
        ({"table": "lmdb:/x"}, where("table 'lmdb:/x' must lie in the version's directory")),
        ({"table": "rocksdb:"}, where("table 'rocksdb:' must lie in the version's directory")),
        (
            {
                "outputs": [tensor_config("vectors", "TYPE_FP32", [4, 8])],
                "inputs": [tensor_config("ids", "TYPE_INT8", [3])],
            },
            where("its dims must begin with [3], as its ids or bags have it, and go on with those of a row; they are "
                  "[4,8]"),
        ),
        (
            {"inputs": [tensor_config("ids", "TYPE_INT64", [2, 3, 4])]},
            where("its dims must begin with [2,3,4], as its ids or bags have it, and go on with those of a row; they "
                  "are [-1,8]"),
        ),
        (
            {"outputs": [tensor_config("vectors", "TYPE_STRING", [-1, 8])]},
            where("rows of a table are numbers, the output cannot be TYPE_STRING"),
        ),
        (
            {"outputs": [tensor_config("vectors", "TYPE_INT8", [8])], "pooling": "sum"},
            where("pooling and scale need TYPE_FP16, TYPE_FP32 or TYPE_FP64, not TYPE_INT8"),
        ),
        (
            {"outputs": [tensor_config("vectors", "TYPE_BF16", [-1, 8])], "scale": "2"},
            where("pooling and scale need TYPE_FP16, TYPE_FP32 or TYPE_FP64, not TYPE_BF16"),
        ),
        *(
            (
                {"inputs": [tensor_config("ids", "TYPE_INT64", dims, allow_ragged_batch=True)], "outputs": [output]}
                | more,
                where("ragged ids need pooling sum or mean, a single dimension, which is the bag, and max_batch_size"),
            )
            for dims, output, more in (
                ([-1], VECTORS, {"max_batch_size": 8}),
                ([-1], tensor_config("vectors", "TYPE_FP32", [8]), {"pooling": "sum"}),
                ([2, -1], tensor_config("vectors", "TYPE_FP32", [2, 8]), {"pooling": "sum", "max_batch_size": 8}),
            )
        ),
        (
            {
                "inputs": [tensor_config("ids", "TYPE_INT64", [1], reshape={"shape": []})], "max_batch_size": 8,
                "outputs": [tensor_config("vectors", "TYPE_FP32", [8])], "pooling": "sum",
            },
            where("a bag is the last dimension of its ids, 'ids' has none"),
        ),
        (
            {"offsets": "starts", "pooling": "sum"},
            where("offsets 'starts' must be an input of whole numbers"),
        ),
        (
            {"inputs": [IDS, OTHER], "offsets": "other"},
            where("offsets need pooling sum or mean and max_batch_size 0; batches take bags of one length, filled up "
                  "with padding_id"),
        ),
        (
            {"inputs": [IDS, OTHER], "offsets": "other", "pooling": "sum", "max_batch_size": 8},
            where("offsets need pooling sum or mean and max_batch_size 0; batches take bags of one length, filled up "
                  "with padding_id"),
        ),
        (
            {"inputs": [tensor_config("ids", "TYPE_INT64", [-1, 2]), OTHER], "offsets": "other", "pooling": "sum"},
            where("offsets and the ids that they part have one dimension each"),
        ),
    ],
)  # fmt: skip
def test_what_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read(**arguments)
    assert str(caught.value) == sentence
