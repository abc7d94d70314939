"""The paths that `shoal serve` is given without a flag: repositories, directories of single models, and model files.

All but repositories are linked into a temporary repository: a model's directory under its name, a model file beside a
configuration that says what the server does not read from the file; the server auto-completes the other fields, as for
any model. A directory of model files stands for the files.
"""

import mmap
import re
import secrets
import shutil
import signal
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.cli.config_text import as_pbtxt, quoted
from shoal.errors import UnavailableError
from shoal.file_kinds import is_dir, is_file
from shoal.model_config.files import CONFIG_FILENAME
from shoal.repository.misplaced import is_model, lost_link
from shoal.repository.scan import is_version_name
from shoal.repository.slots import temporary_directory

if TYPE_CHECKING:
    from shoal.cli.skops_files import Described
    from shoal.cli.torch_files import NoShapesError

    #: File of skops → its configuration and model.py, or the reason why it cannot be served.
    OfSkops = Mapping[Path, Described | NoShapesError]

#: If a model file has more files beside it than this, its directory is taken for a shared one: only files whose names
#: begin with the model file's are linked (ours).
MAX_BESIDE = 100

#: Ending of a file → backend, where the configuration need not say more than the backend and the file's name.
_BACKENDS = {".onnx": "onnxruntime", ".xml": "openvino", ".plan": "tensorrt", ".py": "python"}
#: Endings of PyTorch's files.
_PYTORCH = frozenset({".pt", ".pt2"})
#: The ending of scikit-learn's models in skops's format.
_SKOPS = ".skops"
#: Ending → why files with it are not served, and what is served instead.
_REFUSED = {
    **dict.fromkeys(
        (".pkl", ".pickle", ".joblib"),
        "a pickle is a program, which runs when it is loaded. Write the model as ONNX (skl2onnx) or with skops, or a "
        "forest with treelite (docs/tutorials/scikit_learn.md)",
    ),
    ".pth": "it holds weights, as a rule. Save the model with torch.export.save(…, 'model.pt2') or "
    "torch.jit.script(model).save('model.pt') (docs/tutorials/pytorch.md)",
    ".safetensors": "it holds weights and no model. A model.py loads them (docs/python_models.md)",
    **dict.fromkeys((".h5", ".keras"), "save it as a SavedModel: model.export('model.savedmodel') (docs/backends.md)"),
    ".pb": "a graph of TensorFlow needs a configuration (docs/backends.md)",
}
#: Ending → model_type of a forest's file, and the bytes that it begins with.
FORESTS = {
    ".json": ("xgboost_json", b"{"),
    ".ubj": ("xgboost_ubj", b"{"),
    ".txt": ("lightgbm", b"tree\n"),
}
#: The format of treelite's checkpoints: the files' ending, the form of the major version at the start, the offset of
#: the task's kind, and the kinds with classes (treelite::TaskType: two classes, several classes).
CHECKPOINT, _MAJOR, _TASK, _CLASSIFYING = ".tl", struct.Struct("<i"), 26, (0, 2)
#: The objective of a forest, in the words of XGBoost (binary:logistic) and of LightGBM (objective=binary sigmoid:1).
_OBJECTIVE = re.compile(
    rb"objective.{0,400}?((?:binary|multi|reg|count|rank|survival):[a-z]+)|\nobjective=([a-z_0-9]+)", re.DOTALL
)
_OF_CLASSIFIERS = (b"binary", b"multi", b"multiclass", b"multiclassova")
#: The most rows of a batch (ours): a row costs a forest microseconds.
_FOREST_ROWS = 1024
#: The file of a model in Python.
PROGRAM = "model.py"
#: The ending of TorchServe's archives.
ARCHIVE = ".mar"


class PathError(Exception):
    """A path is nothing that can be served; the message says why, and what could be."""


class LinkedModel(NamedTuple):
    """A model in the temporary repository."""

    name: str
    source: Path  # the path that the command line gives
    config: str  # the text that was written for a file; "" for a model's directory, which has its own
    program: str = ""  # the text of the model.py that was written for a file


