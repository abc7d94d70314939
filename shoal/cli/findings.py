"""Faults in a repository's models that a load would find, as far as files show them without a model or framework.

Reads directories, configurations and model files, changes nothing, and executes no code of a model. The checks are
those of the server: the poller's, the supervisor's and, of a model's file, those that need no framework.
"""

import ast
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from shoal.environments.resolve import refuse_missing
from shoal.environments.wanted import wanted
from shoal.errors import ShoalError
from shoal.model_config.autocomplete import IOTensor, ModelIO, complete_from_file, needs_autocomplete
from shoal.model_config.ensemble import LATEST, is_ensemble, mismatches, steps
from shoal.model_config.files import CONFIG_FILENAME
from shoal.model_config.finish import finish_config
from shoal.model_config.messages import Config
from shoal.model_config.python_backends import runs_on
from shoal.model_config.sequences import with_sequence_tensors
from shoal.model_config.signature import Signature
from shoal.repository.found import FoundModel
from shoal.repository.misplaced import is_model, lost_link
from shoal.repository.poll import Repositories
from shoal.repository.scan import model_file
from shoal.workers import unreadable
from shoal.workers.backends import (
    BACKENDS,
    file_checks,
    onnx_file,
    onnxruntime_options,
    openvino_options,
    pytorch_options,
    tensorflow_options,
)
from shoal.workers.backends.backend import BackendModel, Device
from shoal.workers.ragged import RaggedBatches
from shoal.workers.warmup import check_files

ERROR, WARNING = "error", "warning"
_MODEL_CLASS = "TritonPythonModel"
#: The place of a fault in a text proto, in the sentence about the fault.
_POSITION = re.compile(r"\bline (\d+), column \d+")


#: Backend → the function that reads its settings. Which execution providers the installed ONNX Runtime has shows only
#: when a model is loaded, so all are accepted here.
_SETTINGS: dict[str, Callable[[BackendModel, Device], object]] = {
    "onnxruntime": partial(onnxruntime_options.session_settings, available=onnxruntime_options.PROVIDERS),
    "openvino": openvino_options.openvino_settings,
    "pytorch": pytorch_options.settings,
    "tensorflow": tensorflow_options.tensorflow_settings,
}
#: In place of a server's --backend-directory: a directory without any backend.
_NOWHERE = Path("/nonexistent")


class Finding(NamedTuple):
    """A fault of a model. `line` counts from 1; 0: the whole file."""

    severity: str  # ERROR: the model does not load; WARNING: it may load, but otherwise than probably meant
    model: str
    path: Path
    text: str
    line: int = 0

    def __str__(self) -> str:
        """The finding on one line, as compilers print theirs, so that editors and CI jump to the place."""
        place = f"{self.path}:{self.line}" if self.line else str(self.path)
        return f"{place}: {self.severity}: {' '.join(self.text.split())}"


class Report(NamedTuple):
    """The names of all models of the repositories, and their findings, sorted by model."""

    models: tuple[str, ...]
    findings: tuple[Finding, ...]


def check(places: Sequence[Path]) -> Report:
    """The findings about all models of `places`: repositories of one server, or directories of single models, each of
    which is checked with the models beside it.

    Raises InvalidArgumentError for a directory that cannot be read.
    """
    repositories = [place for place in places if not is_model(place)]
    reports = [_check_all(repositories)] if repositories else []
    for model in (place.absolute() for place in places if place not in repositories):
        models, findings = _check_all([model.parent])
        reports.append(
            Report(
                tuple(name for name in models if name == model.name),
                tuple(each for each in findings if each.model == model.name),
            )
        )
    return Report(
        tuple(name for report in reports for name in report.models),
        tuple(each for report in reports for each in report.findings),
    )


def _check_all(repositories: Sequence[Path]) -> Report:
    findings: list[Finding] = []
    source = Repositories(repositories)
    scan = source.scan()
    for identifier, problem in scan.problems.items():
        findings.append(Finding(ERROR, identifier.name, repositories[0] / identifier.name, problem))
    entries = [path for repository in repositories for path in repository.iterdir()]
    findings += [Finding(WARNING, path.name, path, lost) for path in entries if (lost := lost_link(path))]
    models: dict[str, FoundModel] = {}
    for identifier, place in scan.models.items():
        with _warnings() as warnings:
            (found,) = source.look_at_each({identifier: place})
        models[found.name] = found
        findings += [Finding(WARNING, found.name, found.directory, text) for text in warnings]
    finished: dict[str, Config] = {}
    for found in models.values():
        findings += _check_model(found, finished)
    for name, found in models.items():
        if name in finished and is_ensemble(found.config):
            findings += [
                Finding(ERROR, name, _config_path(found), text) for text in _check_steps(found, models, finished)
            ]
    names = sorted({*models, *(identifier.name for identifier in scan.problems)})
    return Report(tuple(names), tuple(sorted(findings, key=lambda each: (each.model, each.path, each.line))))


