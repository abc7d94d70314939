"""Which worker processes a model gets, and where each runs: instance_group + GPUs + cores → one Placement per worker.

Pure: what the machine has comes in as arguments. It decides, it pins nothing: the worker pins itself. Runs in the
supervisor. Names, kinds and sentences are those of Triton's model configuration, instance groups.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.errors import InvalidArgumentError

#: Every library that starts a thread per core unless told otherwise.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_MIN_COMPUTE_CAPABILITY = "6.000000"  # Triton's --min-supported-compute-capability, as it prints it


class Placement(NamedTuple):
    """One worker process. Instances of one number on several GPUs share a name, as they do in Triton."""

    instance_name: str  # "simple_0_1": group, number in the group
    group: str
    kind: str  # "KIND_CPU", "KIND_GPU", or "KIND_MODEL": the model finds its device itself
    device_id: int  # the GPU; 0 on the CPU, as Triton tells its backends
    cores: tuple[int, ...]  # at least one, in the order they were offered


class _Instance(NamedTuple):
    name: str
    group: str
    kind: str
    device_id: int


def place(config: Mapping[str, Any], *, cores: Sequence[int], num_gpus: int) -> tuple[Placement, ...]:
    """One Placement per worker of the model, in the order of its instance groups.

    `config` is normalised: groups are named and counted. `cores` are those the server may use, at least one; the
    instances of the model divide them evenly, or share them one each where there are not enough.
    Raises InvalidArgumentError where a group asks for what the machine lacks.
    """
    assert cores
    instances = [instance for group in config["instance_group"] for instance in _instances(config, group, num_gpus)]
    return tuple(
        Placement(*instance, share_of_cores(number, len(instances), cores)) for number, instance in enumerate(instances)
    )


def share_of_cores(number: int, count: int, cores: Sequence[int]) -> tuple[int, ...]:
    """The cores of instance `number` of `count`: a contiguous slice, since neighbours share caches and memory."""
    available = len(cores)
    if count >= available:
        return (cores[number % available],)
    return tuple(cores[number * available // count : (number + 1) * available // count])


def format_cores(cores: Sequence[int]) -> str:
    """Core numbers as taskset writes them: 0-3,6."""
    ranges: list[list[int]] = []
    for core in sorted(cores):
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def thread_environment(num_cores: int) -> dict[str, str]:
    """What a worker pinned to `num_cores` cores needs in its environment before it imports numerical libraries."""
    return dict.fromkeys(_THREAD_VARIABLES, str(num_cores))


def _instances(config: Mapping[str, Any], group: Mapping[str, Any], num_gpus: int) -> Iterator[_Instance]:
    kind = _kind(group, num_gpus)
    for device_id in _devices(config["name"], group, kind, num_gpus):
        for number in range(max(1, group["count"])):  # 0 is Triton's "not set"; the count is per GPU
            yield _Instance(f"{group['name']}_{number}", group["name"], kind, device_id)


def _kind(group: Mapping[str, Any], num_gpus: int) -> str:
    kind: str = group["kind"]
    if kind != "KIND_AUTO":
        return kind
    return "KIND_GPU" if num_gpus and all(gpu in range(num_gpus) for gpu in group["gpus"]) else "KIND_CPU"


def _devices(model: str, group: Mapping[str, Any], kind: str, num_gpus: int) -> Sequence[int]:
    subject = f"instance group {group['name']} of model {model}"
    gpus: Sequence[int] = group["gpus"]
    if kind != "KIND_GPU":
        if gpus:
            raise InvalidArgumentError(f"{subject} has kind {kind} but specifies one or more GPUs")
        return (0,)
    if not num_gpus:
        raise InvalidArgumentError(f"{subject} has kind KIND_GPU but no GPUs are available")
    for gpu in gpus:
        if gpu not in range(num_gpus):
            known = ", ".join(map(str, range(num_gpus)))
            raise InvalidArgumentError(
                f"{subject} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required "
                f"CUDA compute compatibility of {_MIN_COMPUTE_CAPABILITY} are: {known}"
            )
    return gpus or range(num_gpus)
