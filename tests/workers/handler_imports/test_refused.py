"""What handlers import of TorchServe's package: each module is there, or its import says what to do instead."""

import importlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from ts.refused import REFUSED, install

PAGE = Path(__file__).parents[3] / "docs" / "migrate-from-torchserve.md"
_ROW = re.compile(r"^\| `(ts(?:\.\w+)*)`.* \| (.+) \|$", re.MULTILINE)


@pytest.mark.parametrize("name", REFUSED)
def test_an_import_says_what_to_do_instead(name: str) -> None:
    with pytest.raises(ImportError, match=re.escape(f"'{name}' of TorchServe is not there: {REFUSED[name]}")) as raised:
        importlib.import_module(name)
    assert raised.value.name == name
    assert name not in sys.modules


def test_a_module_inside_of_a_refused_package_has_its_packages_sentence() -> None:
    with pytest.raises(ImportError, match="are not supported: with 'parallelType'"):
        importlib.import_module("ts.torch_handler.distributed.base_pippy_handler")
    with pytest.raises(ModuleNotFoundError, match=re.escape("No module named 'ts.no_such'")):
        importlib.import_module("ts.no_such")


def test_the_finder_is_there_once() -> None:
    num_finders = len(sys.meta_path)
    install()
    assert len(sys.meta_path) == num_finders


def test_the_page_has_each_module() -> None:
    rows = dict(_ROW.findall(PAGE.read_text()))
    refused = {name for name, said in rows.items() if said.startswith("refused")}
    assert refused == set(REFUSED)
    for name in rows.keys() - refused:
        if not any(needed in rows[name] for needed in ("torch", "captum")):
            importlib.import_module(name)
        assert importlib.util.find_spec(name) is not None
