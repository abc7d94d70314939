"""PyTorch models, on the worker's own cores or a GPU: one loaded program, which all instances of a process call."""

import logging
import os
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np

# Before the import, which reads this setting. GNU OpenMP's threads would spin while they wait for the next operator, on
# cores that other processes need: with two threads, a batch of 20 ms and the pause after it took 54 ms of CPU time,
# without spinning 26 ms.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
import torch
from torch.utils.dlpack import from_dlpack

from shoal.datatypes import BF16, BYTES, Datatype
from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnsupportedError
from shoal.model_config.signature import Signature
from shoal.workers.answers import Answers
from shoal.workers.backends.backend import BackendModel, BatchedBackend, Device, joinable
from shoal.workers.backends.device_input import DeviceInput
from shoal.workers.backends.pytorch import programs
from shoal.workers.backends.pytorch.transfers import Transfers
from shoal.workers.backends.pytorch_options import PytorchSettings, settings
from shoal.workers.cuda_regions import CudaRegions, GpuTensor
from shoal.workers.gpu_answers import DeviceOutput
from shoal.workers.gpu_pool import GpuPool
from shoal.workers.padding import ragged_batches
from shoal.workers.requests import Request
from shoal.workers.tensors import Array
from shoal.workers.warmup import smallest_inputs

_log = logging.getLogger(__name__)

#: PyTorch's types → names of Triton's datatypes; a type that is missing here has no Triton datatype.
TYPES = {
    torch.bool: "BOOL", torch.uint8: "UINT8", torch.uint16: "UINT16", torch.uint32: "UINT32", torch.uint64: "UINT64",
    torch.int8: "INT8", torch.int16: "INT16", torch.int32: "INT32", torch.int64: "INT64",
    torch.float16: "FP16", torch.float32: "FP32", torch.float64: "FP64", torch.bfloat16: "BF16",
}  # fmt: skip

#: The number of runs on zeros while a model loads: TorchScript profiles the first run, optimises in the second and has
#: its full speed in the third (for 20 small convolutions they took 134, 86 and 1.5 ms of CPU time).
_TIMES = 3


