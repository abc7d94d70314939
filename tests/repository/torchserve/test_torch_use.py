"""repository/torchserve/torch_use.py: which archives get a worker with torch, by what their files say."""

import json
from pathlib import Path

import pytest

from shoal.repository.torchserve.torch_use import uses_torch
from tests.repository.torchserve.archives import manifest


def archive(directory: Path, handler: str | None, **code: str) -> Path:
    (directory / "MAR-INF").mkdir()
    (directory / "MAR-INF" / "MANIFEST.json").write_text(manifest(handler=handler))
    for name, text in code.items():
        (directory / f"{name}.py").write_text(text)
    return directory


@pytest.mark.parametrize(
    "code",
    [
        "import torch\n",
        "import os, json as j, torch.nn as nn\n",
        "def f():\n    from torch import nn\n",
        "\tfrom transformers.pipelines import pipeline",
        "from ts.torch_handler.base_handler import BaseHandler\n",
        "x = 1\nimport\ttorchvision\r\n",
    ],
)
def test_code_that_imports_torch_or_what_does(tmp_path: Path, code: str) -> None:
    assert uses_torch(archive(tmp_path, "h.py", h="pass", model=code), {"parameters": {}})


@pytest.mark.parametrize(
    "code",
    [
        "",
        "import json\nfrom ts.context import Context\nfrom ts.torch_handler.request_envelope import json\n",
        "import torches, mytorch\nfrom a.torch import b\n",
        "# import torch\nx = 'torch'\ntorch = None\n",
        "import" + " a," * 100_000,
        "import " + " " * 200_000 + "," * 50_000,
    ],
)
def test_code_that_does_not(tmp_path: Path, code: str) -> None:
    # The last two would never end if the search took more than a text's length.
    assert not uses_torch(archive(tmp_path, "h.py", h=code), {"parameters": {}})


@pytest.mark.parametrize(
    ("text", "said", "expected"),
    [
        ("image_classifier", "", True),
        ("text_classifier:handle", "", True),
        ("h.py", "base_handler", True),
        ("image_classifier", "h.py", False),
        ("h.py", "", False),
        (None, "", False),
    ],
)
def test_handlers_of_torchserves_own(tmp_path: Path, text: str | None, said: str, expected: bool) -> None:
    config = {"parameters": {"ts_handler": {"string_value": said}} if said else {}}
    assert uses_torch(archive(tmp_path, text, h="pass"), config) is expected


def test_a_file_of_the_archive_takes_the_place_of_torchserves_own(tmp_path: Path) -> None:
    assert not uses_torch(archive(tmp_path, "image_classifier.py", image_classifier="pass"), {"parameters": {}})


def test_files_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").symlink_to("nowhere.py")
    (tmp_path / "b.py").mkdir()
    (tmp_path / "MAR-INF").mkdir()
    (tmp_path / "MAR-INF" / "MANIFEST.json").write_text(json.dumps([1]))
    assert not uses_torch(tmp_path, {})
    assert not uses_torch(tmp_path / "none", {})
