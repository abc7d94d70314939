"""The machine's resources for model instances: cores, GPUs with the cores beside them, and the cores of host policies.

The resources are read once, when the server starts. GPUs, and their parts under MIG, are listed by NVIDIA's library
(nvidia-ml-py, the extra gpu-metrics), else by nvidia-smi, which comes with the driver; by neither where no part of the
driver is found. Neither way makes a CUDA context. Runs in the supervisor.
"""

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import InvalidArgumentError
from shoal.nvml import has_library, load_nvml
from shoal.options import HostPolicy, ServerOptions
from shoal.placement import Gpu, Machine, format_cores

_log = logging.getLogger(__name__)

#: Paths of which one usually exists where NVIDIA's driver is loaded (a sandbox may hide all three). The last is WSL's.
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))
_NVIDIA_SMI = ("--query-gpu=uuid,pci.bus_id,compute_cap", "--format=csv,noheader")
#: Lines of `nvidia-smi -L`: a GPU, and below it each of its parts.
_LISTED_GPU = re.compile(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)")
_LISTED_PART = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
#: The most seconds that nvidia-smi may take (ours): where no other program uses the driver, each GPU is initialised
#: first, which takes seconds per GPU.
_NVIDIA_SMI_S = 60
_COMPUTE_CAPABILITY = re.compile(r"[0-9]+\.[0-9]+")
#: The file of the package onnxruntime that runs models on CUDA.
_ONNXRUNTIME_CUDA = "capi/libonnxruntime_providers_cuda.so"


class Listed(NamedTuple):
    """A GPU, or a part of one under MIG, as the driver lists it."""

    uuid: str
    pci_bus_id: str
    compute_capability: str  # "9.0"; for a GPU that cannot be used, the driver's error


def find_machine(
    options: ServerOptions, environ: Mapping[str, str], cores: Sequence[int], sys: Path = Path("/sys")
) -> Machine:
    """The machine's resources; of its cores only those in `cores`. Raises InvalidArgumentError for a host policy that
    cannot be followed."""
    policies = {name: policy_cores(name, policy, cores, sys) for name, policy in options.host_policy.items()}
    gpus: list[Gpu] = []
    for number, listed in enumerate(list_gpus(environ)):
        if not _COMPUTE_CAPABILITY.fullmatch(listed.compute_capability):
            _log.warning(
                "GPU %d (%s) does not tell its compute capability, but '%s': it is not used",
                number, listed.uuid or "without UUID", listed.compute_capability,
            )  # fmt: skip
            continue
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
    on_cpu = {backend: reason for backend, why in _WHY_ON_CPU.items() if (reason := why())} if gpus else {}
    for backend, reason in on_cpu.items():
        _log.info("KIND_AUTO means KIND_CPU for backend '%s': %s", backend, reason)
    return Machine(tuple(cores), tuple(gpus), policies, options.min_supported_compute_capability, frozenset(on_cpu))


# -- GPUs -------------------------------------------------------------------------------------------------------------


def list_gpus(environ: Mapping[str, str]) -> list[Listed]:
    """The GPUs that the driver lists and CUDA_VISIBLE_DEVICES leaves, in CUDA's order; empty without a driver."""
    return seen_by_cuda(_listed(), environ.get("CUDA_VISIBLE_DEVICES"))


def _listed() -> list[Listed]:
    # Without anything of NVIDIA's driver, the import of nvidia-ml-py (36 ms) is saved.
    if not (any(path.exists() for path in _DRIVERS) or shutil.which("nvidia-smi") is not None or has_library()):
        return []
    return list_by_nvml(load_nvml()) or _list_by_nvidia_smi()


def list_by_nvml(nvml: Any) -> list[Listed]:
    """The GPUs in PCI order, one with MIG as its parts; empty without NVIDIA's library. A GPU that reports an error
    keeps its place."""
    if nvml is None:
        return []
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        _log.warning("NVIDIA's library does not list the GPUs: %s", error)
        return []
    return [listed for index in range(count) for listed in _listed_by_nvml(nvml, index)]


def _listed_by_nvml(nvml: Any, index: int) -> list[Listed]:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        whole = Listed(nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetPciInfo(handle).busId, f"{major}.{minor}")
    except nvml.NVMLError as error:
        return [Listed("", "", str(error))]
    parts = _parts_by_nvml(nvml, handle)
    return [whole] if parts is None else [whole._replace(uuid=uuid) for uuid in parts]