class PytorchBackend(BatchedBackend):
    """A loaded PyTorch program."""

    def __init__(self) -> None:
        #: Whether this instance shares its process with others, and so has a CUDA stream of its own: its work on the
        #: GPU must not wait for that of the others.
        self._has_own_stream = False
        # These fields are changed by load, keep_outputs_on_gpu and unload.
        self._program: programs.Program | None = None
        self._signature = Signature("", 0, {}, {})
        self._datatypes: dict[str, Datatype] = {}  # datatypes of all inputs
        self._device: torch.device | None = None  # None: the model places its tensors on devices itself
        self._transfers: Transfers | None = None  # None for an instance on the CPU
        self._guard: Callable[[], AbstractContextManager[object]] = torch.inference_mode
        self._cleans_cache = False
        self._keeps_outputs = False  # whether outputs may stay on the GPU
        self._format = torch.preserve_format  # PyTorch's memory format for inputs with four dimensions

    def load(self, model: BackendModel, device: Device) -> None:
        chosen = settings(model, device)
        _set_up_process(chosen)
        self._signature = signature = Signature.from_config(model.config)
        self.ragged = ragged = ragged_batches(model.config)
        made: Mapping[str, Datatype] = {} if ragged is None else ragged.made
        self._datatypes = {name: spec.datatype for name, spec in signature.inputs.items()} | dict(made)
        self._device = _torch_device(model, device)
        if self._device is not None and self._device.type == "cuda":
            if self._has_own_stream:
                own_stream: Any = torch.cuda.Stream  # torch has no type hints for it
                torch.cuda.set_stream(own_stream(self._device))  # for the work of this thread from now on
            self._transfers = Transfers.of_gpu(self._device)
            self.stage = self._transfers.stage
        self._guard = torch.inference_mode if chosen.inference_mode else torch.no_grad
        self._cleans_cache = chosen.cache_cleaning and torch.cuda.is_available()
        self._format = torch.channels_last if chosen.channels_last else torch.preserve_format
        if self._program is None:
            self._program = programs.load(model, self._device, chosen)
        if not (model.config["model_warmup"] or ragged):
            self._run_zeros(model.instance_name, is_compiled=chosen.compile is not None)

    def _run_zeros(self, instance_name: str, *, is_compiled: bool) -> None:
        """Run the model on zeros, so that no client waits for what first runs have to do: allocate memory, profile and,
        if configured, compile."""
        inputs = smallest_inputs(self._signature)
        if inputs is None:
            return
        most = self._signature.max_batch_size
        # torch.compile compiles for exactly 1 row in a run of 1 row, and for any number of rows in the next other run.
        sizes = [1, *sorted({2, most})] if is_compiled and most > 1 else [1] * _TIMES
        try:
            for rows in sizes:
                self.run({name: np.repeat(array, rows, axis=0) if most else array for name, array in inputs.items()})
        except ShoalError as error:
            if is_compiled:
                raise InternalError(
                    f"model '{self._signature.name}' could not be compiled by a first run on zeros, give it samples in "
                    f"'model_warmup': {error}"
                ) from error
            _log.info("worker %s: the first run, on zeros, failed: %s", instance_name, error)

    def unload(self) -> None:
        self._program = None

    def of_another_thread(self) -> "PytorchBackend":
        """A backend for another instance that calls the same program, on a GPU in a stream of its own."""
        other = PytorchBackend()
        other._program, other._has_own_stream = self._program, True
        return other

    def run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """The outputs by name. Some are views of PyTorch's memory; outputs computed on a GPU are in page-locked memory.
        Raises InternalError with PyTorch's text if the run fails, InvalidArgumentError if an output does not fit the
        configuration."""
        datatypes = self._datatypes
        return self._run(lambda: {name: self._as_tensor(array, datatypes[name]) for name, array in inputs.items()})

    @property
    def takes_gpu_tensors(self) -> bool:
        """Whether the backend takes inputs where they lie on the GPU: True for an instance on a GPU, except for models
        with ragged or padded batches, which are assembled in host memory."""
        return self._transfers is not None and self.ragged is None and not self.padded_rows

    def keep_outputs_on_gpu(self, pool: GpuPool, regions: Callable[[], CudaRegions]) -> None:
        """Leave outputs on the GPU if all requests of their batch allow that."""
        del pool, regions
        self._keeps_outputs = True

    def execute(self, requests: Sequence[Request], answers: Answers) -> None:
        """Run the batch. Inputs that clients or other models have left on the instance's GPU are copied within the GPU,
        so that the model neither writes into the memory of others nor sees it change."""
        if not self.takes_gpu_tensors or not any(each.parsed.on_gpu or each.parsed.stays for each in requests):
            super().execute(requests, answers)
            return
        requests = joinable(requests, answers)
        if requests:
            answers.input_end_ns = time.monotonic_ns()
            names = set(requests[0].parsed.stays) if self._keeps_outputs else set[str]()
            staying = names.intersection(*[request.parsed.stays for request in requests])
            outputs = self._run(lambda: self._joined(requests), staying)
            answers.output_start_ns = time.monotonic_ns()
            answers.add_batch(requests, outputs)

    def _joined(self, requests: Sequence[Request]) -> dict[str, torch.Tensor | list[bytes]]:
        """The inputs of a batch as tensors on the instance's GPU, copied from the GPU or from host memory."""
        joined: dict[str, torch.Tensor | list[bytes]] = {}
        for name, datatype in self._datatypes.items():
            if name not in requests[0].parsed.inputs:
                continue
            if datatype is BYTES:
                joined[name] = [each for request in requests for each in request.inputs[name].ravel().tolist()]
                continue
            parts: list[torch.Tensor] = []
            for request in requests:
                given: Any = request.inputs[name]
                if isinstance(given, GpuTensor):
                    there = DeviceInput(given, request.parsed.inputs[name][1], datatype)
                    parts.append(from_dlpack(there).clone())
                else:
                    parts.append(cast("torch.Tensor", self._as_tensor(given, datatype)))
            joined[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
        return joined

    def _run(
        self, inputs: Callable[[], dict[str, torch.Tensor | list[bytes]]], staying: Collection[str] = ()
    ) -> dict[str, Array]:
        """The outputs for the tensors that `inputs` returns; outputs named in `staying` are DeviceOutputs. Raises the
        same errors as `run`."""
        assert self._program is not None, "load comes first"
        try:
            with self._guard():
                outputs = self._program(inputs())
                if staying and self._transfers is not None:
                    return self._kept(self._transfers, outputs, staying)
                if self._transfers is not None:
                    outputs = self._transfers.to_host(outputs)
                return {name: self._as_array(name, value) for name, value in outputs.items()}
        except ShoalError:
            raise
        except Exception as error:  # a model's own code, which may raise anything
            raise InternalError(f"PyTorch execute failure: {error}") from error
        finally:
            if self._cleans_cache:
                torch.cuda.empty_cache()

    # -- arrays and tensors -------------------------------------------------------------------------------------------

    def _as_tensor(self, array: Array, datatype: Datatype) -> torch.Tensor | list[bytes]:
        if datatype is BYTES:
            strings: list[bytes] = array.ravel().tolist()
            return strings  # as bytes, not str: strings in TorchScript need not be UTF-8
        # Inputs are copied since a model may write into them, and a client's block is mapped read-only. Inputs that
        # were gathered, or not aligned in the block, are copies already.
        is_copied = array.flags.writeable or isinstance(array.base, bytes) or self._transfers is not None
        words = array if is_copied else array.copy()
        if datatype is BF16:
            tensor = torch.from_numpy(words.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(words)
        memory_format = self._format if tensor.ndim == 4 else torch.preserve_format
        if self._transfers is not None:
            return self._transfers.to_device(tensor, memory_format)
        return tensor.to(self._device, memory_format=memory_format)

    def _as_array(self, name: str, value: object) -> Array:
        """An output as an array, checked against the configuration as in Triton."""
        datatype = self._signature.outputs[name].datatype
        if isinstance(value, list) and datatype is BYTES:
            strings: Array = np.empty(len(value), BYTES.dtype)
            strings[:] = value
            return strings
        if not isinstance(value, torch.Tensor):
            raise InvalidArgumentError(f"output '{name}' must be of type Tensor or List[str].")
        self._check_output(name, value, datatype)
        if datatype is BF16:
            words: Array = value.contiguous().view(torch.int16).numpy(force=True)
            return words.view(datatype.dtype)
        array: Array = value.numpy(force=True)
        return array

    def _kept(self, transfers: Transfers, outputs: Mapping[str, Any], staying: Collection[str]) -> dict[str, Any]:
        """The outputs as arrays, except those in `staying` that the model has left on the GPU: these are
        DeviceOutputs."""
        there = {name for name in staying if transfers.is_there(outputs.get(name))}
        arrived = transfers.to_host({name: value for name, value in outputs.items() if name not in there})
        arrays: dict[str, Any] = {name: self._as_array(name, value) for name, value in arrived.items()}
        return arrays | {name: self._as_device_output(transfers, name, outputs[name]) for name in there}

    def _as_device_output(self, transfers: Transfers, name: str, value: torch.Tensor) -> DeviceOutput:
        """An output that stays on the GPU, checked against the configuration like any other output."""
        datatype, value = self._signature.outputs[name].datatype, value.contiguous()
        self._check_output(name, value, datatype)
        host: Callable[[], Array] = lambda: self._as_array(name, transfers.to_host({name: value})[name])  # noqa: E731
        return DeviceOutput(value.data_ptr(), tuple(value.shape), datatype.dtype, value.nbytes, host, value)

    @staticmethod
    def _check_output(name: str, value: torch.Tensor, datatype: Datatype) -> None:
        provided = f"TYPE_{TYPES.get(value.dtype, value.dtype)}"
        if provided != datatype.config_name:
            raise InvalidArgumentError(
                f"configuration expects datatype {datatype.config_name} for output '{name}', model provides {provided}"
            )
        if value.ndim == 0:
            raise InvalidArgumentError(f"output '{name}' is a scalar which is not supported.")


def _torch_device(model: BackendModel, device: Device) -> torch.device | None:
    if device.kind == "KIND_CPU":
        return torch.device("cpu")
    if device.kind == "KIND_MODEL":
        return None
    if not torch.cuda.is_available():
        raise UnsupportedError(
            f"model '{model.name}', instance '{model.instance_name}' is of kind {device.kind}, and this PyTorch "
            f"({torch.__version__}) sees no GPU. Install a build for CUDA, or configure KIND_CPU"
        )
    # If CUDA_VISIBLE_DEVICES leaves the process only one GPU, the GPU's number in the process is 0.
    return torch.device("cuda", device.id if device.id < torch.cuda.device_count() else 0)


def _set_up_process(chosen: PytorchSettings) -> None:
    """Apply the settings that PyTorch has only per process, which is enough: a worker has one model."""
    torch.set_num_threads(chosen.intra_op_num_threads)
    if torch.get_num_interop_threads() != chosen.inter_op_num_threads:
        torch.set_num_interop_threads(chosen.inter_op_num_threads)
    torch.backends.cudnn.enabled = chosen.cudnn
    # PyTorch's warning is wrong here: the array is a copy that may be written to, see _as_tensor.
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
