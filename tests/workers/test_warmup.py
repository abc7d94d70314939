"""The smallest inputs a model can be run on."""

from shoal.model_config.signature import Signature
from shoal.workers.warmup import smallest_inputs
from tests.workers.surroundings import model_config, tensor_config


def test_one_row_of_zeros_in_the_shapes_the_model_sees() -> None:
    config = model_config(
        [
            tensor_config("A", "TYPE_FP32", [-1, 3]),
            tensor_config("S", "TYPE_INT64", [1], reshape={"shape": []}),
            tensor_config("T", "TYPE_BF16", [2]),
            tensor_config("O", "TYPE_FP32", [2], optional=True),
        ],
        [],
    )
    inputs = smallest_inputs(Signature.from_config(config))
    assert inputs is not None
    assert {name: array.tolist() for name, array in inputs.items()} == {
        "A": [[[0, 0, 0]]],
        "S": [0],
        "T": [[0, 0]],
    }
    unbatched = smallest_inputs(Signature.from_config({**config, "max_batch_size": 0}))
    assert unbatched is not None
    assert unbatched["T"].tolist() == [0, 0]


def test_a_text_is_not_guessed() -> None:
    text = tensor_config("T", "TYPE_STRING", [2])
    assert smallest_inputs(Signature.from_config(model_config([text], []))) is None
    assert smallest_inputs(Signature.from_config(model_config([{**text, "optional": True}], []))) == {}
