"""The pairing of a model's tensors with the configuration's, by Triton's conventions. Pure. Runs in a worker.

    by name    the name of an argument of `forward`, or a path: ARGS[0], ARGS[2][key], KWARGS[name], RESULT[key][0]
    by index   NAME__INDEX
    by order   the order of the configuration, with a warning if there are several

One convention holds for all inputs, and one for all outputs: the first, from the top, that suits every name. The inputs
of a model in a Python file are paired by order only, as in Triton; names that indicate another order are refused.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from shoal.errors import InternalError, InvalidArgumentError

_log = logging.getLogger(__name__)

#: The parts of a path behind its root, which lead into nested values: a dictionary's key, or an element's number.
Steps: TypeAlias = tuple[str, ...]
#: The arguments of a call, with the name of an input in each tensor's place: ["x", {"key": "y"}].
Template: TypeAlias = Any

_PATH = re.compile(r"(ARGS|KWARGS|RESULT)((?:\[[^\]]*\])*)")


def path(name: str) -> tuple[str, Steps] | None:
    """The root and the steps of a name that is a path (ARGS[2][key]); None for any other name."""
    match = _PATH.fullmatch(name)
    return (match[1], tuple(match[2][1:-1].split("][")) if match[2] else ()) if match else None


def positions(model: str, role: str, names: Sequence[str], known: Mapping[str, int]) -> dict[str, int]:
    """The position of each of the configuration's tensors; `known` has the names that the model declares, with their
    positions. Raises InvalidArgumentError if two names have one position."""
    if all(name in known for name in names):
        found = {name: known[name] for name in names}
    else:
        indices = {name: index for name in names if (index := _index(name)) is not None}
        found = indices if len(indices) == len(names) else {name: order for order, name in enumerate(names)}
        unnamed = next((name for name in names if name not in indices), None)
        if unnamed is not None and len(names) > 1:
            _log.warning(_by_order(model, role, unnamed))
    if len(set(found.values())) < len(names):
        raise InvalidArgumentError(
            f"unable to load model '{model}', two of its {role}s name the same tensor: "
            f"{', '.join(f'{name} is number {position}' for name, position in found.items())}"
        )
    return found


def input_positions(model: str, names: Sequence[str], known: Mapping[str, int], count: int) -> dict[str, int]:
    """The position of each of the configuration's inputs, in a model with `count` inputs. Raises
    InvalidArgumentError if the configuration has another number of inputs, or names a position that the model does
    not have."""
    if len(names) != count:
        raise InvalidArgumentError(
            f"unable to load model '{model}', configuration expects {len(names)} inputs, model provides {count}"
        )
    found = positions(model, "input", names, known)
    for name, position in found.items():
        if position >= count:
            raise InvalidArgumentError(
                f"The input {name} in the model configuration refers to an input index which doesn't exist. "
                f"This model has {count} inputs"
            )
    return found


def no_such_output(name: str, count: int) -> InvalidArgumentError:
    """The error, in Triton's words, for an output named by an index that exceeds the number of the model's outputs."""
    return InvalidArgumentError(
        f"The output {name} in the model configuration refers to an output index which doesn't exist. "
        f"This model has {count} outputs"
    )


def arguments(model: str, names: Sequence[str], declared: Sequence[tuple[str, str, str]]) -> Template:
    """The arguments of a TorchScript `forward`. `declared` are their names, kinds (`DictType`) and types as text.

    A list of strings is one argument, as a tensor is. Raises InvalidArgumentError if the configuration does not fit,
    and InternalError for types of arguments that Triton, too, refuses.
    """
    paths = [steps for root, steps in filter(None, map(path, names)) if root == "ARGS" and steps]
    if len(paths) == len(names) and all(step.isdecimal() for step, *_ in paths):
        return _arguments_by_path(model, dict(zip(names, paths, strict=True)), declared)
    if len(declared) == 1 and declared[0][1] == "DictType":
        return [{name: name for name in names}]
    for _, kind, type_name in declared:
        if kind != "TensorType" and type_name != "List[str]":
            raise InternalError(
                f"An input of type '{type_name}' was detected in the model. Only a single input of type "
                "Dict(str, Tensor) or input(s) of type Tensor are supported. Name the tensors in others by their "
                "paths: ARGS[0][key], ARGS[1][0]"
            )
    known = {argument: position for position, (argument, _, _) in enumerate(declared)}
    found = input_positions(model, names, known, len(declared))
    return sorted(found, key=found.__getitem__)


def arguments_in_order(model: str, names: Sequence[str], declared: Sequence[str], required: int) -> Template:
    """The arguments of a `forward` in Python. `declared` are the names of its positional arguments; the first
    `required` must be given.

    Raises InvalidArgumentError for another number of inputs, and for names that number the inputs in another order.
    """
    if not required <= len(names) <= len(declared):
        most = f" to {len(declared)}" if required < len(declared) else ""
        raise InvalidArgumentError(
            f"unable to load model '{model}', configuration expects {len(names)} inputs, model provides "
            f"{required}{most}"
        )
    numbers = [number for number in map(_number, names) if number is not None]
    if len(numbers) == len(names) and numbers != sorted(set(numbers)):
        raise InvalidArgumentError(
            f"unable to load model '{model}', the inputs of a Python file are the arguments of its forward in the "
            f"configuration's order, and their names say another: {', '.join(names)}"
        )
    if set(names) <= set(declared) and list(names) != list(declared[: len(names)]):
        _log.warning(
            "the inputs %s of model '%s' are given to its forward(%s) in this order, which is the configuration's, "
            "whatever they are called",
            ", ".join(names),
            model,
            ", ".join(declared),
        )
    return list(names)


def fill(template: Template, tensors: Mapping[str, Any]) -> Any:
    """A copy of the template with tensors in place of their names."""
    if isinstance(template, str):
        return tensors[template]
    if isinstance(template, dict):
        return {key: fill(value, tensors) for key, value in template.items()}
    filled = [fill(value, tensors) for value in template]
    return tuple(filled) if isinstance(template, tuple) else filled


def follow(result: Any, steps: Steps) -> Any:
    """The value at a path in a model's result. Raises LookupError if there is none."""
    for step in steps:
        if isinstance(result, dict):
            result = result[step]
        elif isinstance(result, (tuple, list)) and step.isdecimal():
            result = result[int(step)]
        else:
            raise KeyError(step)
    return result


