"""The facts about this machine and installation that `shoal doctor` judges. Reads, and changes nothing.

No framework is imported: the versions are those of the installed distributions.
"""

import errno
import os
import platform
import resource
import socket
import time
from collections.abc import Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from shoal import interpreter
from shoal.version import __version__

#: Backend → the distributions that bring its framework, likeliest first, and the extra of Shoal that installs one.
_FRAMEWORKS: dict[str, tuple[tuple[str, ...], str]] = {
    "onnxruntime": (("onnxruntime-gpu", "onnxruntime"), "onnx"),
    "pytorch": (("torch",), "torch"),
    "tensorrt": (("tensorrt",), "tensorrt"),
    "openvino": (("openvino",), "openvino"),
    "tensorflow": (("tensorflow", "tensorflow-cpu"), "tensorflow"),
    "fil": (("treelite",), "fil"),
}
#: How often the clock is read, to find the time of the quickest read.
_NUM_LOOKS = 1000


class Framework(NamedTuple):
    """The distribution of a backend's framework; `version` is "" where none is installed."""

    distribution: str
    version: str
    extra: str  # the extra of Shoal that installs the distribution


class MachineFacts(NamedTuple):
    """The facts that were read of the machine, the installation, and the ports where a server would listen."""

    shoal: str
    python: str
    is_profile_guided: bool
    frameworks: Mapping[str, Framework]  # by backend
    kernel: str  # the kernel's release
    kernel_lack: str  # what the kernel refuses that a server needs, and what to do; "": nothing
    cores: tuple[int, ...]
    cpu_quota: float | None  # cores' worth of time that the control group grants; None: no limit
    available_nbytes: int
    overcommit: int  # vm.overcommit_memory
    dev_shm_nbytes: int | None  # free bytes; None: there is no /dev/shm that can be written
    descriptors: int  # the hard limit of open descriptors
    low_limit: str  # a limit of processes or address space that keeps a server from starting; "": none
    clock_ns: int
    gpus: str
    ports: Mapping[str, tuple[int, int]]  # service → port, and the errno for which it cannot be bound (0: it can)
    is_served: bool  # a model server answers at the HTTP port


def read_facts(ports: Mapping[str, int], environ: Mapping[str, str]) -> MachineFacts:
    """The facts about this machine; `ports` are those at which a server would listen, by service."""
    from shoal.supervisor.control_groups import cpu_quota
    from shoal.supervisor.kernel import find_lack
    from shoal.supervisor.process_limits import address_space_nbytes, find_low_limit, num_tasks_left

    bindable = {name: (port, _why_not_bindable(port)) for name, port in ports.items()}
    return MachineFacts(
        shoal=__version__,
        python=f"{interpreter.describe()} ({os.path.realpath('/proc/self/exe')})",
        is_profile_guided=interpreter.is_profile_guided(),
        frameworks={backend: _framework(*row) for backend, row in _FRAMEWORKS.items()},
        kernel=platform.release(),
        kernel_lack=find_lack(),
        cores=tuple(sorted(os.sched_getaffinity(0))),
        cpu_quota=cpu_quota(),
        available_nbytes=_available_nbytes(),
        overcommit=_number(Path("/proc/sys/vm/overcommit_memory")),
        dev_shm_nbytes=_dev_shm_nbytes(),
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        low_limit=find_low_limit(num_tasks_left(), address_space_nbytes()),
        clock_ns=_clock_ns(),
        gpus=_gpus(environ),
        ports=bindable,
        is_served=bool(bindable["http"][1]) and _is_served(ports["http"]),
    )


def _framework(distributions: tuple[str, ...], extra: str) -> Framework:
    from importlib.metadata import PackageNotFoundError, version

    for distribution in distributions:
        try:
            return Framework(distribution, version(distribution), extra)
        except PackageNotFoundError:
            continue
    return Framework(distributions[-1], "", extra)


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _available_nbytes() -> int:
    from shoal.supervisor.memory.available_memory import available_nbytes

    try:
        return available_nbytes()
    except OSError:  # /proc is not mounted
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _dev_shm_nbytes() -> int | None:
    if not os.access("/dev/shm", os.W_OK | os.X_OK):
        return None
    status = os.statvfs("/dev/shm")
    return status.f_bavail * status.f_frsize


def _clock_ns() -> int:
    looks = [time.monotonic_ns() for _ in range(_NUM_LOOKS)]
    return min(later - earlier for earlier, later in pairwise(looks))


def _gpus(environ: Mapping[str, str]) -> str:
    from shoal.supervisor.machine import list_gpus

    listed = list_gpus(environ)
    if not listed:
        return "none (no NVIDIA driver is loaded, or CUDA_VISIBLE_DEVICES hides them)"
    return ", ".join(f"{number}: compute capability {gpu.compute_capability}" for number, gpu in enumerate(listed))


def _why_not_bindable(port: int) -> int:
    """The errno for which a server on this machine could not listen at a port; 0 if it could."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno or errno.EINVAL
    return 0


def _is_served(port: int) -> bool:
    from shoal.cli.remote import NoResponseError, RefusedError, RemoteServer

    with closing(RemoteServer(f"http://127.0.0.1:{port}", timeout_s=5.0, headers={})) as server:
        try:
            server.index()
        except RefusedError:
            return True
        except NoResponseError:
            return False
    return True
