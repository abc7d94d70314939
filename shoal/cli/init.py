"""The verb `init`: a new model's directory, with the smallest configuration that is right and a request to try.

The tensors of a model file are found by loading the file once in this process, those of PyTorch's files as
torch_files.py says; for a model in Python a template is written.
"""

import argparse
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from shoal.cli.config_text import as_pbtxt, quoted
from shoal.cli.serve import CommandLineError
from shoal.cli.served_paths import CHECKPOINT, FORESTS, absent, forest
from shoal.cli.skops_files import described
from shoal.cli.torch_files import NoShapesError, tensors_of
from shoal.cli.verb import EXIT_DONE, FailedError, VerbParser, run_verb, show
from shoal.errors import ShoalError
from shoal.file_kinds import exists, is_file
from shoal.model_config.files import CONFIG_FILENAME

_HELP = """\
Write the directory of a new model: config.pbtxt, a version with the model, and request.json to try it with. With
--from the model is a file (.onnx, PyTorch's .pt and .pt2, OpenVINO's .xml, TensorRT's .plan, scikit-learn's .skops,
forests of XGBoost, LightGBM and treelite: .json, .ubj, .txt, .tl), which is copied and read once for its inputs and
outputs; without, it is a template in Python. TorchScript (.pt) does not say the shapes of its inputs: it is tried on
zeros, in shapes that its weights allow. Beside a .skops a model.py is written, which loads it and predicts. Nothing
that exists is changed.

Examples:
  shoal init models/doubler                        # models/doubler/1/model.py, to be edited
  shoal init models/resnet --from resnet50.onnx

Options:
  --from <file>   the model's file
  --json          print JSON: {"model": name, "wrote": [files]}
  --help          print this and exit

Exit codes: 0 done; 1 the command is wrong; 2 the model could not be read.
"""
#: Ending → backend.
_BACKENDS = {
    ".onnx": "onnxruntime", ".xml": "openvino", ".plan": "tensorrt", ".pt": "pytorch", ".pt2": "pytorch",
    ".skops": "python",
}  # fmt: skip
_FOREST_ENDINGS = (*FORESTS, CHECKPOINT)
_MODEL_PY = '''\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        """Load what execute needs; called once in each instance. args["model_version"] and others are strings."""

    def execute(self, requests):
        """Answer a batch: a list of requests in, a list of as many responses out."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()  # FP32, shape (rows, 4), read-only
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.float32(2) * x)])
'''
#: The fields of a tensor that are written into the configuration, as far as the tensor has them; only a tensor without
#: dimensions beside the batch's has `reshape`.
_TENSOR_FIELDS = ("name", "data_type", "dims", "reshape")
_PYTHON: dict[str, Any] = {
    "backend": "python",
    "max_batch_size": 8,
    "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [4]}],
}