def _check_model(found: FoundModel, finished: dict[str, Config]) -> Iterator[Finding]:
    """Check a model without those that its steps name; a finished configuration without fault goes into `finished`."""
    if found.error is not None:
        position = _POSITION.search(str(found.error)) if CONFIG_FILENAME in str(found.error) else None
        path = _config_path(found)
        yield Finding(ERROR, found.name, path, str(found.error), int(position[1]) if position else 0)
        return
    config = found.config
    try:
        if not needs_autocomplete(config):
            config = finish_config(config)
        finished[found.name] = config
    except ShoalError as error:
        yield Finding(ERROR, found.name, _config_path(found), str(error))
    framework, distribution = BACKENDS.get(config["backend"], ("",) * 4)[2:]
    if framework and importlib.util.find_spec(framework) is None:
        yield Finding(
            WARNING,
            found.name,
            _config_path(found),
            f"backend '{config['backend']}' needs the package {framework}, which is not installed here: "
            f"pip install '{distribution}'",
        )
    if is_ensemble(config):
        return
    for version in found.versions.values():
        try:
            file = model_file(version.directory, config, f"{found.name}_0_0")
        except ShoalError as error:
            yield Finding(ERROR, found.name, version.directory, str(error))
            continue
        yield from _check_beside(found, config, version.directory, finished)
        if file is None:
            continue
        if reason := unreadable.reason(str(file)):
            yield Finding(ERROR, found.name, Path(reason[0]), reason[1])
        elif config["backend"] == "python":
            yield from _check_python(found.name, file)
        elif config["backend"] == "onnxruntime":
            yield from _check_onnx(found, config, file, finished)


def _check_python(model: str, file: Path) -> Iterator[Finding]:
    """Check the source of a model.py, without running it."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        line = (error.lineno or 0) if isinstance(error, SyntaxError) else 0
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        yield Finding(ERROR, model, file, f"SyntaxError: {text}", line)
        return
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if _MODEL_CLASS in classes:
        defined = classes[_MODEL_CLASS]
        methods = {each.name for each in defined.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
        if "execute" not in methods and not defined.bases:
            yield Finding(ERROR, model, file, f"class {_MODEL_CLASS} has no method 'execute'", defined.lineno)
    elif not _may_bind(tree.body, _MODEL_CLASS):
        text = f"no class {_MODEL_CLASS}: '{file}' has to define a class of this name"
        yield Finding(ERROR, model, file, f"{text}; it defines {', '.join(classes) or 'none'}")


def _check_beside(
    found: FoundModel, config: Config, version_dir: Path, finished: Mapping[str, Config]
) -> Iterator[Finding]:
    """Check the settings of a version's backend, its Python environment, and the files of its warm-up."""
    instance = f"{found.name}_0_0"
    model = BackendModel(found.name, int(version_dir.name), instance, str(version_dir), "", config, {})
    checks: list[Callable[[], object]] = []
    if runs_on(config) == "python" and (asked := wanted(version_dir, config, _NOWHERE, install_requirements=False)):
        checks.append(partial(refuse_missing, asked, os.environ))
    kinds = {group["kind"] for group in config["instance_group"]}
    if kinds <= {"KIND_AUTO", "KIND_CPU"} and (settings := _SETTINGS.get(config["backend"])) is not None:
        checks.append(partial(settings, model, Device("KIND_CPU", 0, (0,))))
    if (whole := finished.get(found.name)) is not None:
        checks.append(partial(check_files, replace(model, config=whole), Signature.from_config(whole)))
    for each in checks:
        try:
            each()
        except ShoalError as error:
            yield Finding(ERROR, found.name, _config_path(found), str(error))


