"""Rows of the PyTorch backend: a network of 4096 hidden units in each form in which PyTorch saves models."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.gpu_check.finding import Finding, MissingError, Setup, right_if
from scripts.gpu_check.measure import (
    MOST,
    TOLERANCE,
    Array,
    Call,
    beside_bare,
    served,
    served_rate,
    worst_error,
    write_model,
)
from shoal.supervisor.mps_guard import PROGRAM

_JIT: Any = torch.jit  # this module has no type annotations
WIDTHS = (1024, 4096, 1000)
SHARED = ' parameters { key: "instances_share_process" value { string_value: "true" } }'
CONFIG = """backend: "pytorch" default_model_filename: "%s" max_batch_size: %d dynamic_batching { }
input { name: "INPUT__0" data_type: TYPE_FP32 dims: %d } output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: %d }
instance_group { %s count: %d }"""


def torchscript(setup: Setup) -> Finding:
    """The row of a scripted module."""
    file = setup.directory / "model.pt"
    _JIT.script(network()).save(str(file))
    module = _JIT.load(str(file), map_location=setup.device)
    return compare(setup, file, bare_call(module, setup.device))


def export(setup: Setup) -> Finding:
    """The row of a program exported on the CPU, which the backend moves to the GPU."""
    file = setup.directory / "model.pt2"
    torch.export.save(exported(network(), "cpu"), str(file))
    return compare(setup, file, bare_call(network().to(setup.device), setup.device))


def aotinductor(setup: Setup) -> Finding:
    """The row of a program that AOTInductor compiles for this machine."""
    file = setup.directory / "model.pt2"
    device = setup.device
    # On the CPU without optimisation, and without trying which vectors there are: that takes minutes, for nothing.
    options = {"cpp.vec_isa_ok": False, "aot_inductor.compile_wrapper_opt_level": "O0"} if setup.on_cpu else {}
    try:
        torch._inductor.aoti_compile_and_package(
            exported(network().to(device), device), package_path=str(file), inductor_configs=options
        )
    except Exception as error:
        if "ompiler" in str(error):
            raise MissingError(f"PyTorch finds no compiler: {str(error)[:200]}") from error
        raise
    # Exported for any number of rows, it takes 2 and more: PyTorch makes a special case of 1.
    return compare(setup, file, bare_call(torch._inductor.aoti_load_package(str(file)), device), least=2)


def instances(setup: Setup) -> Finding:
    """The row of a model with 1, 2 and 4 instances, each a process with the GPU as its device 0."""
    return _instances(setup, (1, 2, 4))


def instances_with_mps(setup: Setup) -> Finding:
    """The row of a model with 2 and 4 instances under MPS, whose daemon the server starts, watches and ends."""
    if shutil.which(PROGRAM) is None:
        raise MissingError(f"it needs {PROGRAM}, which comes with the driver")
    return _instances(setup, (2, 4), "--cuda-mps=true")


def instances_as_threads(setup: Setup) -> Finding:
    """The row of a model with 2 and 4 instances as threads of one process, which share one copy of the weights."""
    return _instances(setup, (2, 4), more=SHARED)


def _instances(setup: Setup, counts: tuple[int, ...], *flags: str, more: str = "") -> Finding:
    file = setup.directory / "model.pt"
    _JIT.script(network()).save(str(file))
    rates: dict[int, dict[int, float]] = {}
    errors, is_with_mps, are_as_wanted = [], bool(flags), True
    for count in counts[:-1] if setup.on_cpu else counts:
        repository = setup.directory / str(count)
        with served(make_model(setup, repository, file, count, more), *flags) as (server, client):
            is_with_mps = is_with_mps and b"MPS runs for workers on GPUs" in server.log
            server.read_on()
            processes = set(re.findall(rb" ([0-9]+) worker\.py:[0-9]+\] [^\n]* is pinned to cores", server.log))
            are_as_wanted = are_as_wanted and len(processes) == (1 if more else count)
            through = call_of(client)
            errors.append(worst_error(through, expected, sample))
            rates[count] = {rows: rows_per_second(through, rows, setup.seconds) for rows in (1, MOST)}
    text = "; ".join(
        f"{count}: {', '.join(f'{rate:,.0f} rows/s in requests of {rows}' for rows, rate in by_rows.items())}"
        for count, by_rows in rates.items()
    )
    is_right = max(errors) <= TOLERANCE and is_with_mps == bool(flags) and are_as_wanted
    said = "; MPS ran" * is_with_mps + "; not as many processes as there should be" * (not are_as_wanted)
    return right_if(is_right, f"{text}; error {max(errors):.1e}{said}")


def rows_per_second(through: Call, rows: int, seconds: float) -> float:
    """Rows a second of eight clients with requests of that many rows."""
    array = sample(rows)
    return served_rate(lambda: through(array), seconds, 8) * rows


def network() -> torch.nn.Module:
    """A network with equal weights every time."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(WIDTHS[0], WIDTHS[1]), torch.nn.ReLU(), torch.nn.Linear(WIDTHS[1], WIDTHS[2])
    return torch.nn.Sequential(*layers).eval()


def exported(module: torch.nn.Module, device: str) -> torch.export.ExportedProgram:
    """A program for batches of 1 to MOST rows."""
    example = (torch.zeros(5, WIDTHS[0], device=device),)
    rows = torch.export.Dim("rows", min=1, max=MOST)
    with torch.no_grad():
        return torch.export.export(module, example, dynamic_shapes=({0: rows},))


def bare_call(module: Any, device: str) -> Call:
    """PyTorch without a server, used as in its own examples."""

    def call(array: Array) -> Array:
        with torch.inference_mode():
            answer: Array = module(torch.from_numpy(array).to(device)).cpu().numpy()
            return answer

    return call


def expected(array: Array) -> Array:
    """The right output, computed on the CPU."""
    return bare_call(network(), "cpu")(array)


def sample(rows: int) -> Array:
    """An input of that many rows, equal in every call."""
    return np.random.default_rng(rows).standard_normal((rows, WIDTHS[0])).astype(np.float32)


def call_of(client: Any) -> Call:
    """The network through a server."""

    def call(array: Array) -> Array:
        answer: Array = client.infer("network", {"INPUT__0": array})["OUTPUT__0"]
        return answer

    return call


def make_model(setup: Setup, repository: Path, file: Path, count: int = 1, more: str = "") -> Path:
    """Write a repository with the model `network`; `more` is added to its configuration."""
    config = CONFIG % (file.name, MOST, WIDTHS[0], WIDTHS[2], setup.group, count) + more
    (write_model(repository, "network", config) / file.name).write_bytes(file.read_bytes())
    return repository


def compare(setup: Setup, file: Path, bare: Call, least: int = 1) -> Finding:
    """Answers and figures of a saved model, of `least` rows and more, beside those of PyTorch itself."""
    with served(make_model(setup, setup.directory / "repository", file)) as (_, client):
        through = call_of(client)
        error = worst_error(through, expected, sample, least)
        figures = beside_bare(bare, through, sample, setup.seconds, least)
    return right_if(error <= TOLERANCE, f"error {error:.1e}; {figures}")
