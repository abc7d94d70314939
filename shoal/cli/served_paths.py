"""The paths that `shoal serve` is given without a flag: repositories, directories of single models, and model files.

What is no repository is linked into a temporary one: a model's directory under its name, a file with a configuration
that says no more than its backend and file name. The rest of it is auto-completed from the file, as for any model.
"""

import mmap
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shoal.model_config.files import CONFIG_FILENAME
from shoal.repository.misplaced import is_model

#: The most entries of a model file's directory that are linked beside it: more are no model's own (ours).
MAX_BESIDE = 100

#: Ending → backend, of files whose backend needs no more configuration than their name.
_BACKENDS = {".onnx": "onnxruntime", ".xml": "openvino", ".plan": "tensorrt", ".py": "python"}
#: Ending → what the configuration must say, of files that do not say it themselves.
_INCOMPLETE = {
    ".pt": "a TorchScript file does not say the shapes of its inputs",
    ".pt2": "the names of its inputs and outputs are the configuration's",
    ".tl": "a forest's file does not say what its output means",
}
#: Ending → model_type of a forest's file, and the bytes that it begins with.
_FORESTS = {
    ".json": ("xgboost_json", b"{"),
    ".ubj": ("xgboost_ubj", b"{"),
    ".txt": ("lightgbm", b"tree\n"),
}
#: The objective of a forest, in the words of XGBoost (binary:logistic) and of LightGBM (objective=binary sigmoid:1).
_OBJECTIVE = re.compile(
    rb"objective.{0,400}?((?:binary|multi|reg|count|rank|survival):[a-z]+)|\nobjective=([a-z_0-9]+)", re.DOTALL
)
_OF_CLASSIFIERS = (b"binary", b"multi", b"multiclass", b"multiclassova")
#: The most rows of a batch (ours): a row costs a forest microseconds.
_FOREST_ROWS = 1024
#: The ending of TorchServe's archives.
ARCHIVE = ".mar"


class PathError(Exception):
    """A path is nothing that can be served; the message says why, and what could be."""


class LinkedModel(NamedTuple):
    """A model in the temporary repository."""

    name: str
    source: Path  # as it was given
    config: str  # what was written for a file; "" for a model's directory, which has its own


@contextmanager
def served_paths(paths: Sequence[Path]) -> Iterator[tuple[list[Path], list[LinkedModel]]]:
    """The repositories that hold the models at these paths, and the models that had to be linked into one.

    The temporary repository is removed afterwards. Raises PathError for a path that is no model and no repository.
    """
    repositories: list[Path] = []
    linked: list[LinkedModel] = []
    made: Path | None = None
    try:
        for path in paths:
            if path.is_dir() and not is_model(path):
                repositories.append(path)
                continue
            if made is None:
                made = Path(tempfile.mkdtemp(prefix="shoal-serve-"))
                repositories.append(made)
            linked.append(_link(path, made))
        yield repositories, linked
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _link(path: Path, repository: Path) -> LinkedModel:
    """Link a model's directory or file into the temporary repository. Raises PathError."""
    if path.is_dir():
        model = LinkedModel(path.resolve().name, path, "")
    elif path.is_file():
        model = _described(path)
    else:
        raise PathError(f"There is no file or directory '{path}'.")
    directory = repository / model.name
    if directory.is_symlink() or directory.exists():
        raise PathError(f"'{path}' would be a second model '{model.name}': rename one of the two.")
    if not model.config:
        directory.symlink_to(path.resolve())
        return model
    version = directory / "1"
    version.mkdir(parents=True)
    (directory / CONFIG_FILENAME).write_text(model.config)
    for each in _beside(path.absolute()):
        (version / each.name).symlink_to(each)
    return model


def _described(path: Path) -> LinkedModel:
    """The name and configuration of the model in a file: its stem or, if that is `model`, its directory's name."""
    if (why := _INCOMPLETE.get(path.suffix)) is not None:
        raise PathError(
            f"'{path}' needs a configuration: {why}. Put it into a repository, as <model>/1/model{path.suffix}, with a "
            f"<model>/{CONFIG_FILENAME} beside the 1 (docs/backends.md)."
        )
    backend = _BACKENDS.get(path.suffix)
    more = "" if backend else _forest(path)
    if backend is None and not more:
        known = ", ".join(sorted({*_BACKENDS, *_FORESTS, ARCHIVE}))
        raise PathError(
            f"'{path}' is no model that Shoal knows by its name; known are {known} (forests of XGBoost and LightGBM: "
            ".json, .ubj, .txt), a model's directory and a model repository."
        )
    name = path.stem if path.stem != "model" else path.absolute().parent.name or "model"
    text = f'backend: "{backend or "fil"}"\ndefault_model_filename: "{_quoted(path.name)}"\n{more}'
    return LinkedModel(name, path, text)


def _forest(path: Path) -> str:
    """The rest of the configuration of a forest's file; "" for any other file."""
    model_type, begins = _FORESTS.get(path.suffix, ("", b""))
    if not model_type or not path.stat().st_size:
        return ""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = _OBJECTIVE.search(data) if data[: len(begins)] == begins else None
        objective = bytes(found[1] or found[2]) if found else b""
    if not objective:
        return ""
    is_classifier = objective.partition(b":")[0] in _OF_CLASSIFIERS
    parameters = {"model_type": model_type, "is_classifier": str(is_classifier).lower()}
    lines = [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items()
    ]
    return f"max_batch_size: {_FOREST_ROWS}\n" + "".join(lines)


def archive_flags(paths: Sequence[Path]) -> list[str]:
    """The flags that serve TorchServe's archives; none without any. Raises PathError if they cannot be served."""
    for path in paths:
        if not path.is_file():
            raise PathError(f"There is no file '{path}'.")
    stores = {path.absolute().parent for path in paths}
    if len(stores) > 1:
        raise PathError(f"Archives of one directory can be served, and these are of {len(stores)}: use --model-store.")
    return [*(f"--model-store={store}" for store in stores), *(f"--models={path.name}" for path in paths)]


def _beside(path: Path) -> list[Path]:
    """The file and those that may belong to it: all of its directory or, where these are many, those of its name."""
    files = [each for each in path.parent.iterdir() if each.is_file()]
    if len(files) > MAX_BESIDE:
        files = [each for each in files if each == path or each.name.startswith((f"{path.stem}.", f"{path.name}_"))]
    return files


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
