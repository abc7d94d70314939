"""MAR-INF/MANIFEST.json, which names an archive's model, handler and files. Read in the poller, as untrusted input."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shoal.model_config import files
from shoal.model_config.checks import is_inside

_log = logging.getLogger(__name__)

MANIFEST = Path("MAR-INF", "MANIFEST.json")
_MAX_BYTES = 1 << 20
#: The version of a model whose archive names none.
DEFAULT_VERSION = "1.0"
#: Members of `model` that name files of the archive.
_FILES = ("serializedFile", "modelFile", "requirementsFile", "configFile")
RUNTIMES = ("python", "python3")


class Manifest(NamedTuple):
    """The members of a manifest that Shoal reads; an absent one is "", an absent version DEFAULT_VERSION."""

    model_name: str = ""
    version: str = DEFAULT_VERSION
    handler: str = ""
    runtime: str = ""
    serialized_file: str = ""
    model_file: str = ""
    requirements_file: str = ""
    config_file: str = ""


class ManifestError(ValueError):
    """A manifest cannot be used; the message is the reason."""


def read_manifest(model_dir: Path) -> Manifest | None:
    """The manifest of an unpacked archive; None where it has none, which TorchServe allows.

    A member of the wrong type is logged and left out. Raises ManifestError if the file cannot be read, is too large,
    has no object `model`, or names a file outside the archive.
    """
    try:
        raw = files.read(model_dir / MANIFEST, _MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManifestError(f"{MANIFEST} cannot be read: {error.strerror or error}") from error
    if len(raw) > _MAX_BYTES:
        raise ManifestError(f"{MANIFEST} is larger than {_MAX_BYTES} bytes")
    try:
        # Numbers stay as they are written, as in Gson, by which TorchServe reads JSON: version 1.10 is not 1.1.
        manifest = json.loads(raw.decode("utf-8-sig"), parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{MANIFEST} is no JSON: {error}") from error
    if not isinstance(manifest, dict):
        raise ManifestError(f"{MANIFEST} is no JSON object")
    model = manifest.get("model")
    if not isinstance(model, dict):
        raise ManifestError(f"{MANIFEST} has no object 'model', which names the model and its handler")
    if "modelServerVersion" in manifest or "archiverVersion" not in manifest:
        _log.warning(
            "the archive in '%s' was made by an old archiver; torch-model-archiver 0.12.0 is current", model_dir
        )
    for member in _FILES:
        name = _text(model, member)
        if name and not is_inside(name):
            raise ManifestError(f"'{member}' of {MANIFEST} is '{name}', which is no path within the archive")
    return Manifest(
        _text(model, "modelName"),
        _text(model, "modelVersion") or DEFAULT_VERSION,
        _text(model, "handler"),
        _text(manifest, "runtime"),
        *[_text(model, member) for member in _FILES],
    )


def _text(fields: Mapping[str, Any], member: str) -> str:
    value = fields.get(member)
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return json.dumps(value)  # a text, in Gson
    _log.warning("'%s' of %s is ignored: it is no text", member, MANIFEST)
    return ""
