"""Labels, classes of modules and the exception with a status."""

import json
import types
from pathlib import Path
from typing import Any

import pytest
from ts.utils import util

LABELS: list[tuple[Any, Any]] = [
    ({"0": "cat", "1": "dog"}, {"0": "cat", "1": "dog"}),
    ({"0": ["n01", "cat"]}, {"0": "cat"}),
    ({"object_type_names": ["none", "cat"]}, {"0": "none", "1": "cat"}),
    ({}, {}),
    ({"0": 1}, TypeError),
    ({"0": []}, TypeError),
    (["cat"], TypeError),
]


@pytest.mark.parametrize(("written", "expected"), LABELS)
def test_labels_of_classes(tmp_path: Path, written: Any, expected: Any) -> None:
    path = tmp_path / "index_to_name.json"
    assert util.load_label_mapping(str(path)) is None
    path.write_text(json.dumps(written))
    if expected is TypeError:
        with pytest.raises(TypeError):
            util.load_label_mapping(str(path))
    else:
        assert util.load_label_mapping(str(path)) == expected


def test_probabilities_by_label() -> None:
    probabilities, labels = [[0.9, 0.1]], {"1": "dog", "7": "cat"}
    assert util.map_class_to_label(probabilities) == [{"0": 0.9, "1": 0.1}]
    assert util.map_class_to_label(probabilities, labels) == [{"0": 0.9, "dog": 0.1}]
    assert util.map_class_to_label(probabilities, labels, [[7, 1]]) == [{"cat": 0.9, "dog": 0.1}]


def test_only_the_modules_own_classes_count() -> None:
    module = types.ModuleType("handlers")
    exec("from pathlib import Path\nclass A: pass\nclass B(A):\n    class Nested: pass\n", vars(module))
    own = [each.__name__ for each in util.list_classes_from_module(module)]
    assert own == ["A", "B"]
    assert util.list_classes_from_module(module, vars(module)["B"]) == [vars(module)["B"]]


def test_the_exception_has_message_and_status() -> None:
    error = util.PredictionException("too hot", 418)
    assert (error.message, error.error_code, str(error)) == ("too hot", 418, "too hot : 418")
    assert util.PredictionException("x").error_code == 500


def test_backends_of_pt2() -> None:
    assert util.check_valid_pt2_backend("inductor")
    assert not util.check_valid_pt2_backend("triton")


def test_a_deprecated_function_warns_and_works() -> None:
    @util.deprecated("1.0", "another")
    def old(number: int) -> int:
        return number + 1

    with pytest.warns(DeprecationWarning, match="old goes with version 1.0, use another instead"):
        assert old(1) == 2
