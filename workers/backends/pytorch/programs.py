"""The forms that PyTorch saves models in, each loaded into a Program, which takes and returns tensors by the
configuration's names.

    TorchScript     */constants.pkl           torch.jit: arguments and results as the model declares them
    torch.export    */models/*.json           a graph: leaves of nested arguments and results, all known; before
                                              PyTorch 2.8 */serialized_exported_program.json
    AOTInductor     */data/aotinductor/*      a graph, compiled for one kind of machine
    a Python file   a subclass of torch.nn.Module, its state dict, if any, in a .pt file beside it; the only form with
                    a user's code

An archive's form is recognised by its contents, not by its name. A state dict is read with weights_only: it is data,
and no code in it is run. Runs in a worker, while it loads a model.
"""

import importlib
import inspect
import logging
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnavailableError, UnsupportedError
from shoal.model_config.shared_process import PARAMETER, instances_share_process
from shoal.workers.backends.backend import BackendModel
from shoal.workers.backends.python.model import import_model
from shoal.workers.backends.pytorch import naming
from shoal.workers.backends.pytorch_options import COMPILE, PytorchSettings, check_tensors

_log = logging.getLogger(__name__)

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
_PYTHON_FILENAMES = ("model.py", "model.pt")  # the order in which Triton's Python runtime looks for them


#: A loaded model: a function from all inputs by name to all outputs by name, each a tensor or a list of strings. It
#: raises whatever the model raises.
Program: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]


