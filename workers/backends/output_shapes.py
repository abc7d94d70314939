"""The shapes that a batch's outputs will have, as far as they follow from configuration, file and inputs. Pure.

A dimension that the configuration leaves open (-1) often has a name in the file, such as `sequence`, that a dimension
of an input has, too: then both have one size. A file may err there, so the caller must check the real size.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from shoal.datatypes import BYTES
from shoal.model_config.signature import Signature
from shoal.workers.tensors import Array

#: By tensor, the file's entry for each dimension: a size, a name, or None.
FileShapes: TypeAlias = Mapping[str, Sequence[int | str | None]]
#: A size, or the name of an input and the number of its dimension that has the size.
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
        """The shapes of a model's outputs; None if one cannot be known, or has elements of different sizes."""
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
        """The shape of each output, with all rows; None if all together are smaller than `least_nbytes` bytes."""
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
