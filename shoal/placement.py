"""Placements: the worker processes of a model and the cores of each, from its instance groups and the machine.

Pure: the machine's resources are an argument, and no process is pinned here: each worker pins itself. Runs in the
supervisor. Names, kinds and sentences are those of Triton's instance groups.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.errors import InvalidArgumentError
from shoal.model_config.rate_limiter import Demand
from shoal.model_config.shared_process import instances_share_process

#: The variables of libraries that otherwise start a thread per core.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_DEFAULT_POLICIES = {"KIND_CPU": "cpu", "KIND_MODEL": "model"}


class Gpu(NamedTuple):
    """A GPU that the server may use."""

    id: int  # Triton's number: the index among the GPUs that the server sees
    uuid: str
    compute_capability: str  # "8.0"
    cores: tuple[int, ...]  # the server's cores beside this GPU; at least one


class Machine(NamedTuple):
    """The machine's resources for instances."""

    cores: tuple[int, ...]  # that the server may use, at least one
    gpus: tuple[Gpu, ...] = ()
    policies: Mapping[str, tuple[int, ...]] = {}  # --host-policy: its name → cores, at least one
    min_compute_capability: float = 6.0  # the least that a GPU needs to be in `gpus`; Triton's default
    cpu_backends: frozenset[str] = frozenset()  # backends whose installed packages are built without CUDA

    def gpu_ids(self, backend: str) -> tuple[int, ...]:
        """The GPUs that KIND_AUTO may choose for a model of this backend."""
        return () if backend in self.cpu_backends else tuple(gpu.id for gpu in self.gpus)


class Placement(NamedTuple):
    """The placement of one instance, and of its worker process. Instances of one number on several GPUs share a name,
    as in Triton."""

    instance_name: str  # "simple_0_1": group, number in the group
    group: str
    kind: str  # "KIND_CPU", "KIND_GPU", or "KIND_MODEL": the model finds its device itself
    device_id: int  # the GPU; 0 on the CPU, as Triton's backends get it
    cores: tuple[int, ...]  # at least one, in the order in which they were offered
    gpu: Gpu | None = None  # the GPU, with KIND_GPU
    demand: Demand = Demand()  # of the rate limiter's resources, under --rate-limit
    process_cores: tuple[int, ...] = ()  # of all instances in the process; empty: the process has one instance

    @property
    def process(self) -> tuple[str, str, int]:
        """The fields that placements of instances in one process have in common."""
        return self.group, self.kind, self.device_id

    @property
    def identity(self) -> tuple[str, str, int, Demand]:
        """The fields that stay equal when the worker gets another placement: only its cores may change."""
        return self.instance_name, self.kind, self.device_id, self.demand


class _Instance(NamedTuple):
    name: str
    group: str
    kind: str
    gpu: Gpu | None
    pool: tuple[int, ...]  # the cores that all instances with this pool share
    demand: Demand


def place(config: Mapping[str, Any], machine: Machine) -> tuple[Placement, ...]:
    """One Placement per instance of the model, in the order of its instance groups.

    `config` is normalised and placed: groups are named and counted, and none is KIND_AUTO. The instances of the model
    divide the cores of their pool evenly, or share them, one each, where there are too few. A pool is what the group's
    host policy chooses, else the cores beside the GPU, else all. Raises InvalidArgumentError where the machine lacks
    what a group asks for.
    """
    instances = [instance for group in config["instance_group"] for instance in _instances(config, group, machine)]
    counts = Counter(instance.pool for instance in instances)
    numbers: Counter[tuple[int, ...]] = Counter()
    placements = []
    for name, group, kind, gpu, pool, demand in instances:
        cores = share_of_cores(numbers[pool], counts[pool], pool)
        numbers[pool] += 1
        placements.append(Placement(name, group, kind, gpu.id if gpu else 0, cores, gpu, demand))
    return _sharing(placements) if instances_share_process(config) else tuple(placements)


def _sharing(placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """Placements of instances that share processes, each with the cores of its whole process."""
    cores: dict[tuple[str, str, int], set[int]] = {}
    for placement in placements:
        cores.setdefault(placement.process, set()).update(placement.cores)
    return tuple(each._replace(process_cores=tuple(sorted(cores[each.process]))) for each in placements)


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
    """The environment variables of a worker pinned to `num_cores` cores, for numerical libraries that it imports."""
    return dict.fromkeys(_THREAD_VARIABLES, str(num_cores))


def _instances(config: Mapping[str, Any], group: Mapping[str, Any], machine: Machine) -> Iterator[_Instance]:
    kind = group["kind"]
    for gpu in _devices(config["name"], group, kind, machine):
        # Triton's names of the default policies of a group.
        policy = group["host_policy"] or (f"gpu_{gpu.id}" if gpu else _DEFAULT_POLICIES[kind])
        pool = machine.policies.get(policy) or (gpu.cores if gpu else machine.cores)
        demand = Demand.of(group, gpu.id if gpu else 0)
        for number in range(max(1, group["count"])):  # 0 is Triton's "not set"; the count is per GPU
            yield _Instance(f"{group['name']}_{number}", group["name"], kind, gpu, pool, demand)


def _devices(model: str, group: Mapping[str, Any], kind: str, machine: Machine) -> Sequence[Gpu | None]:
    subject = f"instance group {group['name']} of model {model}"
    wanted: Sequence[int] = group["gpus"]
    if kind != "KIND_GPU":
        if wanted:
            raise InvalidArgumentError(f"{subject} has kind {kind} but specifies one or more GPUs")
        return (None,)
    if not machine.gpus:
        raise InvalidArgumentError(f"{subject} has kind KIND_GPU but no GPUs are available")
    known = {gpu.id: gpu for gpu in machine.gpus}
    for gpu in wanted:
        if gpu not in known:
            raise InvalidArgumentError(
                f"{subject} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required "
                f"CUDA compute compatibility of {machine.min_compute_capability:f} are: {', '.join(map(str, known))}"
            )
    return [known[gpu] for gpu in wanted] or machine.gpus
