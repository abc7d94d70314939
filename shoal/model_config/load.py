"""From a model's directory to its configuration, the first of two steps.

The entry points are `read_config` or, for a configuration from a request, `parse_override` and `prepare_config`. The
second step is `finish_config` (finish.py). Runs in the poller: protobuf, which reads the text, costs 0.1 s and 20 MiB.
"""

import os
from pathlib import Path

from shoal.errors import InvalidArgumentError
from shoal.file_kinds import is_dir
from shoal.model_config import backends, pbtxt
from shoal.model_config.chat_templates import with_chat_template
from shoal.model_config.checks import check_unfinished
from shoal.model_config.files import CONFIG_FILENAME
from shoal.model_config.messages import Config
from shoal.model_config.normalise import normalise
from shoal.model_config.python_backends import python_backend_file
from shoal.model_config.support import check_support

#: The directory in which --model-config-name is looked up first.
CONFIGS_DIRECTORY = "configs"


def read_config(
    model_dir: Path,
    *,
    name: str = "",
    mapped: bool = False,
    strict: bool = False,
    config_name: str = "",
    backend_directory: Path | None = None,
) -> Config:
    """The configuration in `model_dir`, or an empty one, prepared by `prepare_config`.

    `name` is the model's name, where the directory has another; with `mapped`, the configuration may have another, too.
    `config_name` is Triton's --model-config-name: configs/NAME.pbtxt is the configuration if it exists, else
    config.pbtxt. Raises the errors of `prepare_config`.
    """
    path = _config_path(model_dir, config_name)
    # lexists: a link that points nowhere is a mistake to report, not a model without a configuration.
    text = pbtxt.read(path) if os.path.lexists(path) else ""
    config = pbtxt.parse(text, path)
    if mapped:
        config["name"] = name
    config = _named(config, name or model_dir.name)
    return prepare_config(config, model_dir, strict=strict, backend_directory=backend_directory)


def parse_override(text: str, model_name: str) -> Config:
    """The configuration that came with a load request, a ModelConfig in JSON; for `prepare_config`.

    Raises InvalidArgumentError with the beginning of Triton's sentence.
    """
    try:
        config = pbtxt.parse_json(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"Invalid config override: {error}") from error
    return _named(config, model_name)


def prepare_config(
    config: Config, model_dir: Path, *, strict: bool = False, backend_directory: Path | None = None
) -> Config:
    """A configuration as written, with its name, and with the defaults that do not depend on the model's file.

    `strict` is Triton's --disable-auto-complete-config: the backend is not guessed. `backend_directory` has the
    backends that are not built in. Raises InvalidArgumentError and UnsupportedError for faults that are known before
    any process is started for the model.
    """
    if not strict and not backends.has_backend(config):
        config = backends.detect(config, _first_directory(model_dir))
    config = normalise(config)
    check_unfinished(config)
    check_support(config, python_backend_file(config["backend"], backend_directory))
    return with_chat_template(config, model_dir)


def _config_path(model_dir: Path, config_name: str) -> Path:
    named = model_dir / CONFIGS_DIRECTORY / f"{config_name}.pbtxt"
    return named if config_name and os.path.lexists(named) else model_dir / CONFIG_FILENAME


def _named(config: Config, name: str) -> Config:
    config["name"] = config["name"] or name
    if config["name"] != name:
        raise InvalidArgumentError(
            f"unexpected directory name '{name}' for model '{config['name']}', directory name must equal model name"
        )
    return config


def _first_directory(model_dir: Path) -> frozenset[str]:
    """The entries of the first sub-directory by name, where Triton looks for the model's file."""
    try:
        directories = sorted(entry for entry in model_dir.iterdir() if is_dir(entry) and entry.name[0] != ".")
        return frozenset(os.listdir(directories[0])) if directories else frozenset()
    except OSError as error:
        raise InvalidArgumentError(
            f"failed to read the directory '{error.filename}' of model '{model_dir.name}': {error.strerror}; "
            "let the server's user read it"
        ) from error
