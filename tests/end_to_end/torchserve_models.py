"""Models of the backend `torchserve` that tests write: an unpacked archive with a configuration beside it."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.end_to_end.repositories import config_text


def add_handler(
    repository: Path,
    name: str,
    code: str = "",
    *,
    handler: str = "handler.py",
    manifest: Mapping[str, Any] | None = None,
    yaml: str = "",
    parameters: Mapping[str, str] | None = None,
    more: str = "",
    batch_size: int = 4,
) -> Path:
    """A model of one version whose archive has `code` as its handler.py; its directory. `manifest` is added to the
    manifest's `model`, `more` to the configuration; `yaml` is the text of a model-config.yaml."""
    directory = repository / name / "1"
    (directory / "MAR-INF").mkdir(parents=True)
    fields = f'name: "{name}"', more
    config = config_text(
        "torchserve", "data STRING 1", "prediction STRING 1", *fields, rows=batch_size, count=1, **(parameters or {})
    )
    (repository / name / "config.pbtxt").write_text(config)
    model = {"modelName": name, "handler": handler, "modelVersion": "1.0", **(manifest or {})}
    if yaml:
        model["configFile"] = "model-config.yaml"
        (directory / "model-config.yaml").write_text(yaml)
    described = {"createdOn": "01/01/2025 00:00:00", "runtime": "python", "archiverVersion": "0.12.0", "model": model}
    (directory / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(described))
    if code:
        (directory / "handler.py").write_text(code)
    return directory


def pack(directory: Path, path: Path) -> None:
    """Write the archive of an unpacked directory."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(directory.rglob("*")):
            archive.write(file, file.relative_to(directory))
