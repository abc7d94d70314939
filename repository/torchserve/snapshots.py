"""Snapshots of a TorchServe server's configuration: files from which the next start goes on with the same models.

    <yyyyMMddHHmmssSSS>-{startup,snapshot,shutdown}.cfg     properties, and model_snapshot={…} as TorchServe writes it

A start reads the snapshot with the latest time in its name. A file appears whole, and only its owner reads it:
properties may have passwords. Runs in the poller.
"""

import json
import os
import re
from pathlib import Path

from shoal.errors import InternalError

#: The most `-snapshot` files, written at changes, that are kept (ours; TorchServe keeps all). All others are kept.
MAX_CHANGES = 50
_CHANGE = re.compile(r"[0-9]{17}-snapshot\.cfg", re.ASCII)


def write_snapshot(directory: Path, name: str, properties: str, models: str) -> None:
    """Write a snapshot under this file name; `models` is the JSON object of the models. Raises InternalError where the
    directory cannot be written."""
    versions = json.loads(models)
    snapshot = {"name": name, "modelCount": sum(map(len, versions.values())), "models": versions}
    line = json.dumps(snapshot, separators=(",", ":")).replace("\\", "\\\\")
    whole, part = directory / name, directory / f".{name}.part"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(f"{properties}model_snapshot={line}\n".encode("latin-1", "replace"))
            file.flush()
            os.fsync(file.fileno())
        part.replace(whole)
        changes = sorted([each for each in os.listdir(directory) if _CHANGE.fullmatch(each)])
        for old in changes[:-MAX_CHANGES]:
            (directory / old).unlink(missing_ok=True)
    except OSError as error:
        raise InternalError(
            f"the snapshot '{whole}' of the configuration cannot be written: {error.strerror or error}; start with "
            "--no-config-snapshots, or set LOG_LOCATION to a directory that can"
        ) from error
