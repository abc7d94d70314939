"""Ensembles as dataflows: Triton's sentences for what is none, alone and together with the models."""

from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config import pbtxt
from shoal.model_config.checks import check, check_unfinished
from shoal.model_config.ensemble import decoupled_steps, fits, is_ensemble, mismatches, steps

IO = 'input { name: "x" data_type: TYPE_FP32 dims: 3 } output { name: "y" data_type: TYPE_FP32 dims: 3 }'


def parsed(text: str) -> dict[str, Any]:
    return pbtxt.parse(text, Path("config.pbtxt"))


def step(inputs: str, outputs: str, model: str = "m") -> str:
    """`Xa` maps X to the tensor a; pairs are separated by blanks."""
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in map(tuple, inputs.split())]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in map(tuple, outputs.split())]
    return f'step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'


def ensemble(*steps: str, io: str = IO, more: str = "") -> dict[str, Any]:
    text = f'name: "e" platform: "ensemble" {io} {more} ensemble_scheduling {{ {" ".join(steps)} }}'
    return parsed(text)


def test_a_dataflow_is_taken() -> None:
    config = ensemble(step("Xx", "Ya"), step("Aa Xx", "Yy"))
    check_unfinished(config)
    check(config)
    assert is_ensemble(config)
    assert [each["model_name"] for each in steps(config)] == ["m", "m"]
    assert steps(parsed('backend: "identity"')) == []


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (ensemble(), "must specify 'step' for ensemble 'e'"),
        (ensemble(step("Xx", "Yy", model="")), "must specify 'model_name' in step 0 of ensemble 'e'"),
        (ensemble(step("Xx", "Yy"), step("", "Ya")), "must specify 'input_map' in step 1 of ensemble 'e'"),
        (ensemble(step("Xx", "")), "must specify 'output_map' in step 0 of ensemble 'e'"),
        (
            ensemble(step("Xx", "Yy", model="../secret")),
            "step 0 of ensemble 'e' has the model_name '../secret', which is no name",
        ),
        (
            ensemble(step("Xx", "Yy"), step("Xx", "Yy")),
            "ensemble tensor 'y' can appear in an output map only once for ensemble 'e' step 1",
        ),
        (ensemble(step("Xa", "Yy")), "ensemble input 'x' for ensemble e' is not used"),
        (ensemble(step("Xx", "Ya")), "ensemble output 'y' for ensemble e' is not used"),
        (ensemble(step("Xx", "Ya"), step("Xy", "Yb")), "output 'y' for ensemble 'e' is not written"),
        (
            ensemble(step("Xx Zb", "Ya"), step("Xa", "Yb"), step("Xa", "Yy")),
            "output 'y' for ensemble 'e' is not written: at least one of its depending tensors, 'a', is not connected",
        ),
        (
            ensemble(step("Xx Zq", "Yy")),
            "output 'y' for ensemble 'e' is not written: at least one of its depending tensors, 'q', is not connected",
        ),
        (ensemble(step("Xx", "Yy Zz")), "ensemble tensor 'z' is unused in ensemble 'e'"),
        (ensemble(step("Xx", "Yy"), step("Xb", "Yb")), "ensemble tensor 'b' is unused in ensemble 'e'"),
        (
            ensemble(step("Xx", "Yx Zy")),
            "ensemble tensor 'x' is an input of ensemble 'e' and in an output map, too",
        ),
        (
            ensemble(step("Xx", "Yy"), more="instance_group { count: 1 }"),
            "instance group should not be specified for ensemble 'e'",
        ),
        (ensemble(step("Xx", "Yy"), more="optimization {}"), "optimization should not be specified for ensemble 'e'"),
        (
            ensemble(step("Xx", "Yy"), more='model_warmup { name: "w" }'),
            "model_warmup can not be specified for ensemble 'e'",
        ),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_what_is_no_dataflow(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        check_unfinished(config)
    assert str(refused.value) == sentence


def model(io: str, name: str = "m", batch: int = 0, more: str = "") -> dict[str, Any]:
    """Tensors as `X:FP32:3,-1`; those before `>` are inputs."""
    fields = []
    for field, tensors in zip(("input", "output"), io.split(">"), strict=True):
        for tensor in tensors.split():
            tensor_name, kind, dims = tensor.split(":")
            fields.append(f'{field} {{ name: "{tensor_name}" data_type: TYPE_{kind} dims: [{dims}] }}')
    return parsed(f'name: "{name}" backend: "python" max_batch_size: {batch} {" ".join(fields)} {more}')


@pytest.mark.parametrize(
    ("batch", "first", "second", "sentence"),
    [
        (0, model("X:FP32:3 > Y:FP32:4"), model("A:FP32:4 > Y:FP32:3"), None),
        (0, model("X:FP32:-1 > Y:FP32:-1"), model("A:FP32:4 > Y:FP32:3"), None),
        (8, model("X:FP32:3 > Y:FP32:4", batch=8), model("A:FP32:4 > Y:FP32:3", batch=9), None),
        (8, model("X:FP32:3 > Y:FP32:4", batch=8), model("A:FP32:-1,4 > Y:FP32:-1,3"), None),
        (
            8,
            model("X:FP32:3 > Y:FP32:4", batch=8),
            model("A:FP32:4 > Y:FP32:3", "n", batch=4),
            "ensemble e allows maximum batch size 8, but it contains model n which only allows maximum batch size to "
            "be 4",
        ),
        (
            0,
            model("X:FP32:3 > Y:INT32:4"),
            model("A:FP32:4 > Y:FP32:3", "n"),
            "in ensemble e, ensemble tensor a: inconsistent data type: TYPE_FP32 is inferred from model n while "
            "TYPE_INT32 is inferred from model m",
        ),
        (
            0,
            model("X:FP32:3 > Y:FP32:4"),
            model("A:FP32:5 > Y:FP32:3", "n"),
            "in ensemble e, ensemble tensor a: inconsistent shape: [5] is inferred from model n while [4] is inferred "
            "from model m",
        ),
        (
            0,
            model("X:FP32:3 > Y:FP32:4"),
            model("A:FP32:4 > Y:FP32:5", "n"),
            "in ensemble e, ensemble tensor y: inconsistent shape: [5] is inferred from model n while [3] is inferred "
            "from model e",
        ),
        (
            0,
            model("Z:FP32:3 > Y:FP32:4"),
            model("A:FP32:4 > Y:FP32:3"),
            "in ensemble e, ensemble tensor x is mapping to non-existing input X in model m",
        ),
        (
            0,
            model("X:FP32:3 W:FP32:3 > Y:FP32:4"),
            model("A:FP32:4 > Y:FP32:3"),
            "in ensemble e, input W in model m is not mapped to any ensemble tensors",
        ),
        (
            0,
            model("X:FP32:3 > Z:FP32:4"),
            model("A:FP32:4 > Y:FP32:3"),
            "in ensemble e, ensemble tensor a is mapped from non-existing output Y in model m",
        ),
    ],
)
def test_together_with_its_models(
    batch: int, first: dict[str, Any], second: dict[str, Any], sentence: str | None
) -> None:
    config = ensemble(step("Xx", "Ya"), step("Aa", "Yy"), more=f"max_batch_size: {batch}")
    assert next(mismatches(config, [first, second]), None) == sentence


def test_optional_inputs_need_no_tensor() -> None:
    config = ensemble(step("Xx", "Yy"))
    composing = model("X:FP32:3 W:FP32:3 > Y:FP32:3")
    composing["input"][1]["optional"] = True
    assert list(mismatches(config, [composing])) == []


def test_shapes_that_fit() -> None:
    assert fits((-1, 3), (4, 3))
    assert not fits((4, 3), (4,))
    assert not fits((4,), (3,))


@pytest.mark.parametrize(
    ("flow", "outputs", "sentence"),
    [
        ((step("Xx", "Ya"), step("Xa", "Yy")), "y", None),
        (
            (step("Xx", "Yy"),),
            "y",
            "Response Cache does not currently support model e with 'decoupled' transaction policy. Please disable the "
            "response cache.",
        ),
        (
            (step("Xx", "Ya"), step("Xx", "Yb"), step("Aa Bb", "Yy")),
            "y",
            "in ensemble e, step of model 'm' receives inputs originated from different decoupled models",
        ),
        (
            (step("Xx", "Yy"), step("Xx", "Yz")),
            "yz",
            "in ensemble e, outputs depend on different decoupled models, or some on none; every response has all of "
            "them",
        ),
    ],
)
def test_on_whose_answers_things_depend(flow: tuple[str, ...], outputs: str, sentence: str | None) -> None:
    stream = model("X:FP32:3 > Y:FP32:3", more="model_transaction_policy { decoupled: true }")
    join = model("A:FP32:3 B:FP32:3 > Y:FP32:3")
    io = 'input { name: "x" data_type: TYPE_FP32 dims: 3 }'
    io += "".join(f'output {{ name: "{each}" data_type: TYPE_FP32 dims: 3 }}' for each in outputs)
    config = ensemble(*flow, io=io, more="response_cache { enable: true }" if "Please" in str(sentence) else "")
    models = [join if "B" in each["input_map"] else stream for each in steps(config)]
    assert decoupled_steps(models) == [number for number, each in enumerate(models) if each is stream]
    assert next(mismatches(config, models), None) == sentence
    cached = (
        "Response Cache does not currently support model e with 'decoupled' transaction policy. "
        "Please disable the response cache."
    )
    assert next(mismatches({**config, "response_cache": {"enable": True}}, models), None) == (sentence or cached)
