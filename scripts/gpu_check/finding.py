"""The values that a row of the check gets and returns: its setup and its finding. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

#: The folder of stand-ins for the driver, its libraries and tools, put on the paths of a run with --on-cpu.
FAKES = Path(__file__).parent / "fake"


class Verdict(Enum):
    """The outcome of one row of the check."""

    RIGHT = "right"
    WRONG = "WRONG"
    REFUSED = "refused"  # by Shoal, as documented: the feature is missing
    NOT_RUN = "not run"  # something that it needs is missing


class Finding(NamedTuple):
    """A row's result: a verdict, and the figures or the reason."""

    verdict: Verdict
    found: str


class MissingError(Exception):
    """A row cannot be run: this machine lacks something that the row needs."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The directory, device and measuring time that a row is given."""

    directory: Path  # of the row alone; goes when the row ends
    on_cpu: bool  # frameworks on the CPU, and a stand-in for the driver that lists a GPU
    seconds: float  # of each measurement
    gpu_id: int  # Triton's number
    gpu_uuid: str
    gpu_cores: tuple[int, ...]

    @property
    def group(self) -> str:
        """The instance group of a framework's model, without its count."""
        return "kind: KIND_CPU" if self.on_cpu else self.gpu_group

    @property
    def gpu_group(self) -> str:
        """The instance group of a Python model, which can have the stand-in's GPU, too."""
        return f"kind: KIND_GPU gpus: [ {self.gpu_id} ]"

    @property
    def device(self) -> str:
        """PyTorch's name of the device, in this process and in a worker of the GPU."""
        return "cpu" if self.on_cpu else "cuda:0"


def right_if(condition: bool, found: str) -> Finding:
    """The finding of a row whose figures were looked at."""
    return Finding(Verdict.RIGHT if condition else Verdict.WRONG, found)
