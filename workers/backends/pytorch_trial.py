"""Tries a TorchScript file on zeros and prints its tensors as JSON: python -m shoal.workers.backends.pytorch_trial FILE

The shapes that are tried follow from the model's weights, in the weights' order: the shape of the first layer's weights
has the number of features or channels of an input. The first shape that runs is kept; then each of its dimensions is
changed, one at a time, to see which ones may vary.
"""

import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from shoal.model_config.autocomplete import DEFAULT_MAX_BATCH_SIZE
from shoal.workers.backends.pytorch.backend import TYPES

#: What is tried: heights and widths of images, the commonest first; a text's number of tokens; the lengths of a sound
#: or of a series of numbers (ours).
_SIDES, _TOKENS, _LENGTHS = (224, 32, 28, 64, 128, 256, 299, 8, 16, 384, 512), 16, (16, 128, 1024, 16_000)
#: Errors of a TorchScript model, or of the comparison of its results.
_FAULTS = (RuntimeError, TypeError, ValueError, LookupError, torch.jit.Error)
#: A model with more arguments than this is not tried; all arguments get the same shape (ours).
_MOST_ARGUMENTS = 4
Shape = tuple[int, ...]


class NoShapesError(Exception):
    """A module does not run on zeros, or has tensors that cannot be served; the message says why."""


class Candidate(NamedTuple):
    """A datatype and a shape, of one row, that are tried for all arguments of the model."""

    dtype: torch.dtype
    shape: Shape


def candidates(weights: Sequence[Shape], dtype: torch.dtype) -> Iterator[Candidate]:
    """The inputs to be tried, in this order, on a model whose weights have these shapes."""
    for shape in weights:
        if len(shape) == 2:  # a linear layer, or the table of an embedding
            yield Candidate(dtype, (1, shape[1]))
            yield Candidate(torch.int64, (1, _TOKENS))
        elif len(shape) == 3:
            yield from (Candidate(dtype, (1, shape[1], length)) for length in _LENGTHS)
        elif len(shape) == 4:
            yield from (Candidate(dtype, (1, shape[1], side, side)) for side in _SIDES)
        elif len(shape) == 1:  # weights of a normalisation, of features or of an image's channels
            yield Candidate(dtype, (1, shape[0]))
            yield from (Candidate(dtype, (1, shape[0], side, side)) for side in _SIDES)
    if not weights:
        yield Candidate(dtype, (1, 1))


def found(module: Any) -> dict[str, Any]:
    """The inputs and outputs of a module. Raises NoShapesError if they cannot be found or served."""
    _self, *arguments = module.forward.schema.arguments
    if not 1 <= len(arguments) <= _MOST_ARGUMENTS or any(each.type.kind() != "TensorType" for each in arguments):
        raise NoShapesError(f"its arguments are not 1 to {_MOST_ARGUMENTS} tensors")
    weights = list(module.state_dict().values())
    dtype = next((each.dtype for each in weights if each.dtype.is_floating_point), torch.float32)
    tried: dict[Candidate, str] = {}
    for candidate in candidates([tuple(each.shape) for each in weights], dtype):
        if candidate in tried:
            continue
        try:
            first = _run(module, candidate, len(arguments))
        except _FAULTS as error:
            tried[candidate] = str(error).strip().splitlines()[-1]
            continue
        return _described(module, candidate, [each.name for each in arguments], first)
    raise NoShapesError(f"none of {len(tried)} shapes ran, the last failed with: {[*tried.values()][-1]}")


def _described(module: Any, base: Candidate, names: Sequence[str], first: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The tensors of a module that has returned `first` for `base`: name, datatype and dims of each. A dimension that
    may vary is a text, such as d0, which is equal for dimensions that vary together."""
    inputs: list[int | str] = list(base.shape)
    outputs: dict[str, list[int | str]] = {name: list(tensor.shape) for name, tensor in first.items()}
    for position, size in enumerate(base.shape):
        results = [_changed(module, base, len(names), position, new) for new in (size * 2, size + 1)]
        ranks = [{name: each.ndim for name, each in (result or {}).items()} for result in (first, *results)]
        if ranks != [ranks[0]] * 3:
            continue
        inputs[position] = f"d{position}"
        for result in results:
            for name, tensor in (result or {}).items():
                for number, (one, other) in enumerate(zip(tensor.shape, first[name].shape, strict=True)):
                    if one != other:
                        outputs[name][number] = f"d{position}"
    is_batch = all(dims[:1] == ["d0"] for dims in (inputs, *outputs.values()))
    datatypes = {name: TYPES.get(tensor.dtype) for name, tensor in first.items()}
    if None in datatypes.values():
        raise NoShapesError("a result has a datatype that Triton's protocol does not have")
    return {
        "max_batch_size": DEFAULT_MAX_BATCH_SIZE if is_batch else 0,
        "inputs": [(name, TYPES[base.dtype], inputs) for name in names],
        "outputs": [(name, datatypes[name], dims) for name, dims in outputs.items()],
    }


def _changed(module: Any, base: Candidate, count: int, position: int, size: int) -> dict[str, torch.Tensor] | None:
    """The module's results when one dimension of its inputs has another size; None if the module fails with that
    size."""
    shape = (*base.shape[:position], size, *base.shape[position + 1 :])
    try:
        return _run(module, Candidate(base.dtype, shape), count)
    except _FAULTS:
        return None


def _run(module: Any, candidate: Candidate, count: int) -> dict[str, torch.Tensor]:
    """The module's results for zeros, by their names in a configuration. Raises whatever the module raises, TypeError
    for results that are not tensors."""
    with torch.inference_mode():
        result = module(*(torch.zeros(candidate.shape, dtype=candidate.dtype) for _ in range(count)))
    if isinstance(result, Mapping):
        named = dict(result)
    else:
        values = [result] if isinstance(result, torch.Tensor) else list(result)
        named = {f"OUTPUT__{number}": each for number, each in enumerate(values)}
    if not named or not all(isinstance(each, torch.Tensor) for each in named.values()):
        raise TypeError("its results are not tensors")
    return named


def main(path: str) -> None:
    """Print what is found in the file, or an error."""
    warnings.simplefilter("ignore")  # PyTorch advises against TorchScript whenever it is used
    torch.set_num_threads(1)
    try:
        load: Any = torch.jit.load
        said = found(load(path, map_location="cpu").eval())
    except NoShapesError as error:
        said = {"error": str(error)}
    except RuntimeError as error:  # PyTorch's errors for a file that it cannot load
        said = {"error": str(error).strip().splitlines()[-1]}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
