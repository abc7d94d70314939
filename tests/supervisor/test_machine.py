"""machine.py: what the driver lists, and a machine of two NUMA nodes in a directory."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from shoal import nvml
from shoal.errors import InvalidArgumentError
from shoal.options import HostPolicy, ServerOptions
from shoal.placement import Gpu, Machine
from shoal.supervisor import machine
from shoal.supervisor.machine import (
    Listed,
    cores_beside,
    find_machine,
    list_by_nvml,
    policy_cores,
    read_cores,
    read_nvidia_smi,
    seen_by_cuda,
    server_cores,
)

OLD = Listed("GPU-0aa", "00000000:3B:00.0", "5.2")
A100 = Listed("GPU-1bb", "00000000:5E:00.0", "8.0")
H100 = Listed("GPU-1cc", "00000001:86:00.0", "9.0")
CORES = (0, 1, 2, 3, 8)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Cores 0-3 in one node, with two of the GPUs, 4-9 in the other."""
    for device, cores in {"0000:3b:00.0": "0-3", "0000:5e:00.0": "0-3", "0001:86:00.0": "4-7,8-9"}.items():
        folder = tmp_path / "bus/pci/devices" / device
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text(cores + "\n")
    for node, cores in {"node0": "0-3", "node1": "4-9"}.items():
        folder = tmp_path / "devices/system/node" / node
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cores + "\n")
    return tmp_path


def list_gpus(monkeypatch: pytest.MonkeyPatch, *gpus: Listed) -> None:
    monkeypatch.setattr(machine, "_listed", lambda: list(gpus))


def test_a_machine_with_gpus(sysfs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    list_gpus(monkeypatch, OLD, A100, H100)
    monkeypatch.setattr(machine, "_WHY_ON_CPU", {"pytorch": lambda: "no CUDA", "onnxruntime": lambda: ""})
    options = ServerOptions(host_policy={"night": HostPolicy(numa_node=1)})
    assert find_machine(options, {}, CORES, sysfs) == Machine(
        CORES,
        (Gpu(1, "GPU-1bb", "8.0", (0, 1, 2, 3)), Gpu(2, "GPU-1cc", "9.0", (8,))),
        {"night": (8,)},
        6.0,
        frozenset({"pytorch"}),
    )
    assert "GPU 0 (GPU-0aa) has compute capability 5.2, less than --min-supported-compute-capability=6" in caplog.text


def test_an_odd_gpu_keeps_its_number_and_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    odd = [Listed("GPU-2aa", "", capability) for capability in ("[N/A]", "9", "nan", "9.0.1", "1e3")]
    list_gpus(monkeypatch, Listed("", "", "GPU is lost"), A100, *odd)
    assert [gpu.id for gpu in find_machine(ServerOptions(), {}, CORES).gpus] == [1]
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert warnings[0] == "GPU 0 (without UUID) does not tell its compute capability, but 'GPU is lost': it is not used"
    assert len(warnings) == 6


def test_a_machine_without_a_driver_has_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_DRIVERS", (Path("/no/driver"),))
    monkeypatch.setattr(nvml, "LIBRARY", "/no/library.so.1")
    monkeypatch.setenv("PATH", "/no/programs")
    monkeypatch.setattr(machine, "load_nvml", lambda: pytest.fail("the import is dear, and there is no driver"))
    assert find_machine(ServerOptions(), {}, (0, 1)) == Machine((0, 1))
    assert server_cores()


def test_numbers_of_gpus_are_those_that_the_server_sees(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list_gpus(monkeypatch, OLD, A100, H100)
    found = find_machine(ServerOptions(), {"CUDA_VISIBLE_DEVICES": "2,1"}, CORES, sysfs)
    assert [(gpu.id, gpu.uuid) for gpu in found.gpus] == [(0, "GPU-1cc"), (1, "GPU-1bb")]
    assert found.gpu_ids("identity") == (0, 1)


@pytest.mark.parametrize(
    ("versions", "has_provider", "reasons"),
    [
        ({"torch": "2.9.0", "onnxruntime-gpu": "1.23"}, False, {}),
        ({"torch": "2.9.0a0+nv25.10", "onnxruntime": "1.23"}, True, {}),  # in a container of NVIDIA's
        (
            {"torch": "2.9.0+cpu", "onnxruntime": "1.23"},
            False,
            {
                "onnxruntime": "the package onnxruntime-gpu is not installed, and no onnxruntime with "
                "capi/libonnxruntime_providers_cuda.so",
                "pytorch": "torch 2.9.0+cpu was built without CUDA",
            },
        ),
        ({"onnxruntime-gpu": "1.23"}, False, {"pytorch": "the package torch is not installed"}),
    ],
)
def test_a_package_without_cuda_keeps_kind_auto_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    versions: dict[str, str],
    has_provider: bool,
    reasons: dict[str, str],
) -> None:
    provider = tmp_path / "onnxruntime" / "capi" / "libonnxruntime_providers_cuda.so"
    provider.parent.mkdir(parents=True)
    (tmp_path / "onnxruntime" / "__init__.py").touch()
    if has_provider:
        provider.touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: _version(versions, name))
    list_gpus(monkeypatch, A100)
    with caplog.at_level("INFO"):
        found = find_machine(ServerOptions(), {}, CORES)
    assert found.cpu_backends == reasons.keys()
    assert [found.gpu_ids(backend) for backend in ("pytorch", "tensorrt")] == [
        () if "pytorch" in reasons else (0,),
        (0,),
    ]
    assert caplog.messages[1:] == [
        f"KIND_AUTO means KIND_CPU for backend '{backend}': {reason}" for backend, reason in reasons.items()
    ]


