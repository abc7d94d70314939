"""Page-locked memory for transfers to and from a worker's GPU: the GPU copies by itself, and a batch waits once for all
copies of its outputs.

Inputs are gathered in page-locked memory that is kept and grows; outputs arrive in page-locked memory from PyTorch's
own cache. All copies go into the stream in which the model runs, so an instance's copies and executions follow each
other and overlap those of other instances. Runs in a worker.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch


class Transfers:
    """One instance's copies to and from its GPU."""

    def __init__(
        self,
        device: torch.device,
        make_pinned: Callable[[tuple[int, ...], torch.dtype], torch.Tensor],
        synchronize: Callable[[], None],
    ) -> None:
        """`make_pinned` makes a page-locked tensor of a shape and type, contents undefined; `synchronize` waits for all
        work that this instance has given to the GPU."""
        self._device = device
        self._make_pinned = make_pinned
        self._synchronize = synchronize
        # This field is changed by stage.
        self._staged: dict[str, torch.Tensor] = {}

    @classmethod
    def of_gpu(cls, device: torch.device) -> "Transfers":
        """The transfers of a GPU, in the stream in which a model runs unless the model chooses another."""
        return cls(
            device,
            lambda shape, dtype: torch.empty(shape, dtype=dtype, pin_memory=True),
            lambda: torch.cuda.current_stream(device).synchronize(),
        )

    def stage(self, name: str, nbytes: int) -> memoryview:
        """The memory in which an input of a batch is gathered, `nbytes` bytes with undefined contents; it stays this
        object's, and the next batch overwrites it."""
        staged = self._staged.get(name)
        if staged is None or staged.nbytes < nbytes:
            self._staged.pop(name, None)  # freed first: there may be no room for the old and the larger memory at once
            staged = self._staged[name] = self._make_pinned((max(1, nbytes),), torch.uint8)
        memory: memoryview = staged.numpy().data
        return memory[:nbytes]

    def to_device(self, tensor: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
        """A tensor's copy on the GPU, which may still be under way: the tensor must stay as it is until the outputs of
        the batch have arrived. A tensor in memory that is not page-locked has been copied when this returns."""
        return tensor.to(self._device, memory_format=memory_format, non_blocking=True)

    def is_there(self, value: Any) -> bool:
        """Whether an output is a tensor on the GPU; False for a tensor elsewhere, and for a list."""
        return isinstance(value, torch.Tensor) and value.device == self._device

    def to_host(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs, once all tensors have been copied into this process's memory; other values, such as lists, are
        returned unchanged. Raises what PyTorch raises if earlier work on the GPU has failed."""
        arrived = {name: self._copy(value) for name, value in outputs.items()}
        self._synchronize()
        return arrived

    def _copy(self, value: Any) -> Any:
        if not self.is_there(value):
            return value  # an output that the model itself has brought to the CPU
        return self._make_pinned(tuple(value.shape), value.dtype).copy_(value, non_blocking=True)
