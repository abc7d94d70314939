"""sequences.py: Triton's sentences about sequence_batching, its defaults, and what it adds to a model's tensors."""

from pathlib import Path

import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config import pbtxt, sequences
from shoal.model_config.autocomplete import IOTensor, ModelIO, complete_from_file
from shoal.model_config.checks import check, check_unfinished
from shoal.model_config.messages import Config
from shoal.model_config.normalise import normalise

TENSORS = 'input { name: "X" data_type: TYPE_FP32 dims: 4 } output { name: "Y" data_type: TYPE_FP32 dims: 4 }'
START = "kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1]"
ALL = (
    f'control_input {{ name: "S" control {{ {START} }} }}'
    'control_input { name: "R" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [0, 1] } }'
    'control_input { name: "E" control { kind: CONTROL_SEQUENCE_END bool_false_true: [false, true] } }'
    'control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }'
)
STATE = 'state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: [2]'


def config(batching: str, more: str = "max_batch_size: 4", tensors: str = TENSORS) -> Config:
    text = f'name: "m" backend: "onnxruntime" {tensors} {more} sequence_batching {{ {batching} }}'
    return normalise(pbtxt.parse(text, Path("config.pbtxt")))


def control(name: str, fields: str) -> str:
    return f'control_input {{ name: "{name}" control {{ {fields} }} }}'


def initial(fields: str) -> str:
    return f"{STATE} initial_state {{ {fields} }} }}"


def test_the_defaults_are_tritons() -> None:
    nothing = {"control_input": [], "state": [], "iterative_sequence": False}
    assert config("")["sequence_batching"] == {"max_sequence_idle_microseconds": 1_000_000, **nothing}
    assert config("max_sequence_idle_microseconds: 5")["sequence_batching"]["max_sequence_idle_microseconds"] == 5
    oldest = {"max_candidate_sequences": 0, "max_queue_delay_microseconds": 0, "preserve_ordering": False}
    assert config("oldest {}")["sequence_batching"]["oldest"] == {**oldest, "preferred_batch_size": [4]}
    assert config("oldest {}", "")["sequence_batching"]["oldest"] == {**oldest, "preferred_batch_size": []}


@pytest.mark.parametrize(
    "batching",
    [
        "", ALL, "direct { minimum_slot_utilization: 1 max_queue_delay_microseconds: 9 }",
        "oldest { max_candidate_sequences: 65536 preferred_batch_size: [1, 4] }", f"{STATE} }}",
        initial('name: "i" data_type: TYPE_INT32 dims: 2 zero_data: true'),
        initial('name: "i" data_type: TYPE_INT32 dims: 2 data_file: "a/b"'),
    ],
)  # fmt: skip
def test_a_sound_configuration_passes(batching: str) -> None:
    check_unfinished(config(batching))
    check(config(batching))


CORRELATION_TYPES = "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
VALUES = "'int32_false_true', 'fp32_false_true'"


