"""messages.py: the forms written by hand are those of the real messages, and so is the order of their fields."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.model_config import messages, pbtxt


@pytest.mark.parametrize(
    ("text", "field", "written"),
    [
        (
            'input { name: "X" data_type: TYPE_FP16 dims: [2, 3] }',
            "input",
            [messages.model_input("X", "TYPE_FP16", (2, 3))],
        ),
        ('output { name: "Y" data_type: TYPE_BOOL dims: 1 }', "output", [messages.model_output("Y", "TYPE_BOOL", [1])]),
        ('instance_group { name: "g" }', "instance_group", [messages.instance_group("g")]),
        ("dynamic_batching {}", "dynamic_batching", messages.dynamic_batching()),
        ("optimization {}", "optimization", messages.optimization()),
    ],
)
def test_a_form_equals_the_real_message(text: str, field: str, written: object) -> None:
    assert pbtxt.parse(text, Path("config.pbtxt"))[field] == written


def test_fields_are_put_into_the_order_of_the_message() -> None:
    descriptor: Any = pbtxt.new_message().DESCRIPTOR
    fields = descriptor.fields_by_name
    assert tuple(fields) == messages.FIELDS
    assert tuple(fields["optimization"].message_type.fields_by_name) == messages.OPTIMIZATION_FIELDS
    text = "optimization { priority: PRIORITY_MAX input_pinned_memory { } } dynamic_batching { }"
    config = pbtxt.parse(text, Path("config.pbtxt"))
    shuffled = {**dict(reversed(config.items())), "optimization": dict(reversed(config["optimization"].items()))}
    assert json.dumps(messages.in_order(shuffled)) == json.dumps(config)
