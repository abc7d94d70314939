"""Fields of a config.pbtxt are replaced in place; what is a comment or another field stays."""

import pytest

from shoal.cli.tune.pbtxt_edit import fields, inside, replaced, with_parameter

TEXT = """\
# A model { with a bracket in its comment.
name: "a \\"quoted } name"
max_batch_size: 8  # rows
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 }
instance_group [
  { count: 1 kind: KIND_CPU }
]
parameters: { key: "max_batch_size" value: { string_value: "no" } }
"""


def test_fields_of_the_outermost_message() -> None:
    assert [each.name for each in fields(TEXT)] == [
        "name", "max_batch_size", "dynamic_batching", "instance_group", "parameters",
    ]  # fmt: skip
    assert inside(TEXT, "dynamic_batching").strip().startswith("preferred_batch_size: [ 4, 8 ]")
    assert [each.name for each in fields(inside(TEXT, "dynamic_batching"))] == [
        "preferred_batch_size", "max_queue_delay_microseconds",
    ]  # fmt: skip
    assert inside(TEXT, "model_warmup") == ""


def test_only_what_is_named_changes() -> None:
    changed = replaced(
        TEXT, {"max_batch_size": "max_batch_size: 16", "dynamic_batching": None, "version_policy": "v: 1"}
    )
    assert changed == TEXT.replace("size: 8", "size: 16").replace(TEXT.splitlines(keepends=True)[3], "") + "v: 1\n"
    assert replaced(TEXT, {}) == TEXT
    assert replaced("", {"a": "a: 1", "b": None}) == "a: 1\n"
    assert replaced("a: 1", {"b": "b: 2"}) == "a: 1\nb: 2\n"
    assert replaced("g { count: 1 }\ng { count: 2 }\n", {"g": "g { count: 3 }"}) == "g { count: 3 }\n"


@pytest.mark.parametrize("text", ["a {", "a }", "a: ", "a"])
def test_what_is_no_message(text: str) -> None:
    with pytest.raises(ValueError, match=r"match|within a field"):
        fields(text)


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("", 'parameters {\n  key: "T"\n  value { string_value: "2" }\n}\n'),
        (
            'parameters { key: "T" value: { string_value: "1" } } # why',
            'parameters { key: "T" value: { string_value: "2" } } # why',
        ),
        (
            'parameters [ { key: "U", value: { string_value: "1" } }, { key: "T", value { string_value: "0" } } ]',
            'parameters [ { key: "U", value: { string_value: "1" } }, { key: "T", value { string_value: "2" } } ]',
        ),
        (
            'parameters: { key: "U" value { string_value: "1" } }',
            'parameters: { key: "U" value { string_value: "1" } }\n'
            'parameters {\n  key: "T"\n  value { string_value: "2" }\n}\n',
        ),
    ],
    ids=["none", "one", "a list", "another"],
)
def test_a_parameter_is_set_where_it_stands_or_at_the_end(text: str, changed: str) -> None:
    assert with_parameter(text, "T", "2") == changed