@pytest.mark.parametrize(
    ("batching", "sentence"),
    [
        (control("", START), "sequence batching control tensor must have a name for m"),
        (
            control("S", START) + control("S", "kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1]"),
            "sequence batching control tensor 'S' is specified for multiple control kinds for m",
        ),
        (
            control("S", START) + control("T", START),
            "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for m",
        ),
        (
            control("S", "kind: CONTROL_SEQUENCE_START int32_false_true: [0]"),
            "sequence batching control 'int32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_START for m",
        ),
        (
            control("E", "kind: CONTROL_SEQUENCE_END"),
            f"sequence batching must specify either {VALUES} or 'bool_false_true' for CONTROL_SEQUENCE_END for m",
        ),
        (
            control("E", "kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1] fp32_false_true: [0, 1]"),
            f"sequence batching specifies more than one from {VALUES} and 'bool_false_true' for CONTROL_SEQUENCE_END "
            "for m",
        ),
        (
            control("C", "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32"),
            f"unexpected data type for control CONTROL_SEQUENCE_CORRID for m. Allowed data types are "
            f"{CORRELATION_TYPES}",
        ),
        (
            control("C", "kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 int32_false_true: [0, 1]"),
            f"sequence batching must not specify either {VALUES} or 'bool_false_true' for CONTROL_SEQUENCE_CORRID "
            "for m",
        ),
        (
            "direct { minimum_slot_utilization: 1.5 }",
            "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m",
        ),
        (
            "oldest { max_queue_delay_microseconds: 3600000001 }",
            "max_queue_delay_microseconds is 3600000001 for m, must be at most 3600000000 (one hour)",
        ),
        (
            "oldest { max_candidate_sequences: 65537 }",
            "max_candidate_sequences is 65537 for m, must be at most 65536",
        ),
        (
            'state { input_name: "a" data_type: TYPE_INT32 dims: 1 }',
            "a state of model 'm' must have 'input_name', 'output_name', 'data_type' and 'dims'",
        ),
        (
            initial("data_type: TYPE_INT32 dims: 2 zero_data: true"),
            "Field 'name' must be set when using initial_state for state input 'SI'.",
        ),
        (
            initial('name: "i" data_type: TYPE_FP32 dims: 2 zero_data: true'),
            "The data type used for 'initial_state' field of state 'SI' does not match the state data type.",
        ),
        (
            initial('name: "i" data_type: TYPE_INT32 dims: [2, 1] zero_data: true'),
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            "'SI'. 2 != 1",
        ),
        (
            initial('name: "i" data_type: TYPE_INT32 dims: 3 zero_data: true'),
            "'initial_state' dim for input name 'SI' doesn't match 'state' dim description. 3 != 2",
        ),
        (
            initial('name: "i" data_type: TYPE_INT32 dims: -1 zero_data: true'),
            "'initial_state' field for state input name 'SI' contains variable dimensions.",
        ),
        (
            initial('name: "i" data_type: TYPE_INT32 dims: 2'),
            "initial_state setting expects state'SI' to have state_data set",
        ),
        (
            initial('name: "i" data_type: TYPE_INT32 dims: 2 data_file: "../x"'),
            "data file '../x' of the initial state for input 'SI' in model 'm' is outside directory 'initial_state' of "
            "the model",
        ),
    ],
)
def test_a_fault_has_tritons_sentence(batching: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_unfinished(config(batching))
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("more", "batching", "sentence"),
    [
        (
            "max_batch_size: 4 response_cache { enable: true }", "",
            "Response Cache does not currently support model m with sequence batching scheduler. Please disable the "
            "response cache.",
        ),
        (
            "model_transaction_policy { decoupled: true }", f"{STATE} }}",
            "model 'm' is decoupled and so answers when it likes: it must keep the state 'SI' itself",
        ),
        (
            "max_batch_size: 4", f"{STATE.replace('[2]', '[-1]')} }}",
            "the state 'SI' of model 'm' has a variable dimension, so max_batch_size must be at most 1",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together(more: str, batching: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_unfinished(config(batching, more))
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        (0, "sequence batching preferred batch size must be positive for m"),
        (5, "sequence batching preferred batch size must be <= max batch size for m"),
    ],
)
def test_preferred_sizes(size: int, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check(config(f"oldest {{ preferred_batch_size: {size} }}"))
    assert str(caught.value) == sentence


def test_a_backend_sees_controls_and_states_as_its_tensors() -> None:
    seen = sequences.with_sequence_tensors(config(f"{ALL} {STATE} }}"))
    inputs = [(each["name"], each["data_type"], each["dims"]) for each in seen["input"]]
    assert inputs == [
        ("X", "TYPE_FP32", [4]), ("S", "TYPE_INT32", [1]), ("R", "TYPE_FP32", [1]), ("E", "TYPE_BOOL", [1]),
        ("C", "TYPE_STRING", [1]), ("SI", "TYPE_INT32", [2]),
    ]  # fmt: skip
    assert [each["name"] for each in seen["output"]] == ["Y", "SO"]


def test_a_state_may_be_an_output_for_clients_too() -> None:
    both = config(f"{STATE.replace('SO', 'Y').replace('INT32', 'FP32').replace('[2]', '[4]')} }}")
    assert [each["name"] for each in sequences.with_sequence_tensors(both)["output"]] == ["Y"]


def test_clients_are_not_asked_for_what_the_server_adds() -> None:
    tensors = [IOTensor(name, "TYPE_FP32", (-1, 1)) for name in ("X", "S", "SI")]
    model_io = ModelIO(tuple(tensors), (IOTensor("Y", "TYPE_FP32", (-1, 1)), IOTensor("SO", "TYPE_INT32", (-1, 2))))
    completed = complete_from_file(config(f"{control('S', START)} {STATE} }}", tensors=""), model_io)
    assert [each["name"] for each in completed["input"]] == ["X"]
    assert [each["name"] for each in completed["output"]] == ["Y"]