@contextmanager
def served_paths(paths: Sequence[Path]) -> Iterator[tuple[list[Path], list[LinkedModel]]]:
    """The repositories that hold the models at these paths, and the models that had to be linked into one.

    The temporary repository is removed afterwards. Raises PathError for a path that is no model and no repository.
    """
    repositories: list[Path] = []
    linked: list[LinkedModel] = []
    with _explained():
        files = list(_expanded(paths))
        to_link = {path for path in files if not is_dir(path) or is_model(path)}
        for path in to_link:
            _check_encoding(path)
        # Made only if there is something to link: a container may have no place for temporary files.
        made = temporary_directory() / f"shoal-serve-{secrets.token_hex(8)}" if to_link else Path()
    with _removed(made) if to_link else nullcontext():
        with _explained():
            of_skops = _of_skops([path for path in files if path.suffix == _SKOPS and is_file(path)])
            for path in files:
                if path not in to_link:
                    repositories.append(path)
                    continue
                if not linked:
                    made.mkdir(mode=0o700)
                    repositories.append(made)
                linked.append(_link(path, made, of_skops))
        yield repositories, linked


def _check_encoding(path: Path) -> None:
    """Raise PathError for a path that is not ASCII if the locale's encoding is not UTF-8: the server's processes and
    the frameworks, which take UTF-8, would not find the file."""
    encoding = sys.getfilesystemencoding()
    if encoding != "utf-8" and not str(path).isascii():
        raise PathError(f"'{path}' is not ASCII, and this locale's encoding is {encoding}: set LC_ALL=C.UTF-8.")


@contextmanager
def _explained() -> Iterator[None]:
    """Turn the OSError of a file, and the lack of a directory for temporary ones, into a PathError."""
    try:
        yield
    except UnavailableError as error:
        raise PathError(f"{error}.") from None
    except OSError as error:
        raise PathError(f"'{error.filename}': {error.strerror}.") from None


@contextmanager
def _removed(directory: Path) -> Iterator[None]:
    """Remove a directory afterwards, if there is one; also where SIGTERM or SIGHUP ends the process, as they do until
    the supervisor handles them."""

    def end(number: int, _frame: object) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    ending = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for each in ending:
        signal.signal(each, end)
    try:
        yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        for each in ending:
            if signal.getsignal(each) is end:
                signal.signal(each, signal.SIG_DFL)


def as_text(model: LinkedModel) -> str:
    """The text about a linked model: its name, and the configuration that was generated for it."""
    lines = [f"'{model.source}' is served as model '{model.name}'"]
    return "\n".join(lines + [f"  {line}" for line in model.config.splitlines()]) + "\n"


def _expanded(paths: Sequence[Path]) -> Iterator[Path]:
    """The paths; in place of a directory that has model files, and no model's directory, these files."""
    for path in paths:
        if not is_dir(path) or is_model(path):
            yield path
            continue
        entries = sorted(path.iterdir())
        files = [each for each in entries if is_file(each) and _is_served(each)]
        if files and not any(is_dir(each) and is_model(each) for each in entries):
            yield from files
        else:
            yield path


def _is_served(path: Path) -> bool:
    """Whether a file of a directory is a model. A Python file is one if it imports what Triton's models import.
    TorchServe's archives are left out: a directory of them is a model store, which has a flag of its own."""
    if path.suffix == ".py":
        return b"triton_python_backend_utils" in path.read_bytes()
    return path.suffix in {*_BACKENDS, *_PYTORCH, _SKOPS} or bool(forest(path))


def _of_skops(files: list[Path]) -> "OfSkops":
    if not files:
        return {}
    from shoal.cli.skops_files import described

    return described(files)


def _link(path: Path, repository: Path, of_skops: "OfSkops") -> LinkedModel:
    """Link a model's directory or file into the temporary repository. Raises PathError."""
    if is_dir(path):
        model = LinkedModel(path.resolve().name, path, "")
    elif is_file(path):
        model = _described(path, of_skops)
    else:
        raise PathError(absent("file or directory", path))
    directory = repository / model.name
    if directory.is_symlink() or directory.exists():
        raise PathError(f"'{path}' would be a second model '{model.name}': rename one of the two.")
    if not model.config:
        directory.symlink_to(path.resolve())
        return model
    version = directory / "1"
    version.mkdir(parents=True)
    (directory / CONFIG_FILENAME).write_text(model.config, encoding="utf-8")
    # Beside a model.py that was written here, other files of the user would be its modules or its requirements.txt.
    for each in [path.absolute()] if model.program else _beside(path.absolute()):
        (version / each.name).symlink_to(each)
    if model.program:
        (version / PROGRAM).write_text(model.program, encoding="utf-8")
    return model


def absent(kind: str, path: Path) -> str:
    """The error for a path at which there is nothing of this kind."""
    lost = lost_link(path)
    return f"{lost}." if lost else f"There is no {kind} '{path}'."