def _version(versions: dict[str, str], name: str) -> str:
    if name not in versions:
        raise importlib.metadata.PackageNotFoundError(name)
    return versions[name]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, (OLD, A100, H100)),
        ("", ()),
        ("-1", ()),
        ("1", (A100,)),
        (" 2 , 0 ", (H100, OLD)),
        ("GPU-0,2", (OLD, H100)),
        ("GPU-1", ()),  # two begin so
        ("0,7,1", (OLD,)),
        ("MIG-5f,0", ()),
    ],
)
def test_cuda_visible_devices(visible: str | None, expected: Sequence[Listed]) -> None:
    assert seen_by_cuda((OLD, A100, H100), visible) == list(expected)


TREE = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1bb)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4)
  MIG 1g.5gb      Device  1: (UUID: MIG-cba6)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1cc)
"""


def test_what_nvidia_smi_prints() -> None:
    printed = "GPU-1bb, 00000000:5E:00.0, 8.0\nGPU-1cc, 00000001:86:00.0, 9.0\nFailed to initialize NVML, a, b\n\n"
    assert list(read_nvidia_smi(printed, "")) == [A100, H100]
    assert list(read_nvidia_smi("No devices were found\n", "No devices found.\n")) == []
    parts = [A100._replace(uuid="MIG-c6d4"), A100._replace(uuid="MIG-cba6"), H100]
    assert list(read_nvidia_smi(printed, TREE)) == parts
    assert seen_by_cuda(parts, "MIG-cb") == parts[1:2]


def test_the_driver_is_found_where_a_sandbox_hides_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_DRIVERS", (Path("/no/driver"),))
    monkeypatch.setattr(nvml, "LIBRARY", "libc.so.6")  # one that can be loaded
    monkeypatch.setenv("PATH", "/no/programs")
    monkeypatch.setattr(machine, "load_nvml", Nvml)
    assert [gpu.uuid for gpu in find_machine(ServerOptions(), {}, (0,)).gpus] == ["GPU-1bb"]


@pytest.mark.parametrize(
    ("script", "expected"),
    [("echo GPU-1bb, 00000000:5E:00.0, 8.0", (A100,)), ("echo no; exit 9", ())],
    ids=["answers", "fails"],
)
def test_nvidia_smi_is_asked_where_the_library_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: Sequence[Listed]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(machine, "_DRIVERS", (tmp_path,))
    assert [gpu.uuid for gpu in find_machine(ServerOptions(), {}, (0,)).gpus] == [gpu.uuid for gpu in expected]


def test_a_driver_without_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(machine, "_DRIVERS", (tmp_path,))
    assert find_machine(ServerOptions(), {}, (0,)).gpus == ()


class NVMLError(Exception):
    """As the library raises it."""


class Nvml:
    """One GPU without MIG; `fails` is the function that does."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, fails: str = "") -> None:
        self._answers = {
            "Count": 1,
            "HandleByIndex": 7,
            "CudaComputeCapability": (8, 0),
            "PciInfo": SimpleNamespace(busId="00000000:5E:00.0"),
            "UUID": "GPU-1bb",
            "MigMode": (0, 1),  # it will be divided from the next reset on
        }
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        short = name.removeprefix("nvmlDeviceGet")

        def answer(*_arguments: object) -> Any:
            if short == self._fails:
                raise NVMLError("GPU is lost")
            return self._answers[short]

        return answer


