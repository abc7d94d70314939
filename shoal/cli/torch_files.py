"""The inputs and outputs of a PyTorch file without a configuration, for `shoal serve` and `shoal init`.

A torch.export program describes its tensors in JSON, which is read here. A TorchScript file only has its arguments'
names: the model is run on zeros (pytorch_trial.py) in a process of its own, since it is a stranger's program and since
PyTorch takes seconds to import.
"""

import json
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.model_config.autocomplete import DEFAULT_MAX_BATCH_SIZE

#: torch.export's number of a datatype (torch/_export/serde/schema.py) → Triton's datatype.
_DATATYPES = {
    1: "UINT8", 2: "INT8", 3: "INT16", 4: "INT32", 5: "INT64", 6: "FP16", 7: "FP32", 8: "FP64", 12: "BOOL", 13: "BF16",
    28: "UINT16",
}  # fmt: skip
#: The program's JSON, in archives of PyTorch 2.8 and later, and of earlier ones.
_PROGRAMS = ("models/model.json", "serialized_exported_program.json")
#: The most bytes of a program's JSON, and the most seconds that pytorch_trial.py may take (ours).
_MAX_JSON_BYTES, _TIMEOUT_S = 64 << 20, 120.0
#: The largest `max_batch_size` that is taken from a program (ours); if the program allows more, the default is taken.
_MOST_ROWS = 1024

Config = dict[str, Any]


class NoShapesError(Exception):
    """The tensors of a file cannot be determined; the message says why, as the end of a sentence."""


def tensors_of(path: Path) -> Config:
    """`max_batch_size`, `input` and `output` of the model in a file. Raises NoShapesError."""
    try:
        with zipfile.ZipFile(path) as archive:
            inner = {name.partition("/")[2] or name: name for name in archive.namelist()}
            program = next((inner[name] for name in _PROGRAMS if name in inner), None)
            if program is not None:
                with archive.open(program) as file:
                    text = file.read(_MAX_JSON_BYTES + 1)
                if len(text) > _MAX_JSON_BYTES:
                    raise NoShapesError("its program is too large to be read for its shapes")
                return exported(json.loads(text))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise NoShapesError("its program has a form that is not known here") from None
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:  # a damaged file's, from zipfile
        raise NoShapesError(f"it is no PyTorch archive: {error}") from None
    if any(name.startswith("data/aotinductor/") for name in inner):
        raise NoShapesError("a package of AOTInductor does not say its shapes")
    if "constants.pkl" not in inner:
        raise NoShapesError(
            "it holds weights and no model: save the model with torch.export or torch.jit, or put a model.py with its "
            'class beside the weights (runtime: "model.py")'
        )
    return _tried(path)


def _tried(path: Path) -> Config:
    """The tensors of a TorchScript file, which pytorch_trial.py finds by a run on zeros. Raises NoShapesError."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "shoal.workers.backends.pytorch_trial", f"{path.absolute()}"],
            capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
            cwd="/",  # not the user's directory, whose files Python could import
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NoShapesError(f"a trial on zeros took more than {_TIMEOUT_S:g} s") from None
    try:
        found = dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, TypeError, ValueError):  # the process has ended within the file's code
        found = {}
    if "inputs" not in found:
        why = found.get("error") or (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise NoShapesError(f"a TorchScript file does not say the shapes of its inputs, and a trial has failed: {why}")
    return config(found["max_batch_size"], found["inputs"], found["outputs"])


def exported(program: Any) -> Config:
    """The tensors in a torch.export program's JSON. Raises NoShapesError; for JSON of another form KeyError, TypeError,
    IndexError or AttributeError, which `tensors_of` catches."""
    module, ranges = program["graph_module"], program["range_constraints"]
    signature, values = module["signature"], module["graph"]["tensor_values"]
    called = module["module_call_graph"][0]["signature"]
    arguments, keywords = json.loads(called["in_spec"])[1]["children_spec"]
    if keywords["children_spec"] or any(each["children_spec"] for each in arguments["children_spec"]):
        raise NoShapesError(
            "its arguments are nested or have keywords, and their paths are the configuration's to name"
        )
    inputs = [_tensor(each["user_input"]["arg"], values) for each in signature["input_specs"] if "user_input" in each]
    outputs = [
        _tensor(each["user_output"]["arg"], values) for each in signature["output_specs"] if "user_output" in each
    ]
    names = called.get("forward_arg_names") or [f"INPUT__{number}" for number in range(len(inputs))]
    if len(names) != len(inputs):
        raise NoShapesError("its arguments and their names do not agree")
    rows = {dims[0] if dims else None for _, dims in (*inputs, *outputs)}
    return config(
        _max_batch_size(rows.pop(), ranges) if len(rows) == 1 else 0,
        [(name, *each) for name, each in zip(names, inputs, strict=True)],
        [(f"OUTPUT__{number}", *each) for number, each in enumerate(outputs)],
    )


def _tensor(argument: Any, values: Any) -> tuple[str, list[int | str]]:
    """Datatype and dims of a tensor; a dimension that varies is the name of its symbol. Raises NoShapesError."""
    if "as_tensor" not in argument:
        raise NoShapesError("an argument or a result is no tensor")
    meta = values[argument["as_tensor"]["name"]]
    datatype = _DATATYPES.get(meta["dtype"])
    if datatype is None:
        raise NoShapesError("a tensor has a datatype that Triton's protocol does not have")
    return datatype, [each["as_int"] if "as_int" in each else each["as_expr"]["expr_str"] for each in meta["sizes"]]


def _max_batch_size(rows: int | str | None, ranges: Any) -> int:
    """The `max_batch_size` of a program whose tensors all begin with this dimension; 0 if that is not a batch's."""
    if not isinstance(rows, str):
        return 0
    symbol = re.fullmatch(r"Symbol\('(\w+)'[^()]*\)|\w+", rows)
    if symbol is None:
        return 0  # a term such as 2*d: the program does not take every number of rows
    bounds = ranges.get(symbol[1] or rows) or {}
    least, most = bounds.get("min_val") or 0, bounds.get("max_val")
    if least > 1:
        return 0  # the program takes no batch of 1, so a lone request would fail
    return most if isinstance(most, int) and 1 < most <= _MOST_ROWS else DEFAULT_MAX_BATCH_SIZE


def config(
    max_batch_size: int,
    inputs: Sequence[tuple[str, str, Sequence[int | str]]],
    outputs: Sequence[tuple[str, str, Sequence[int | str]]],
) -> Config:
    """The fields of a configuration that describe these tensors. Each has a name, a datatype and dims: the batch's
    dimension first where `max_batch_size` is not 0; a dimension that varies is given as a string. Raises
    NoShapesError for a scalar without a batch, which PyTorch's backend does not serve."""

    def tensor(name: str, datatype: str, dims: Sequence[int | str]) -> Config:
        own = list(dims[1:] if max_batch_size else dims)
        if not own and not max_batch_size:
            raise NoShapesError(f"'{name}' is a scalar, which is not supported")
        found: Config = {"name": name, "data_type": f"TYPE_{datatype}"}
        found["dims"] = [each if isinstance(each, int) else -1 for each in own] or [1]
        return found if own else {**found, "reshape": {"shape": []}}

    return {
        "max_batch_size": max_batch_size,
        "input": [tensor(*each) for each in inputs],
        "output": [tensor(*each) for each in outputs],
    }
