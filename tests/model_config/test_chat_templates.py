"""chat_templates.py: what of a tokenizer becomes parameters of a model's configuration, and what is refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config.chat_templates import MAX_BYTES
from shoal.model_config.load import read_config
from shoal.model_config.parameters import parameter


def model(tmp_path: Path, parameters: str = "", **files: str) -> dict[str, Any]:
    directory = tmp_path / "m"
    (directory / "tokenizer").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(f'backend: "python" {parameters}')
    for name, text in files.items():
        (directory / "tokenizer" / name.replace("__", ".")).write_text(text)
    config = read_config(directory)
    return {name: parameter(config, name) for name in ("chat_template", "bos_token", "eos_token")}


NAMED = 'parameters { key: "tokenizer" value { string_value: "tokenizer" } }'
NONE = {"chat_template": None, "bos_token": None, "eos_token": None}


def test_a_model_without_a_tokenizer_stays_as_it_is(tmp_path: Path) -> None:
    assert model(tmp_path, tokenizer_config__json='{"chat_template": "x"}') == NONE


def test_a_tokenizer_s_template_and_tokens(tmp_path: Path) -> None:
    settings = {"chat_template": "x", "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
    found = model(tmp_path, NAMED, tokenizer_config__json=json.dumps(settings))
    assert found == {"chat_template": "x", "bos_token": "<s>", "eos_token": "</s>"}


def test_what_has_no_utf_8_is_replaced(tmp_path: Path) -> None:
    found = model(tmp_path, NAMED, tokenizer_config__json='{"chat_template": "x\\ud800", "eos_token": "\\udcff"}')
    assert found == {"chat_template": "x?", "bos_token": None, "eos_token": "?"}


def test_several_templates_of_which_one_is_the_default(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    settings = json.dumps({"chat_template": templates, "bos_token": None})
    assert model(tmp_path, NAMED, tokenizer_config__json=settings) == {**NONE, "chat_template": "d"}


def test_a_file_of_its_own_comes_before_the_settings_and_a_parameter_before_both(tmp_path: Path) -> None:
    files = {"chat_template__jinja": "own é", "tokenizer_config__json": '{"chat_template": "x"}'}
    assert model(tmp_path / "one", NAMED, **files)["chat_template"] == "own é"
    said = 'parameters { key: "chat_template" value { string_value: "said" } }'
    assert model(tmp_path / "two", f"{NAMED} {said}", **files)["chat_template"] == "said"


def test_a_directory_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "chat_template.jinja").write_text("shared")
    assert model(tmp_path, NAMED.replace('"tokenizer" } }', f'"{tmp_path}/shared" }} }}'))["chat_template"] == "shared"


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, "has no chat template: put chat_template.jinja, or tokenizer_config.json with 'chat_template', into"),
        ({"tokenizer_config__json": "{}"}, "has no chat template"),
        ({"tokenizer_config__json": '{"chat_template": [1]}'}, "has no chat template"),
        ({"tokenizer_config__json": "{"}, "that is no JSON: Expecting"),
        ({"tokenizer_config__json": "[" * 100_000}, "that is no JSON"),
        ({"tokenizer_config__json": "[]"}, "that is no JSON object"),
        ({"chat_template__jinja": "x" * (MAX_BYTES + 1)}, "is too large"),
    ],
)
def test_what_is_refused(tmp_path: Path, files: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^the tokenizer 'tokenizer' of model 'm' ") as refusal:
        model(tmp_path, NAMED, **files)
    assert sentence in str(refusal.value)


def test_a_file_that_would_never_end_is_not_read(tmp_path: Path) -> None:
    directory = tmp_path / "m" / "tokenizer"
    directory.mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(f'backend: "python" {NAMED}')
    os.mkfifo(directory / "chat_template.jinja")
    with pytest.raises(InvalidArgumentError, match="it is not a regular file"):
        read_config(tmp_path / "m")