def _check_onnx(found: FoundModel, config: Config, file: Path, finished: dict[str, Config]) -> Iterator[Finding]:
    """Check a configuration against the file's inputs and outputs; open fields are taken from the file."""
    if file.is_dir():
        file = file / file.name
    try:
        onnx = onnx_file.read(file)
    except ShoalError as error:
        yield Finding(ERROR, found.name, file, str(error))
        return
    except OSError as error:
        yield Finding(ERROR, found.name, file, f"cannot be read: {error.strerror}")
        return
    for location in sorted(onnx.locations):
        if not (weights := file.parent / location).is_file():
            fault = "not a regular file: put it in its place" if weights.exists() else "not there: copy it, too"
            text = f"'{file.name}' has its weights in a file of its own, '{location}', which is {fault}"
            yield Finding(ERROR, found.name, file, text)
    try:
        onnxruntime_options.refuse_maps(found.name, config, onnx.io.outputs)
        if needs_autocomplete(config):
            config = finish_config(complete_from_file(config, onnx.io))
            finished[found.name] = config
        if found.name in finished:
            _check_tensors(config, onnx)
    except ShoalError as error:
        yield Finding(ERROR, found.name, _config_path(found), str(error))


def _check_tensors(config: Config, onnx: onnx_file.OnnxFile) -> None:
    """Raise InvalidArgumentError where the tensors of a finished configuration and of the file disagree."""
    signature, ragged = Signature.from_config(with_sequence_tensors(config)), RaggedBatches(config)
    specs = {**signature.inputs, **signature.outputs}
    batch = (-1,) * (signature.max_batch_size > 0)

    def known(tensors: Iterable[IOTensor]) -> tuple[IOTensor, ...]:
        # ONNX Runtime may infer the shapes that the file leaves out.
        return tuple(
            each._replace(dims=(*batch, *specs[each.name].model_dims))
            if each.name in onnx.unknown_ranks and each.name in specs
            else each
            for each in tensors
        )

    io = ModelIO(known(onnx.io.inputs), known(onnx.io.outputs))
    file_checks.check(signature, io, known(onnx.initializers), ragged.made, ragged.scattered)


def _may_bind(body: Iterable[ast.stmt], name: str) -> bool:
    """Whether a module may have `name` without a class statement at its top level: by import, assignment or branch."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            continue
        for each in ast.walk(node):
            if isinstance(each, ast.ClassDef) and each.name == name:
                return True
            if isinstance(each, ast.alias) and (each.name in ("*", name) or each.asname == name):
                return True
            if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store):
                return True
    return False


def _check_steps(found: FoundModel, models: Mapping[str, FoundModel], finished: Mapping[str, Config]) -> Iterator[str]:
    """Check an ensemble together with the models that its steps name."""
    composing: list[Config] = []
    for step in steps(found.config):
        name, number = step["model_name"], int(step["model_version"])
        if name not in models:
            yield f"ensemble '{found.name}' contains the model '{name}', which is in none of the repositories"
        elif number != LATEST and models[name].error is None and number not in models[name].versions:
            yield f"ensemble '{found.name}' names version {number} of model '{name}', which is not selected there"
        elif name in finished:
            composing.append(finished[name])
    if (circle := _circle(found.name, models)) is not None:
        yield (
            f"circular dependency between ensembles: {' -> '.join(circle)}. Remove one of these steps from the "
            "'ensemble_scheduling' of its ensemble"
        )
    elif len(composing) == len(steps(found.config)) and not any(needs_autocomplete(each) for each in composing):
        yield from mismatches(finished[found.name], composing)


def _circle(start: str, models: Mapping[str, FoundModel]) -> list[str] | None:
    """The names of the models on the way from an ensemble to itself; None if no steps lead there."""
    paths = [[start]]
    seen: set[str] = set()
    while paths:
        path = paths.pop()
        for step in steps(models[path[-1]].config) if path[-1] in models else []:
            name = step["model_name"]
            if name == start:
                return [*path, name]
            if name not in seen:
                seen.add(name)
                paths.append([*path, name])
    return None


def _config_path(found: FoundModel) -> Path:
    path = found.directory / CONFIG_FILENAME
    return path if path.exists() else found.directory


class _WarningTexts(logging.Handler):
    """A handler of the log that keeps the texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect the warnings that Shoal's modules log within the `with`, and keep them out of the log."""
    log, kept = logging.getLogger("shoal"), _WarningTexts()
    log.addHandler(kept)
    was, log.propagate = log.propagate, False
    try:
        yield kept.texts
    finally:
        log.propagate = was
        log.removeHandler(kept)