def init(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Write the directory; returns the exit code."""
    parser = VerbParser("init", "<model directory> [--from <model file>]", _HELP)
    parser.add_asked("directory", "Which model? Name the directory to write, as in models/doubler.", type=Path)
    parser.add_argument("--from", dest="source", type=Path)
    return run_verb(parser, argv, _init)


def _init(arguments: argparse.Namespace) -> int:
    directory: Path = arguments.directory
    source: Path | None = arguments.source
    if exists(directory) or directory.is_symlink():
        raise CommandLineError(f"'{directory}' exists already, and is left as it is.")
    if source is not None:
        _check(source)
    try:
        (directory / "1").mkdir(parents=True)
        if source is None:
            config = _PYTHON
            (directory / "1" / "model.py").write_text(_MODEL_PY, encoding="utf-8")
        elif source.suffix in _FOREST_ENDINGS:
            config = _copied_forest(source, directory)
        else:
            config = _copied(source, directory)
        if not (directory / CONFIG_FILENAME).exists():
            (directory / CONFIG_FILENAME).write_text(as_pbtxt(config), encoding="utf-8")
        (directory / "request.json").write_text(json.dumps(sample_request(config)) + "\n", encoding="utf-8")
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)  # made above
        place = error.filename or directory
        if source is not None and str(place) == str(source):
            to = "" if error.filename2 is None else f", or '{error.filename2}' cannot be written"
            raise FailedError(f"'{place}' cannot be read{to}: {error.strerror}") from None
        raise CommandLineError(f"'{place}' cannot be written: {error.strerror}") from None
    except (ShoalError, NoShapesError) as error:
        shutil.rmtree(directory)  # made above
        raise FailedError(
            f"{error.words}: {error}" if isinstance(error, ShoalError) else f"'{source}' cannot be described: {error}"
        ) from None
    wrote = sorted(str(each) for each in directory.rglob("*") if each.is_file())
    lines = [
        *(f"wrote {path}" for path in wrote),
        f"Try it:  shoal run {quote(str(directory))} --data {quote(str(directory / 'request.json'))}",
        f"Serve it:  shoal serve {quote(str(directory))}",
    ]
    show({"model": directory.absolute().name, "wrote": wrote}, "\n".join(lines), as_json=arguments.json)
    return EXIT_DONE


def _check(source: Path) -> None:
    """Raise CommandLineError for a model's file that is not there or of no known kind, FailedError for one that cannot
    be read, as far as that shows before anything is written."""
    try:
        if not is_file(source):
            raise CommandLineError(absent("file", source))
        if source.suffix not in {*_BACKENDS, *_FOREST_ENDINGS}:
            known = ", ".join([*_BACKENDS, *_FOREST_ENDINGS])
            raise CommandLineError(f"'{source}' is no file of {known}, whose inputs and outputs can be read.")
        for path in (source, *_beside(source)):
            with path.open("rb") as file:
                file.read(1)
    except OSError as error:
        raise FailedError(f"'{error.filename or source}' cannot be read: {error.strerror}") from None


def _beside(source: Path) -> list[Path]:
    """The files that belong to a model's file: OpenVINO's weights beside an .xml; none of other files."""
    weights = source.with_suffix(".bin")
    return [weights] if source.suffix == ".xml" and weights.is_file() else []


def _copied(source: Path, directory: Path) -> dict[str, Any]:
    """Copy the file into the model's version 1; returns the fields that the configuration needs. Raises ShoalError."""
    for path in (source, *_beside(source)):
        shutil.copyfile(path, directory / "1" / f"model{path.suffix}")
    backend = _BACKENDS[source.suffix]
    if backend == "pytorch":
        return {"backend": backend, **tensors_of(source)}
    if source.suffix == ".skops":
        copied = directory / "1" / "model.skops"
        found = described([copied])[copied]
        if isinstance(found, NoShapesError):
            raise found
        config, program = found
        (directory / "1" / "model.py").write_text(program, encoding="utf-8")
        return config
    return {"backend": backend, **_read(directory)}


def _copied_forest(source: Path, directory: Path) -> dict[str, Any]:
    """Like `_copied`, for a file with a forest; writes the configuration, too. Raises NoShapesError for other files."""
    more = forest(source)
    if not more:
        raise NoShapesError("it is no forest of XGBoost, LightGBM or treelite 4")
    shutil.copyfile(source, directory / "1" / source.name)
    text = f'backend: "fil"\ndefault_model_filename: "{quoted(source.name)}"\n{more}'
    (directory / CONFIG_FILENAME).write_text(text, encoding="utf-8")
    return _read(directory)


def _read(directory: Path) -> dict[str, Any]:
    """The batch size and the tensors that a model has once its backend has read the file. Raises ShoalError."""
    from shoal.testing import Server

    with Server(directory.absolute(), [directory.absolute().name]) as server:
        whole = server.config(directory.absolute().name)
    tensors = {
        role: [{key: tensor[key] for key in _TENSOR_FIELDS if key in tensor} for tensor in whole[role]]
        for role in ("input", "output")
    }
    return {"max_batch_size": whole["max_batch_size"], **tensors}


def sample_request(config: Mapping[str, Any]) -> dict[str, Any]:
    """A request as POST …/infer takes it: a batch of one, each value 1, and size 1 where a dimension may have any."""
    from shoal.datatypes import BY_CONFIG_NAME, BYTES

    inputs = []
    for tensor in config["input"]:
        shape = [1 if dim == -1 else int(dim) for dim in tensor["dims"]]
        shape = [1, *shape] if config["max_batch_size"] > 0 else shape
        datatype = BY_CONFIG_NAME[tensor["data_type"]]
        one = "text" if datatype is BYTES else datatype.dtype.type(1).item()
        inputs.append(
            {"name": tensor["name"], "datatype": datatype.name, "shape": shape, "data": [one] * math.prod(shape)}
        )
    return {"inputs": inputs}