class Forward:
    """A model whose `forward` is called with arguments, and may return any object."""

    def __init__(self, function: Callable[..., Any], model: BackendModel, arguments: naming.Template) -> None:
        self._function = function
        self._model = model.name
        self._arguments = arguments
        self._outputs = [output["name"] for output in model.config["output"]]
        paths = [path and path[1] for path in map(naming.path, self._outputs)]
        self._paths = None if None in paths else dict(zip(self._outputs, paths, strict=True))
        # Positions of the outputs in a result that is no dictionary; set by the first call with such a result.
        self._positions: dict[str, int] | None = None

    def __call__(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs for these inputs, by name. Raises InvalidArgumentError if an output is not in the result,
        TypeError if the result is no tensor, tuple, list or dictionary, and what the model raises."""
        result = self._function(*naming.fill(self._arguments, tensors))
        if self._paths is not None:
            return {name: self._at(result, name, steps or ()) for name, steps in self._paths.items()}
        if isinstance(result, Mapping):
            return {name: self._at(result, name, (name,)) for name in self._outputs}
        # A list of strings is one output. So is an empty list, whose elements could be anything.
        is_strings = isinstance(result, list) and all(isinstance(each, str) for each in result[:1])
        is_one = isinstance(result, torch.Tensor) or is_strings
        values = [result] if is_one else result
        if not isinstance(values, (tuple, list)):
            raise TypeError(_NO_OUTPUT)
        if self._positions is None:
            self._positions = naming.positions(self._model, "output", self._outputs, {})
        for name, position in self._positions.items():
            if position >= len(values):
                raise naming.no_such_output(name, len(values))
        return {name: values[position] for name, position in self._positions.items()}

    def _at(self, result: Any, name: str, steps: naming.Steps) -> Any:
        try:
            return naming.follow(result, steps)
        except LookupError:
            raise InvalidArgumentError(f"output '{name}' is not in what model '{self._model}' returned") from None


class Exported:
    """A graph whose arguments and results are known: their leaves are tensors, and can be named by their paths."""

    def __init__(
        self,
        function: Callable[[list[Any]], Sequence[Any]],
        model: BackendModel,
        in_spec: Any,
        out_spec: Any,
        arguments: Sequence[str] = (),
    ) -> None:
        """`function` takes the leaves of `in_spec` and returns those of `out_spec`, in their order; `arguments` are the
        names of its positional arguments. Raises InvalidArgumentError if the configuration's tensors are not the
        graph's."""
        self._function = function
        inputs, outputs = _names(in_spec, ("ARGS", "KWARGS")), _names(out_spec, ("RESULT",))
        for number, argument in enumerate(arguments):
            if f"ARGS[{number}]" in inputs:
                inputs.setdefault(argument, inputs[f"ARGS[{number}]"])
        self._num_outputs = out_spec.num_leaves
        found = naming.input_positions(model.name, _inputs(model), inputs, in_spec.num_leaves)
        self._inputs = sorted(found, key=found.__getitem__)
        self._outputs = naming.positions(
            model.name, "output", [tensor["name"] for tensor in model.config["output"]], outputs
        )
        for name, position in self._outputs.items():
            if position >= self._num_outputs:
                raise naming.no_such_output(name, self._num_outputs)

    def __call__(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs for these inputs, by name."""
        leaves = self._function([tensors[name] for name in self._inputs])
        return {name: leaves[position] for name, position in self._outputs.items()}


def _inputs(model: BackendModel) -> list[str]:
    """The names of the model's inputs: first those that clients send, then the batch_inputs, which are made from a
    batch."""
    made = [name for each in model.config["batch_input"] for name in each["target_name"]]
    return [tensor["name"] for tensor in model.config["input"]] + made


_NO_OUTPUT = (
    "output must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a List / "
    "Dictionary of Tensors or a Scalar"
)


def load(model: BackendModel, device: torch.device | None, settings: PytorchSettings) -> Program:
    """The program of a model, with its weights on `device`; None leaves them on the devices from which they were saved.

    Raises UnavailableError without a file, InternalError with PyTorch's text for a file that PyTorch cannot load,
    InvalidArgumentError if file and configuration disagree, and UnsupportedError for a setting that the file's form
    lacks or a package that is not installed.
    """
    file = _file(model)
    try:
        if file.endswith(".py"):
            return _module(model, file, device, settings)
        if settings.compile is not None:
            _log.warning("model '%s': '%s' has no effect on '%s', it is no Python file", model.name, COMPILE, file)
        if settings.weight_sharing and not instances_share_process(model.config):
            _log.info(
                "model '%s': its instances are processes, and each has weights of its own, unless the parameter '%s' "
                "is true", model.name, PARAMETER,
            )  # fmt: skip
        return _LOADERS[_form(model, file)](model, file, device, settings)
    except ShoalError:
        raise
    except Exception as error:  # errors of a user's module, or of PyTorch for a damaged file
        raise InternalError(f"failed to load model '{model.name}': {str(error) or type(error).__name__}") from error


def _file(model: BackendModel) -> str:
    if not model.file:
        for file in (os.path.join(model.version_dir, filename) for filename in _PYTHON_FILENAMES):
            if os.path.exists(file):
                return file
        raise UnavailableError(f"No model found in {model.version_dir}/{list(_PYTHON_FILENAMES)}")
    # Triton looks for a model.pt2 if there is no model.pt.
    for file in (model.file, f"{model.file}2" if os.path.basename(model.file) == "model.pt" else model.file):
        if os.path.exists(file):
            return file
    raise UnavailableError(f"unable to find '{model.file}' for model instance '{model.instance_name}'")


def _form(model: BackendModel, file: str) -> str:
    """The form of an archive, a key of `_LOADERS`. Raises InternalError for a file of none of these forms."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name.partition("/")[2] or name for name in archive.namelist()]  # without the top directory
    except (OSError, zipfile.BadZipFile) as error:
        raise InternalError(f"failed to load model '{model.name}': '{file}' is no PyTorch archive: {error}") from error
    for form, mark in (
        ("aotinductor", "data/aotinductor/"),
        ("export", "models/"),
        ("export", "serialized_exported_program.json"),  # as written by PyTorch before 2.8
        ("torchscript", "constants.pkl"),
    ):
        if any(name.startswith(mark) for name in names):
            return form
    raise InternalError(
        f"failed to load model '{model.name}': '{file}' holds weights and no model. Save the model with torch.jit or "
        'torch.export; or put a model.py with its class beside the weights, and set runtime: "model.py"'
    )


def _torchscript(model: BackendModel, file: str, device: torch.device | None, settings: PytorchSettings) -> Program:
    check_tensors(model, takes_strings=True)
    torch._C._set_graph_executor_optimize(settings.optimized_execution)
    for value, switch in (
        (settings.jit_profiling, torch._C._jit_set_profiling_mode),
        (settings.jit_executor, torch._C._jit_set_profiling_executor),
        (settings.tensor_fuser, torch._C._jit_set_texpr_fuser_enabled),
    ):
        if value is not None:
            switch(value)
    module = _load_torchscript(file, device)
    if settings.channels_last:
        module = module.to(memory_format=torch.channels_last)
    _self, *declared = module.forward.schema.arguments
    names = _inputs(model)
    types = [(each.name, each.type.kind(), str(each.type)) for each in declared]
    return Forward(module, model, naming.arguments(model.name, names, types))


def _load_torchscript(file: str, device: torch.device | None) -> Any:
    """The module in a file. For a model that uses torchvision's operators, torchvision is imported; Triton has these
    operators built in."""
    load: Callable[..., Any] = torch.jit.load
    try:
        return load(file, map_location=device)
    except RuntimeError as error:
        if "Unknown builtin op: torchvision::" not in str(error):
            raise
        try:
            importlib.import_module("torchvision")
        except ImportError as missing:
            raise UnsupportedError(
                f"'{file}' uses operators of torchvision: {missing}. Install it with: pip install torchvision"
            ) from error
        return load(file, map_location=device)


def _export(model: BackendModel, file: str, device: torch.device | None, settings: PytorchSettings) -> Program:
    _refuse_for_archives(model, settings)
    program = torch.export.load(file)
    if device is not None:
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    module, spec = program.module(), program.call_spec
    in_spec, out_spec = spec.in_spec, spec.out_spec
    assert in_spec is not None, "torch.export writes both"

    def run(leaves: list[Any]) -> Sequence[Any]:
        arguments, keywords = pytree.tree_unflatten(leaves, in_spec)
        found: list[Any] = pytree.tree_leaves(module(*arguments, **keywords))
        return found

    called = program.module_call_graph[0].signature  # the first entry is for the whole module, the others for its parts
    return Exported(run, model, in_spec, out_spec, getattr(called, "forward_arg_names", None) or ())


def _aotinductor(model: BackendModel, file: str, device: torch.device | None, settings: PytorchSettings) -> Program:
    _refuse_for_archives(model, settings)
    # Without this setting compiled code does not check shapes, and reads beyond the end of a tensor that is too small.
    os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")
    index = device.index if device is not None and device.type == "cuda" else -1
    loader = _loader(file, index)
    in_spec, out_spec = map(pytree.treespec_loads, loader.get_call_spec())
    return Exported(loader.boxed_run, model, in_spec, out_spec)


def _loader(file: str, device_index: int) -> Any:
    """PyTorch's loader of a compiled archive. PyTorch's public function is not used: it first compares this machine
    with the one that made the archive, only to warn, and for that imports the compiler and runs C++ programs."""
    try:
        compiled: Any = torch._C  # torch has no type hints for it
        return compiled._aoti.AOTIModelPackageLoader(file, "model", False, 1, device_index)
    except TypeError:  # before PyTorch 2.8 the loader takes fewer arguments
        return torch._inductor.aoti_load_package(file, device_index=device_index).loader


def _refuse_for_archives(model: BackendModel, settings: PytorchSettings) -> None:
    check_tensors(model, takes_strings=False)
    if settings.channels_last:
        raise UnsupportedError(
            f"model '{model.name}': 'CHANNELS_LAST' is for TorchScript and Python files; export the model with its "
            "weights and example inputs in that format"
        )


def _module(model: BackendModel, file: str, device: torch.device | None, settings: PytorchSettings) -> Program:
    check_tensors(model, takes_strings=False)
    module: Any = _class_in(import_model(file, model.version_dir))()
    weights = os.path.splitext(file)[0] + ".pt"
    if os.path.exists(weights):
        module.load_state_dict(_state_dict(model, weights, device, settings), assign=settings.weight_sharing)
    else:
        _log.info("Model parameter file not found for '%s'", model.name)
    module.to(device).eval()
    if settings.channels_last:
        module.to(memory_format=torch.channels_last)
    function = module if settings.compile is None else torch.compile(module, **settings.compile)
    return Forward(function, model, _arguments(model, module))


def _arguments(model: BackendModel, module: Any) -> naming.Template:
    names = _inputs(model)
    declared = [each for each in inspect.signature(module.forward).parameters.values() if each.kind in _POSITIONAL]
    if any(each.kind is each.VAR_POSITIONAL for each in declared):
        return names  # `forward` takes any number of positional arguments, which have no names
    required = sum(each.default is each.empty for each in declared)
    return naming.arguments_in_order(model.name, names, [each.name for each in declared], required)


def _state_dict(model: BackendModel, file: str, device: torch.device | None, settings: PytorchSettings) -> Any:
    try:
        return torch.load(file, map_location=device, weights_only=True, mmap=settings.weight_sharing or None)
    except Exception as error:  # PyTorch's text ends with advice to allow code to run, which is cut off
        reason = re.search(r"WeightsUnpickler error: (.*?)(\. |\n|$)", str(error))
        raise InternalError(
            f"failed to load model '{model.name}': '{file}' is no state dict, which is all that is read: "
            f"{reason[1] if reason else error}"
        ) from error


def _class_in(python_module: Any) -> type[torch.nn.Module]:
    """The class of the model. As in Triton, it is the first by name of the file's subclasses of torch.nn.Module; those
    that the file defines go before those that it imports."""
    classes = [value for _, value in inspect.getmembers(python_module, inspect.isclass)]
    modules = [each for each in classes if issubclass(each, torch.nn.Module) and each is not torch.nn.Module]
    if not modules:
        raise InvalidArgumentError("Cannot find a subclass of torch.nn.Module")
    return min(modules, key=lambda each: each.__module__ != python_module.__name__)


def _names(spec: Any, roots: Sequence[str]) -> dict[str, int]:
    """Path of each leaf → the leaf's position. A leaf directly in a dictionary of results or of keyword arguments has
    its key there as a second name."""
    leaves = range(spec.num_leaves)
    found: dict[str, int] = {}
    for keys, position in pytree.tree_flatten_with_path(pytree.tree_unflatten(list(leaves), spec))[0]:
        steps = [_step(key) for key in keys]
        root = roots[int(steps.pop(0))] if len(roots) > 1 else roots[0]
        found[root + "".join(f"[{step}]" for step in steps)] = position
        if len(steps) == 1 and isinstance(keys[-1], pytree.MappingKey):
            found.setdefault(steps[0], position)
    return found


def _step(key: Any) -> str:
    match key:
        case pytree.MappingKey():
            return str(key.key)
        case pytree.SequenceKey():
            return str(key.idx)
        case _:
            return str(key).removeprefix(".")


_LOADERS = {"torchscript": _torchscript, "export": _export, "aotinductor": _aotinductor}
