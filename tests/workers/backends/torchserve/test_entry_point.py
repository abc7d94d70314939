"""Entry points of handlers, by the module's contents and the handler's text."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ts.torch_handler.unit_tests.test_utils.mock_context import MockContext

from shoal.errors import InvalidArgumentError
from shoal.workers.backends.torchserve import entry_point
from shoal.workers.backends.torchserve.entry_point import EntryPoint

Find = Callable[..., EntryPoint]


@pytest.fixture
def find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Find]:
    """Find the entry point of this code, in a module `user_handler`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = {*sys.modules}

    def find(code: str, handler: str = "user_handler.py", envelope: str = "") -> EntryPoint:
        (tmp_path / "user_handler.py").write_text(code)
        return entry_point.find(handler, envelope)

    yield find
    for name in {*sys.modules} - before:
        if name.startswith("user_"):
            del sys.modules[name]


FUNCTION = "def handle(data, context):\n    return data and ['function']\n"
OTHER = "def other(data, context):\n    return data and ['other']\n"
CLASS = """class A:
    def initialize(self, context):
        pass
    def handle(self, data, context):
        return ["class"]
"""
PLAIN = "class B:\n    pass\n"
FOUND = [
    (FUNCTION, "user_handler.py", "function"),
    (FUNCTION, "user_handler", "function"),
    (FUNCTION + CLASS, "user_handler.py", "function"),
    (FUNCTION + OTHER, "user_handler.py:other", "other"),
    (FUNCTION, "/some/where/user_handler.py:handle", "function"),
    (CLASS, "user_handler.py", "class"),
    (CLASS, "user_handler.py:absent", "class"),
    (CLASS + PLAIN, "user_handler.py", "class"),
    ("from pathlib import Path\nclass A:\n    class Inner: pass\n" + CLASS[9:], "user_handler.py", "class"),
    ("class A:\n    def __init__(self):\n        self.handle = lambda d, c: ['made']\n", "user_handler.py", "made"),
]


@pytest.mark.parametrize(("code", "handler", "expected"), FOUND)
def test_an_entry_point_is_found(find: Find, code: str, handler: str, expected: str) -> None:
    found = find(code, handler)
    context = MockContext()
    found.initialize(context)
    assert found.handle([{}], context) == [expected]


REFUSED = [
    ("", "user_handler.py", "function entry point \\[\\]"),
    (CLASS + CLASS.replace("class A", "class C"), "user_handler.py", "\\['A', 'C'\\]"),
    (PLAIN, "user_handler.py", "class 'B' of handler 'user_handler.py' has no method 'handle'"),
    (FUNCTION, "user_absent.py", "No module named 'user_absent'(.|\n)*Python files of the archive: user_handler.py"),
    ("import nowhere\n", "user_handler.py", "No module named 'nowhere'(.|\n)*Install 'nowhere'"),
    ("from json import nothing\n", "user_handler.py", "cannot import name 'nothing'"),
    (FUNCTION, ":handle", "names no module"),
]


@pytest.mark.parametrize(("code", "handler", "says"), REFUSED)
def test_what_is_no_entry_point_says_what_to_change(find: Find, code: str, handler: str, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        find(code, handler)


def test_built_in_names_are_found_behind_the_archives_files(find: Find) -> None:
    from ts.torch_handler.image_classifier import ImageClassifier

    found: Any = entry_point.find("image_classifier")
    assert isinstance(found.handle.__self__, ImageClassifier)


@pytest.mark.parametrize(
    ("code", "loads"),
    [
        ("def handle(data, context):\n    return [1 for row in data]\n", True),
        ("def handle(data, context):\n    return data.get('x')\n", True),
        ("def handle(data, context):\n    raise ValueError('no weights')\n", False),
        ("def handle(data, context):\n    raise TypeError('of another kind')\n", False),
    ],
)
def test_a_function_that_only_does_not_expect_none_loads(find: Find, code: str, loads: bool) -> None:
    found = find(code)
    if loads:
        found.initialize(MockContext())
    else:
        with pytest.raises((TypeError, ValueError)):
            found.initialize(MockContext())


@pytest.mark.parametrize(
    ("envelope", "bodies", "expected"),
    [
        ("body", ["x", b"y"], ["'x'", "b'y'"]),
        (
            "json",
            [{"instances": [1, {"b64": "YQ=="}]}, b'{"instances": ["z"]}'],
            ['{"predictions":["1","b\'a\'"]}', '{"predictions":["\'z\'"]}'],
        ),
    ],
)
def test_a_batch_in_an_envelope(find: Find, envelope: str, bodies: list[Any], expected: list[str]) -> None:
    found = find("def handle(data, context):\n    return [repr(each) for each in data]\n", envelope=envelope)
    assert found.handle([{"body": body} for body in bodies], MockContext()) == expected


def test_an_envelope_of_the_archives_own(find: Find, tmp_path: Path) -> None:
    (tmp_path / "user_envelope.py").write_text(
        "from ts.torch_handler.request_envelope.base import BaseEnvelope\n"
        "class Loud(BaseEnvelope):\n"
        "    def parse_input(self, data):\n        return data\n"
        "    def format_output(self, data):\n        return [each.upper() for each in data]\n"
    )
    assert find(FUNCTION, envelope="user_envelope").handle([{}], MockContext()) == ["FUNCTION"]
    for wrong in ("nowhere", "../x", "base.y"):
        with pytest.raises(InvalidArgumentError, match="request envelope"):
            find(FUNCTION, envelope=wrong)