def _described(path: Path, of_skops: "OfSkops") -> LinkedModel:
    """The name and configuration of the model in a file. The name is the file's stem or, if that is `model`, the name
    of the file's directory or, if that is a version's, of the model's directory. Raises PathError for a file that
    cannot be served as it is."""
    if (why := _REFUSED.get(path.suffix)) is not None:
        raise PathError(f"'{path}' is not served as it is: {why}.")
    name = path.stem
    if name == "model":
        directory = path.absolute().parent
        name = (directory.parent if is_version_name(directory.name) else directory).name or name
    if path.suffix in _PYTORCH:
        from shoal.cli.torch_files import NoShapesError, tensors_of  # imported here: a server would keep its 0.6 MiB

        try:
            tensors = tensors_of(path)
        except NoShapesError as error:
            raise PathError(
                f"'{path}' needs a configuration: {error}. Put it into a repository, as <model>/1/model{path.suffix}, "
                f"with a <model>/{CONFIG_FILENAME} beside the 1 (docs/tutorials/pytorch.md)."
            ) from None
        return LinkedModel(name, path, as_pbtxt({"backend": "pytorch", "default_model_filename": path.name, **tensors}))
    if path.suffix == _SKOPS:
        found = of_skops[path]
        if isinstance(found, Exception):
            raise PathError(
                f"'{path}' is not served as it is: {found}. A model.py serves any model of scikit-learn "
                "(docs/python_models.md)."
            )
        config, program = found
        return LinkedModel(name, path, as_pbtxt(config), program)
    backend = _BACKENDS.get(path.suffix)
    more = "" if backend else forest(path)
    if backend is None and not more:
        known = ", ".join(sorted({*_BACKENDS, *_PYTORCH, *FORESTS, _SKOPS, CHECKPOINT, ARCHIVE}))
        raise PathError(
            f"'{path}' is no model that Shoal knows by its name; known are {known} (forests of XGBoost, LightGBM and "
            "treelite: .json, .ubj, .txt, .tl), a directory of such files, a model's directory and a model repository."
        )
    text = f'backend: "{backend or "fil"}"\ndefault_model_filename: "{quoted(path.name)}"\n{more}'
    return LinkedModel(name, path, text)


def forest(path: Path) -> str:
    """The fields beside backend and file name of a configuration for a forest's file; "" for any other file."""
    if path.suffix == CHECKPOINT:
        return _checkpoint(path)
    model_type, begins = FORESTS.get(path.suffix, ("", b""))
    if not model_type or not path.stat().st_size:
        return ""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = _OBJECTIVE.search(data) if data[: len(begins)] == begins else None
        objective = bytes(found[1] or found[2]) if found else b""
    if not objective:
        return ""
    return _parameters(model_type, is_classifier=objective.partition(b":")[0] in _OF_CLASSIFIERS)


def _checkpoint(path: Path) -> str:
    """Like `forest`, for a file that treelite has written; "" for another major version of treelite's format."""
    with path.open("rb") as file:
        head = file.read(_TASK + 1)
    if len(head) <= _TASK or _MAJOR.unpack_from(head) != (4,):
        return ""
    return _parameters("treelite_checkpoint", is_classifier=head[_TASK] in _CLASSIFYING)


def _parameters(model_type: str, *, is_classifier: bool) -> str:
    parameters = {"model_type": model_type, "is_classifier": str(is_classifier).lower()}
    lines = [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items()
    ]
    return f"max_batch_size: {_FOREST_ROWS}\n" + "".join(lines)


def archive_flags(paths: Sequence[Path]) -> list[str]:
    """The flags that serve TorchServe's archives; none without any. Raises PathError if they cannot be served."""
    with _explained():
        for path in paths:
            if not is_file(path):
                raise PathError(absent("file", path))
    stores = {path.absolute().parent for path in paths}
    if len(stores) > 1:
        raise PathError(f"Archives of one directory can be served, and these are of {len(stores)}: use --model-store.")
    return [*(f"--model-store={store}" for store in stores), *(f"--models={path.name}" for path in paths)]


def _beside(path: Path) -> list[Path]:
    """The file and those that may belong to it: all files of its directory or, if these are more than MAX_BESIDE,
    those whose names begin like the file's."""
    files = [each for each in path.parent.iterdir() if each.is_file()]
    if len(files) > MAX_BESIDE:
        files = [each for each in files if each == path or each.name.startswith((f"{path.stem}.", f"{path.name}_"))]
    return files
