"""The row about the machine: the GPU, the driver, the versions of packages, and missing packages."""

import importlib
import importlib.metadata
import os
import platform
import sys

from scripts.gpu_check.finding import Finding, Setup, right_if

PACKAGES = ("torch", "onnxruntime", "onnxruntime-gpu", "tensorrt", "cuda-bindings", "nvidia-ml-py", "numpy", "protobuf")
#: Modules that the server imports, and those that only some rows import.
NEEDED = (
    "argcomplete", "flask", "google.protobuf", "gunicorn", "hpack", "jinja2", "msgpack", "numpy", "orjson",
    "rapidjson", "setproctitle", "tritonclient", "yaml",
)  # fmt: skip
WANTED = ("torch", "cuda.bindings.runtime", "pynvml", "onnx", "onnxruntime", "tensorrt")


def machine(setup: Setup) -> Finding:
    """The row of the machine; wrong if the server itself lacks a package, or PyTorch does not see the GPU."""
    lacking = [name for name in NEEDED if not can_import(name)]
    absent = [name for name in WANTED if not can_import(name)]
    versions = [f"{name} {version}" for name in PACKAGES if (version := version_of(name))]
    sees_gpu = True
    if "torch" not in absent and not setup.on_cpu:
        import torch

        sees_gpu = torch.cuda.is_available()
        if sees_gpu:
            versions.append(f"CUDA {torch.version.cuda}")
    parts = [
        gpu_name(),
        f"{len(os.sched_getaffinity(0))} cores ({len(setup.gpu_cores)} beside the GPU)",
        f"Linux {platform.release()}, Python {platform.python_version()}",
        ", ".join(versions),
        f"the server lacks {', '.join(lacking)}" * bool(lacking),
        f"not here: {', '.join(absent)}" * bool(absent),
        "PyTorch sees no GPU" * (not sees_gpu),
    ]
    return right_if(not lacking and sees_gpu, "; ".join(filter(None, parts)))


def gpu_name() -> str:
    """The GPU and the driver, according to NVIDIA's library."""
    from shoal.nvml import load_nvml

    nvml = load_nvml()
    if nvml is None:
        return "no nvidia-ml-py, the GPU was found by nvidia-smi"
    return f"{nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0))}, driver {nvml.nvmlSystemGetDriverVersion()}"


def can_import(name: str) -> bool:
    """Whether an import works; the error of one that fails is printed to stderr."""
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a package without its libraries may raise anything
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True


def version_of(distribution: str) -> str:
    """The version of a distribution; empty where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
