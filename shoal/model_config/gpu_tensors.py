"""Which models can leave tensors on a GPU for each other. Pure; used by the batcher, for ensembles, and by models that
call others."""

from shoal.model_config.messages import Config
from shoal.model_config.parameters import parameter
from shoal.model_config.python_backends import runs_on

#: Stands for no GPU, in place of a GPU's number.
NO_GPU = -1
_FORCE_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"  # Triton's


def gpu_of_inputs(config: Config) -> int:
    """The server's number of the GPU on which all instances of a model take inputs in place; NO_GPU if there is none.
    The configuration is finished."""
    backend = runs_on(config)
    takes = backend == "pytorch" or (backend == "python" and parameter(config, _FORCE_CPU) == "no")
    return only_gpu(config) if takes else NO_GPU


def only_gpu(config: Config) -> int:
    """The server's number of the GPU on which all instances of a model are; NO_GPU if they are on several, or on none:
    a tensor that stays on one of several would be out of reach of the instances on the others."""
    groups = config.get("instance_group", [])
    gpus = {gpu for group in groups for gpu in group["gpus"] if group["kind"] == "KIND_GPU"}
    if len(gpus) != 1 or any(group["kind"] != "KIND_GPU" or not group["gpus"] for group in groups):
        return NO_GPU
    (gpu,) = gpus
    return int(gpu)
