"""The process of one row: finds the GPU, runs the row's function, and prints its finding as the last line."""

import importlib
import json
import os
import tempfile
import traceback
from pathlib import Path

from scripts.gpu_check.finding import Finding, MissingError, Setup, Verdict
from scripts.gpu_check.rows import ROWS


def main(name: str, *, on_cpu: bool, seconds: float) -> int:
    """Run a row; returns 0 unless the finding is that something is wrong."""
    from scripts.gpu_check.__main__ import RESULT

    (row,) = (row for row in ROWS if row.name == name)
    module, _, function = row.function.partition(":")
    with tempfile.TemporaryDirectory(prefix=f"gpu-check-{name}-") as directory:
        try:
            setup = setup_of(Path(directory), on_cpu=on_cpu, seconds=seconds)
            finding = getattr(importlib.import_module(f"scripts.gpu_check.{module}"), function)(setup)
        except MissingError as error:
            finding = Finding(Verdict.NOT_RUN, str(error))
        except ModuleNotFoundError as error:
            traceback.print_exc()
            finding = Finding(Verdict.NOT_RUN, f"this Python lacks {error.name}")
        except Exception as error:  # noqa: BLE001 - any error is the row's finding; the next row is run
            traceback.print_exc()
            finding = Finding(Verdict.WRONG, f"{type(error).__name__}: {shortened(str(error))}")
    print(RESULT + json.dumps([finding.verdict.value, finding.found]), flush=True)
    return int(finding.verdict is Verdict.WRONG)


def shortened(text: str) -> str:
    """A text's beginning and end: an error may carry a server's whole log."""
    return text if len(text) <= 400 else f"{text[:150]} … {text[-250:]}"


def setup_of(directory: Path, *, on_cpu: bool, seconds: float) -> Setup:
    """The setup of a row, for the first GPU that the server would use. Raises MissingError where there is none."""
    from shoal.options import ServerOptions
    from shoal.supervisor.machine import find_machine, server_cores

    gpus = find_machine(ServerOptions(), os.environ, server_cores()).gpus
    if not gpus:
        raise MissingError("the server would use no GPU that the driver lists")
    gpu = gpus[0]
    return Setup(directory, on_cpu, seconds, gpu.id, gpu.uuid, gpu.cores)
