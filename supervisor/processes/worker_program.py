"""The program of an instance's process: a worker, or one that makes a Python environment and then becomes a worker;
and the message with the model to load. Runs in the supervisor.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shoal.control import ADDRESS_VARIABLE
from shoal.environments.wanted import wanted
from shoal.messages.from_worker import ModelIOFound
from shoal.messages.message import MessageError
from shoal.messages.to_worker import LoadModel
from shoal.model_config.autocomplete import IOTensor, ModelIO
from shoal.model_config.execution_timeout import execution_limit_ms
from shoal.model_config.idempotence import may_run_again
from shoal.model_config.python_backends import runs_on
from shoal.placement import Placement, thread_environment
from shoal.repository.lifecycle import ModelVersion
from shoal.repository.torchserve.torch_use import uses_torch
from shoal.supervisor.instance_context import InstanceContext
from shoal.supervisor.processes.children import ChildProgram
from shoal.supervisor.processes.cores import worker_spin_ns
from shoal.supervisor.processes.zygotes import TORCHSERVE_WITH_TORCH


def worker_program(
    number: int, version: ModelVersion, placement: Placement, context: InstanceContext, *, has_low_priority: bool
) -> tuple[str, ChildProgram]:
    """The kind of zygote that can fork the process ("" for none), and the process's program."""
    options, name = context.options, placement.instance_name
    variables = {
        ADDRESS_VARIABLE: context.control_address,
        "SHOAL_INSTANCE": str(number),
        **thread_environment(len(placement.cores)),
    }
    if placement.gpu is not None:
        variables["CUDA_VISIBLE_DEVICES"] = placement.gpu.uuid  # the process sees it alone, as number 0
    if placement.kind != "KIND_CPU":
        variables |= context.mps_environment
    own = wanted(
        version.version_dir,
        version.config,
        Path(options.backend_directory),
        install_requirements=options.install_requirements,
    )
    kind, module = "", ["shoal.workers.worker"]
    if own is None:
        kind = _kind(version)
    else:
        from shoal.environments import enter  # imported here: few models have an environment of their own
        from shoal.environments.cache import cache_directory

        directory = cache_directory(options.environment_cache_directory, os.environ)
        module = enter.program(own, version.name, name, directory, context.log_settings)
    return kind, ChildProgram(f"worker {name}", module, variables, runs_model=True, has_low_priority=has_low_priority)


def _kind(version: ModelVersion) -> str:
    """The kind of zygote for a worker without an environment of its own: its backend's."""
    kind = runs_on(version.config)
    return TORCHSERVE_WITH_TORCH if kind == "torchserve" and uses_torch(version.version_dir, version.config) else kind


def load_message(
    version: ModelVersion, placement: Placement, model_file: Path | None, context: InstanceContext
) -> LoadModel:
    """The first message to the worker of an instance."""
    return LoadModel(
        name=version.name,
        version=version.version,
        version_dir=str(version.version_dir),
        model_file=str(model_file or ""),
        config=version.config,
        is_config_final=version.is_config_final,
        may_run_again=may_run_again(version.config),
        instance_name=placement.instance_name,
        kind=placement.kind,
        device_id=0,
        gpu=placement.device_id,
        gpu_pool_nbytes=_gpu_pool_nbytes(placement, context),
        cores=list(placement.cores),
        backend_config=context.options.backend_settings(version.config["backend"]),
        log=context.log_settings,
        execution_timeout_ms=execution_limit_ms(version.config, context.options.model_execution_timeout_secs),
        spin_ns=worker_spin_ns(context.options, placement),
        process_cores=list(placement.process_cores),
    )


def _gpu_pool_nbytes(placement: Placement, context: InstanceContext) -> int:
    """The size of a worker's pool on its GPU; 0 for instances that share a process: CUDA opens no handle of a pool in
    the process that has made it, and a thread's outputs may be another thread's inputs."""
    if placement.kind != "KIND_GPU" or placement.process_cores:
        return 0
    return context.options.gpu_pool_nbytes(placement.device_id)


def reported_model_io(message: ModelIOFound) -> ModelIO:
    """The tensors of a model's file, from the report of the worker that has read it. Raises MessageError for a report
    of anything else."""
    try:
        inputs, outputs = (tuple(map(_tensor, side)) for side in (message.inputs, message.outputs))
    except (TypeError, ValueError) as error:
        raise MessageError(f"a report of tensors that cannot be read: {error}") from error
    return ModelIO(inputs, outputs, message.completed, message.fills_max_batch_size)


def _tensor(reported: Sequence[Any]) -> IOTensor:
    """One tensor of a report. Raises TypeError or ValueError if it is malformed."""
    name, data_type, dims = reported
    if not all(type(each) is str for each in (name, data_type)) or not all(type(dim) is int for dim in dims):
        raise TypeError(f"no name, datatype and dims: {reported!r}")
    return IOTensor(name, data_type, tuple(dims))
