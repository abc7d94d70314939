"""The chat template of a text model, which OpenAI's endpoints make prompts with (frontend/openai/chat_template.py).

    parameters { key: "tokenizer" value { string_value: "tokenizer" } }
    parameters { key: "chat_template" value { string_value: "{% for … %}" } }

The first names a directory, by a path that is absolute or relative to the model's directory; the second, which takes
precedence, is the template itself. A tokenizer's directory has chat_template.jinja, or tokenizer_config.json with
`chat_template`, and with the tokens that begin and end a text. What is found becomes parameters of the configuration,
so that every process has it. Runs in the poller.
"""

import json
from pathlib import Path
from typing import Any

from shoal.errors import InvalidArgumentError
from shoal.model_config.files import read
from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter

TOKENIZER, CHAT_TEMPLATE, BOS_TOKEN, EOS_TOKEN = "tokenizer", "chat_template", "bos_token", "eos_token"
_TEMPLATE_FILE, _CONFIG_FILE = "chat_template.jinja", "tokenizer_config.json"
#: The most bytes of either file (ours): tokenizers with a thousand added tokens have 200 kB.
MAX_BYTES = 4 << 20


def with_chat_template(config: Config, model_dir: Path) -> Config:
    """The configuration with its tokenizer's chat template among its parameters. Raises InvalidArgumentError for a
    tokenizer without one that can be read."""
    tokenizer = parameter(config, TOKENIZER)
    if tokenizer is None:
        return config
    directory = model_dir / tokenizer  # an absolute path stays what it is
    what = f"the tokenizer '{tokenizer}' of model '{config['name']}'"
    settings = _settings(directory / _CONFIG_FILE, what)
    template = parameter(config, CHAT_TEMPLATE) or _template(directory, settings, what)
    found = {CHAT_TEMPLATE: template} | {name: _token(settings.get(name)) for name in (BOS_TOKEN, EOS_TOKEN)}
    # JSON may have lone surrogates, which have no UTF-8.
    texts = {name: text.encode("utf-8", "replace").decode() for name, text in found.items() if text}
    parameters = {name: {"string_value": text} for name, text in texts.items()}
    return {**config, "parameters": {**config["parameters"], **parameters}}


def _settings(path: Path, what: str) -> dict[str, Any]:
    data = _read(path, what)
    try:
        settings = {} if data is None else json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{what} has a {_CONFIG_FILE} that is no JSON: {error}") from None
    if not isinstance(settings, dict):
        raise InvalidArgumentError(f"{what} has a {_CONFIG_FILE} that is no JSON object")
    return settings


def _template(directory: Path, settings: dict[str, Any], what: str) -> str:
    data = _read(directory / _TEMPLATE_FILE, what)
    if data is not None:
        return data.decode("utf-8", "replace")
    template = settings.get(CHAT_TEMPLATE)
    if isinstance(template, list):  # several by name; the one for conversations is called "default"
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    if not isinstance(template, str) or not template:
        raise InvalidArgumentError(
            f"{what} has no chat template: put {_TEMPLATE_FILE}, or {_CONFIG_FILE} with '{CHAT_TEMPLATE}', into "
            f"'{directory}', or set the parameter '{CHAT_TEMPLATE}'"
        )
    return template


def _token(value: Any) -> str:
    """A token's text, of a string or of the object that an added token is."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else ""


def _read(path: Path, what: str) -> bytes | None:
    """A file's bytes; None where there is none. Raises InvalidArgumentError for one that cannot be read."""
    try:
        data = read(path, MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgumentError(f"{what} cannot be read: {path}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise InvalidArgumentError(f"{what} is too large: {path} has more than {MAX_BYTES} bytes")
    return data