def test_what_the_library_lists(caplog: pytest.LogCaptureFixture) -> None:
    assert list_by_nvml(Nvml()) == [A100]
    assert list_by_nvml(None) == []
    assert list_by_nvml(Nvml("Count")) == []
    assert caplog.messages == ["NVIDIA's library does not list the GPUs: GPU is lost"]


def test_a_gpu_without_mig_is_listed_as_a_whole() -> None:
    assert list_by_nvml(Nvml("MigMode")) == [A100]  # Not Supported


class Divided(Nvml):
    """One GPU with MIG, of whose three places for parts the second is empty."""

    def nvmlDeviceGetMigMode(self, _handle: object) -> tuple[int, int]:
        return 1, 1

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle: object) -> int:
        return 3

    def nvmlDeviceGetMigDeviceHandleByIndex(self, _handle: object, place: int) -> str:
        if place == 1:
            raise NVMLError("Not Found")
        return f"part {place}"

    def nvmlDeviceGetUUID(self, handle: object) -> str:
        return {"part 0": "MIG-c6d4", "part 2": "MIG-cba6"}.get(str(handle), "GPU-1bb")


def test_a_gpu_with_mig_is_listed_as_its_parts(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [A100._replace(uuid="MIG-c6d4"), A100._replace(uuid="MIG-cba6")]
    assert list_by_nvml(Divided()) == parts
    monkeypatch.setattr(machine, "_listed", lambda: list_by_nvml(Divided()))
    gpus = find_machine(ServerOptions(), {}, CORES, sysfs).gpus
    assert [(gpu.id, gpu.uuid, gpu.cores) for gpu in gpus] == [
        (0, "MIG-c6d4", (0, 1, 2, 3)),
        (1, "MIG-cba6", (0, 1, 2, 3)),
    ]


@pytest.mark.parametrize("fails", ["HandleByIndex", "CudaComputeCapability", "PciInfo", "UUID"])
def test_a_gpu_that_the_library_fails_to_describe_keeps_its_place(fails: str) -> None:
    assert list_by_nvml(Nvml(fails)) == [Listed("", "", "GPU is lost")]


def test_the_functions_of_the_library_have_these_names() -> None:
    for name in ("Count", "HandleByIndex", "CudaComputeCapability", "PciInfo", "UUID", "MemoryInfo", "MigMode"):
        assert callable(getattr(pynvml, f"nvmlDeviceGet{name}"))
    for name in ("MaxMigDeviceCount", "MigDeviceHandleByIndex"):
        assert callable(getattr(pynvml, f"nvmlDeviceGet{name}"))
    assert pynvml.NVML_DEVICE_MIG_ENABLE == 1


@pytest.mark.parametrize(
    ("bus_id", "expected"),
    [("00000000:5E:00.0", (0, 1, 2, 3)), ("0001:86:00.0", (8,)), ("00000000:99:00.0", CORES)],
)
def test_cores_beside_a_gpu(sysfs: Path, bus_id: str, expected: tuple[int, ...]) -> None:
    assert cores_beside(bus_id, CORES, sysfs) == expected


def test_a_gpu_beside_none_of_the_server_s_cores(sysfs: Path) -> None:
    assert cores_beside(H100.pci_bus_id, (0, 1), sysfs) == (0, 1)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (HostPolicy(numa_node=0), (0, 1, 2, 3)),
        (HostPolicy(cpu_cores=(8, 1, 77)), (1, 8)),
        (HostPolicy(1, (1, 8)), (8,)),
        (HostPolicy(), CORES),
    ],
)
def test_cores_of_a_policy(sysfs: Path, policy: HostPolicy, expected: tuple[int, ...]) -> None:
    assert policy_cores("p", policy, CORES, sysfs) == expected


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (HostPolicy(numa_node=7), "--host-policy=p,numa-node=7: this machine has no such NUMA node"),
        (HostPolicy(1, (0, 1)), "--host-policy p leaves no core: the server may use 0-3,8; choose some of them"),
        (HostPolicy(None, (77,)), "--host-policy p leaves no core: the server may use 0-3,8; choose some of them"),
    ],
)
def test_policies_that_cannot_be_followed(sysfs: Path, policy: HostPolicy, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        policy_cores("p", policy, CORES, sysfs)
    assert str(refusal.value) == sentence


@pytest.mark.parametrize(("text", "cores"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("\n", set[int]())])
def test_the_kernel_s_lists(text: str, cores: set[int]) -> None:
    assert read_cores(text) == cores


@pytest.mark.gpu
def test_a_real_gpu_is_found() -> None:
    found = find_machine(ServerOptions(), {}, server_cores())
    assert found.gpus
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    assert all(gpu.uuid in listed for gpu in found.gpus)