def _parts_by_nvml(nvml: Any, handle: Any) -> list[str] | None:
    """The UUIDs of the parts of a GPU with MIG, which CUDA does not use as a whole; None for a GPU without MIG."""
    try:
        is_divided = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        num_places = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if is_divided else 0
    except nvml.NVMLError:  # a GPU, or a driver, that knows no MIG
        return None
    if not is_divided:
        return None
    parts = []
    for place in range(num_places):
        try:
            parts.append(str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))))
        except nvml.NVMLError:  # the GPU has no part in this place
            continue
    return parts


def _list_by_nvidia_smi() -> list[Listed]:
    """The GPUs as nvidia-smi prints them; empty where there is no such program, or it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        printed, tree = (
            subprocess.run(
                [program, *arguments], capture_output=True, text=True, timeout=_NVIDIA_SMI_S, check=True
            ).stdout
            for arguments in (_NVIDIA_SMI, ("-L",))
        )
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("nvidia-smi is there and fails, so no GPU is used: %s", error)
        return []
    return list(read_nvidia_smi(printed, tree))


def read_nvidia_smi(text: str, tree: str) -> Iterator[Listed]:
    """The GPUs in nvidia-smi's answer to a query, a GPU with MIG as its parts; a line that names no GPU is skipped.

    `tree` is what `nvidia-smi -L` prints, which alone has the parts.
    """
    parts: dict[str, list[str]] = {}
    gpu = ""
    for line in tree.splitlines():
        if match := _LISTED_GPU.match(line):
            gpu = match[1]
        elif match := _LISTED_PART.match(line):
            parts.setdefault(gpu, []).append(match[1])
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[0].startswith("GPU-"):
            whole = Listed(*fields)
            yield from (whole._replace(uuid=uuid) for uuid in parts.get(whole.uuid, (whole.uuid,)))


def seen_by_cuda(listed: Sequence[Listed], visible: str | None) -> list[Listed]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves: numbers or beginnings of UUIDs, up to the first that names none.

    Numbers count by PCI address, as with CUDA_DEVICE_ORDER=PCI_BUS_ID. The parts of a GPU with MIG count as GPUs here,
    of which CUDA would show a process the first one only; the server gives each worker the UUID of its own.
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
            break  # as in CUDA, the entries from here on are ignored
        seen += matching
    return seen


def _why_onnxruntime_is_on_cpu() -> str:
    """Why onnxruntime cannot use CUDA; empty where it can, whatever distribution has installed it."""
    import importlib.util

    if _version("onnxruntime-gpu"):
        return ""
    package = importlib.util.find_spec("onnxruntime")  # find_spec does not import the package
    for directory in (package and package.submodule_search_locations) or ():
        if Path(directory, _ONNXRUNTIME_CUDA).exists():
            return ""
    return f"the package onnxruntime-gpu is not installed, and no onnxruntime with {_ONNXRUNTIME_CUDA}"


def _why_torch_is_on_cpu() -> str:
    """Why PyTorch cannot use CUDA; empty where it can. PyTorch's version decides, not the packages that it requires."""
    version = _version("torch")
    if not version:
        return "the package torch is not installed"
    return f"torch {version} was built without CUDA" if version.endswith("+cpu") else ""


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # imported here: the import takes 14 ms

    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


#: Backends whose packages exist with CUDA and without → why the one installed cannot use it.
_WHY_ON_CPU = {"onnxruntime": _why_onnxruntime_is_on_cpu, "pytorch": _why_torch_is_on_cpu}


# -- cores ------------------------------------------------------------------------------------------------------------


def cores_beside(pci_bus_id: str, cores: Sequence[int], sys: Path) -> tuple[int, ...]:
    """The cores, of `cores`, in the NUMA node of a PCI device; all where that is unknown or has none of them."""
    # NVIDIA writes the domain with eight digits and in capitals, the kernel with four.
    domain, _, rest = pci_bus_id.lower().partition(":")
    try:
        text = (sys / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "local_cpulist").read_text()
    except OSError:
        return tuple(cores)
    return _among(read_cores(text), cores) or tuple(cores)


def policy_cores(name: str, policy: HostPolicy, cores: Sequence[int], sys: Path) -> tuple[int, ...]:
    """The cores that a host policy chooses of `cores`. Raises InvalidArgumentError where none of `cores` is chosen."""
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
    """A list of cores as the kernel writes it: `0-3,8` → {0, 1, 2, 3, 8}; empty for an empty text."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


def _among(chosen: Collection[int], cores: Sequence[int]) -> tuple[int, ...]:
    return tuple(core for core in cores if core in chosen)


def server_cores() -> tuple[int, ...]:
    """The cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))
