"""Models of the backend `torchserve` that tests write: an unpacked archive with a configuration beside it."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG = """
name: "{name}"
backend: "torchserve"
max_batch_size: {batch_size}
input {{ name: "data" data_type: TYPE_STRING dims: [ 1 ] }}
output {{ name: "prediction" data_type: TYPE_STRING dims: [ 1 ] }}
instance_group {{ count: 1 kind: KIND_CPU }}
"""


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
    given = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        for key, value in (parameters or {}).items()
    )
    config = CONFIG.format(name=name, batch_size=batch_size) + given + more
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
