"""The shapes that a batch's outputs will have, as far as they follow from the configuration, the model's file and the
inputs. Pure.

A dimension that the configuration leaves open (-1) often has a name in the file, such as `sequence`, that a dimension
of an input has, too: the two dimensions then have the same size. A file may be wrong about this, so the caller must
check the real sizes.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from shoal.datatypes import BYTES
from shoal.model_config.signature import Signature
from shoal.workers.tensors import Array

#: Tensor → the file's entry for each of its dimensions: a size, a name, or None for unknown.
FileShapes: TypeAlias = Mapping[str, Sequence[int | str | None]]
#: A dimension of an output: its size, or the name of an input and the number of that input's dimension of equal size.
_Dim: TypeAlias = int | tuple[str, int]


class OutputShapes:
    """The shapes of all outputs of one model."""

    def __init__(self, shapes: dict[str, tuple[_Dim, ...]], signature: Signature) -> None:
        self._shapes = shapes
        self._itemsizes = {name: signature.outputs[name].datatype.itemsize for name in shapes}
        self._is_batched = signature.max_batch_size > 0
        #: Whether some sizes are derived from inputs, and so might be wrong.
        self.are_guessed = any(isinstance(dim, tuple) for dims in shapes.values() for dim in dims)
        self._row_nbytes = 0 if self.are_guessed else self._nbytes(self._sized({}))

    @classmethod
    def of(cls, signature: Signature, inputs: FileShapes, outputs: FileShapes) -> "OutputShapes | None":
        """The shapes of a model's outputs; None if an output's shape cannot be known, or an output has strings, which
        differ in size."""
        named: dict[str, tuple[str, int]] = {}
        for input_ in signature.inputs:
            for axis, dim in enumerate(inputs.get(input_, ())):
                if isinstance(dim, str):
                    named.setdefault(dim, (input_, axis))
        shapes: dict[str, tuple[_Dim, ...]] = {}
        for spec in signature.outputs.values():
            inner = outputs[spec.name][signature.max_batch_size > 0 :]
            if spec.datatype is BYTES or len(inner) != len(spec.model_dims):
                return None
            dims: list[_Dim] = []
            for configured, in_file in zip(spec.model_dims, inner, strict=True):
                if configured != -1:
                    dims.append(configured)
                elif isinstance(in_file, int):
                    dims.append(in_file)
                elif in_file in named:
                    dims.append(named[in_file])
                else:
                    return None
            shapes[spec.name] = tuple(dims)
        return cls(shapes, signature)

    def of_batch(self, inputs: Mapping[str, Array], rows: int, least_nbytes: int) -> dict[str, tuple[int, ...]] | None:
        """The shape of each output for a batch of `rows` rows; None if the outputs together are smaller than
        `least_nbytes` bytes, or if an input that determines a shape was left out."""
        if not self.are_guessed and rows * self._row_nbytes < least_nbytes:
            return None
        try:
            sized = self._sized(inputs)
        except KeyError:  # an optional input that was left out
            return None
        if self.are_guessed and rows * self._nbytes(sized) < least_nbytes:
            return None
        return {name: (rows, *dims) for name, dims in sized.items()} if self._is_batched else sized

    def _sized(self, inputs: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
        return {
            name: tuple([dim if isinstance(dim, int) else inputs[dim[0]].shape[dim[1]] for dim in dims])
            for name, dims in self._shapes.items()
        }

    def _nbytes(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        return sum(self._itemsizes[name] * math.prod(dims) for name, dims in shapes.items())