def _arguments_by_path(model: str, paths: Mapping[str, Steps], declared: Sequence[tuple[str, str, str]]) -> Template:
    template: list[Template] = []
    for number, (_, kind, type_name) in enumerate(declared):
        beneath = {steps[1:]: name for name, steps in paths.items() if steps[0] == str(number)}
        depths = {len(steps) for steps in beneath}
        if kind == "DictType" and depths == {1}:
            template.append({key: name for (key,), name in beneath.items()})
        elif kind in ("ListType", "TupleType") and set(beneath) == {(str(each),) for each in range(len(beneath))}:
            elements = [beneath[str(each),] for each in range(len(beneath))]
            template.append(tuple(elements) if kind == "TupleType" else elements)
        elif depths == {0} and (kind == "TensorType" or type_name == "List[str]"):
            template.append(beneath[()])
        else:
            raise InvalidArgumentError(
                f"unable to load model '{model}', argument {number} is of type {type_name}, the inputs for it are: "
                f"{', '.join(beneath.values()) or 'none'}"
            )
    if len(paths) != sum(1 if isinstance(each, str) else len(each) for each in template):
        raise InvalidArgumentError(
            f"unable to load model '{model}', it has {len(declared)} arguments, the inputs are: {', '.join(paths)}"
        )
    return template


def _index(name: str) -> int | None:
    _, separator, number = name.partition("__")
    return int(number) if separator and number.isdecimal() else None


def _number(name: str) -> int | None:
    """The position that a name indicates, as NAME__INDEX or as a path; None if it indicates none."""
    root, steps = path(name) or ("", ())
    return int(steps[0]) if root == "ARGS" and len(steps) == 1 and steps[0].isdecimal() else _index(name)


def _by_order(model: str, role: str, name: str) -> str:
    if role == "input":
        return (
            f"input '{name}' or previous input(s) are neither an input argument to the model '{model}' nor do they "
            "follow the <name>__<index> naming convention. Falling back to enforcing strict ordering from model "
            "configuration."
        )
    return (
        f"output '{name}' or previous output(s) of the model '{model}' do not follow the <name>__<index> naming "
        "convention. Falling back to enforcing strict ordering from model configuration."
    )
