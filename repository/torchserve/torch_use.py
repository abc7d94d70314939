"""Whether an archive's handler will import torch, as far as its files say before it runs.

The worker of such an archive is forked by a zygote that has imported torch; other workers must not carry torch along.
The code is searched for statements that import torch, or a package that does, wherever they stand; it is not parsed,
since a parser can be made to overflow the stack. A wrong answer costs memory or time, nothing else. Pure but for
reading files, within bounds.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.model_config import files
from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter

#: TorchServe's handlers that no archive has a file for.
BUILT_IN = frozenset(
    {"base_handler", "densenet_handler", "image_classifier", "image_segmenter", "object_detector", "text_classifier",
     "text_handler", "vision_handler"}
)  # fmt: skip
#: Packages that import torch, among what handlers use: transformers and its like import torch with the first model.
_PACKAGES = (
    "accelerate", "captum", "diffusers", "peft", "sentence_transformers", "timm", "torch", "torchaudio", "torchtext",
    "torchvision", "transformers", "ultralytics",
)  # fmt: skip
_NAME = rb"(?:" + "|".join(_PACKAGES).encode() + rb"|ts\.torch_handler\.(?!request_envelope|unit_tests)\w+)"
_IMPORT = re.compile(rb"^[ \t]*(?:from|import(?:[\w. \t]+,){0,32})[ \t]+" + _NAME + rb"\b", re.MULTILINE)
#: Files of an archive that are searched, and bytes of each (ours: handlers have a few of some kilobytes).
_MAX_FILES, _MAX_BYTES = 64, 256 * 1024
_MANIFEST = Path("MAR-INF", "MANIFEST.json")


def uses_torch(directory: Path, config: Config) -> bool:
    """Whether the handler of the archive in this version directory will import torch, as far as its files show."""
    name = _handler(directory, config).partition(":")[0].removesuffix(".py").rpartition("/")[2]
    if name in BUILT_IN and not (directory / f"{name}.py").exists():
        return True
    return any(_IMPORT.search(code) for code in _code(directory))


def _handler(directory: Path, config: Config) -> str:
    """The handler that the configuration names, else the manifest's; "" where neither can be read."""
    said = parameter(config, "ts_handler")
    if said:
        return said
    try:
        manifest: Any = json.loads(files.read(directory / _MANIFEST, _MAX_BYTES))
        return str(manifest["model"]["handler"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _code(directory: Path) -> Iterator[bytes]:
    """The contents of the Python files in a directory, or their beginnings; without files that cannot be read."""
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".py")[:_MAX_FILES]
    except OSError:
        return
    for path in paths:
        try:
            yield files.read(path, _MAX_BYTES)
        except OSError:
            continue
