"""What the machine has for instances: cores, GPUs with the cores beside them, and the cores of host policies.

Looked at once, when the server starts. NVIDIA's library tells of the GPUs (nvidia-ml-py, the extra gpu-metrics), else
nvidia-smi, which comes with the driver; where no driver is loaded neither is asked. Neither makes a CUDA context. Runs
in the supervisor.
"""

import importlib.metadata
import logging
import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import InvalidArgumentError
from shoal.frontend.metrics.gpu import load_nvml
from shoal.options import HostPolicy, ServerOptions
from shoal.placement import Gpu, Machine, format_cores

_log = logging.getLogger(__name__)

#: One of these is there where NVIDIA's driver is loaded; the second one under WSL.
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))
_NVIDIA_SMI = ("--query-gpu=uuid,pci.bus_id,compute_cap", "--format=csv,noheader")
#: nvidia-smi loads the driver's state anew where nothing else holds it, which takes seconds per GPU (ours).
_NVIDIA_SMI_S = 60
#: Backend → its distribution, and how the requirement begins that only a build with CUDA has; "": it is that build.
_WITH_CUDA = {"onnxruntime": ("onnxruntime-gpu", ""), "pytorch": ("torch", "nvidia-")}


class Listed(NamedTuple):
    """A GPU as the driver lists it."""

    uuid: str
    pci_bus_id: str
    compute_capability: str


def find_machine(
    options: ServerOptions, environ: Mapping[str, str], cores: Sequence[int], sys: Path = Path("/sys")
) -> Machine:
    """What there is, of `cores`. Raises InvalidArgumentError for a host policy that this machine cannot follow."""
    policies = {name: policy_cores(name, policy, cores, sys) for name, policy in options.host_policy.items()}
    gpus: list[Gpu] = []
    visible = seen_by_cuda(_listed(), environ.get("CUDA_VISIBLE_DEVICES"))
    for number, listed in enumerate(visible):
        if float(listed.compute_capability) < options.min_supported_compute_capability:
            _log.warning(
                "GPU %d (%s) has compute capability %s, less than --min-supported-compute-capability=%g: it is not "
                "used", number, listed.uuid, listed.compute_capability, options.min_supported_compute_capability,
            )  # fmt: skip
            continue
        beside = cores_beside(listed.pci_bus_id, cores, sys)
        gpus.append(Gpu(number, listed.uuid, listed.compute_capability, beside))
        _log.info(
            "GPU %d: %s, compute capability %s, beside cores %s",
            number, listed.uuid, listed.compute_capability, format_cores(beside),
        )  # fmt: skip
    cpu_backends = frozenset(backend for backend in _WITH_CUDA if not _has_cuda(backend)) if gpus else frozenset[str]()
    return Machine(tuple(cores), tuple(gpus), policies, options.min_supported_compute_capability, cpu_backends)


# -- GPUs -------------------------------------------------------------------------------------------------------------


def _listed() -> list[Listed]:
    if not any(path.exists() for path in _DRIVERS):
        return []
    return list_by_nvml(load_nvml()) or _list_by_nvidia_smi()


def list_by_nvml(nvml: Any) -> list[Listed]:
    """The GPUs by their PCI addresses; none where there is no library."""
    found = []
    for index in range(nvml.nvmlDeviceGetCount() if nvml else 0):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
        found.append(Listed(nvml.nvmlDeviceGetUUID(handle), bus_id, f"{major}.{minor}"))
    return found


def _list_by_nvidia_smi() -> list[Listed]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, *_NVIDIA_SMI], capture_output=True, text=True, timeout=_NVIDIA_SMI_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("NVIDIA's driver is loaded, but nvidia-smi fails, so no GPU is used: %s", error)
        return []
    return list(read_nvidia_smi(done.stdout))


def read_nvidia_smi(text: str) -> Iterator[Listed]:
    """The GPUs in what nvidia-smi prints; a line that names none is passed over."""
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[0].startswith("GPU-"):
            yield Listed(*fields)


def seen_by_cuda(listed: Sequence[Listed], visible: str | None) -> list[Listed]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order: numbers or beginnings of UUIDs, up to one that names none.

    Numbers count by PCI address, as with CUDA_DEVICE_ORDER=PCI_BUS_ID. A GPU of which it names a part (MIG-…) is left
    out: which one that is, only CUDA could say.
    """
    if visible is None:
        return list(listed)
    seen: list[Listed] = []
    for entry in filter(None, map(str.strip, visible.split(","))):
        if entry.isdecimal():
            matching = list(listed[int(entry) : int(entry) + 1])
        else:
            matching = [gpu for gpu in listed if gpu.uuid.startswith(entry)]
        if len(matching) != 1:
            break  # CUDA's rule
        seen += matching
    return seen


def _has_cuda(backend: str) -> bool:
    distribution, requirement = _WITH_CUDA[backend]
    try:
        required = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return False
    return not requirement or any(each.startswith(requirement) for each in required)


# -- cores ------------------------------------------------------------------------------------------------------------


def cores_beside(pci_bus_id: str, cores: Sequence[int], sys: Path) -> tuple[int, ...]:
    """Those of `cores` that are in the NUMA node of a PCI device; all where that is not known, or none of them is."""
    # NVIDIA writes the domain with eight digits and in capitals, the kernel with four.
    domain, _, rest = pci_bus_id.lower().partition(":")
    try:
        text = (sys / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "local_cpulist").read_text()
    except OSError:
        return tuple(cores)
    return _among(read_cores(text), cores) or tuple(cores)


def policy_cores(name: str, policy: HostPolicy, cores: Sequence[int], sys: Path) -> tuple[int, ...]:
    """The cores that a host policy chooses of `cores`. Raises InvalidArgumentError where there are none."""
    chosen = tuple(cores)
    if policy.cpu_cores:
        chosen = _among(policy.cpu_cores, chosen)
    if policy.numa_node is not None:
        try:
            text = (sys / f"devices/system/node/node{policy.numa_node}/cpulist").read_text()
        except OSError:
            raise InvalidArgumentError(
                f"--host-policy={name},numa-node={policy.numa_node}: this machine has no such NUMA node"
            ) from None
        chosen = _among(read_cores(text), chosen)
    if not chosen:
        raise InvalidArgumentError(
            f"--host-policy {name} leaves no core: the server may use {format_cores(cores)}; choose some of them"
        )
    return chosen


def read_cores(text: str) -> set[int]:
    """The kernel's lists: `0-3,8` → {0, 1, 2, 3, 8}; nothing for an empty one."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def _among(chosen: Collection[int], cores: Sequence[int]) -> tuple[int, ...]:
    return tuple(core for core in cores if core in chosen)


def server_cores() -> tuple[int, ...]:
    """Those that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))
