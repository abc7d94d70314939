"""Figures of the benchmark: a sample per round, and the median over the rounds. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from statistics import median, quantiles

from bench.peers import Peer
from bench.workloads import Workload


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one server under one workload in one round."""

    requests_per_s: float
    p50_us: float
    p99_us: float
    cpu_us: float  # per request, over the process tree
    pss_bytes: float  # of the process tree, after the load
    start_s: float  # from exec to the first right answer
    errors: float
    foreign: float  # share of the cores that neither the server nor the load generator used
    instructions: Mapping[str, float] = field(default_factory=dict)  # per request, by process; empty without perf
    slowest_us: float = 0.0  # of all requests, where the generator reports it
    least_per_s: float = 0.0  # requests a second of the connection with the fewest
    most_per_s: float = 0.0  # requests a second of the connection with the most
    slices: tuple[float, ...] = ()  # requests/s of each slice, in order

    @property
    def total_instructions(self) -> float:
        """Instructions per request, over the process tree; 0 without perf."""
        return sum(self.instructions.values())


@dataclass(slots=True)
class Row:
    """One server under one workload: a sample per round. `fault`: why it could not be measured."""

    peer: Peer
    workload: Workload
    # Changed by the run.
    samples: list[Sample]
    fault: str = ""

    @property
    def median(self) -> Sample:
        """Each figure's median over the rounds; errors are added up, slices are joined in order."""
        names = [each.name for each in fields(Sample) if each.name not in ("errors", "instructions", "slices")]
        middle = {name: median(getattr(each, name) for each in self.samples) for name in names}
        roles = dict.fromkeys(role for each in self.samples for role in each.instructions)
        counts = {role: median(each.instructions.get(role, 0) for each in self.samples) for role in roles}
        slices = sum((each.slices for each in self.samples), start=())
        return Sample(**middle, errors=sum(each.errors for each in self.samples), instructions=counts, slices=slices)

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest requests/s of the rounds."""
        rates = [each.requests_per_s for each in self.samples]
        return min(rates), max(rates)


def slice_ratios(ours: Sample, theirs: Sample) -> tuple[float, float, float] | None:
    """The quartiles of the ratios of our requests/s in a slice to theirs in the slice measured in turn with it
    (bench/slices.py); None with fewer than two ratios. A slice in which theirs answered nothing has none."""
    ratios = [mine / other for mine, other in zip(ours.slices, theirs.slices, strict=False) if other]
    if len(ratios) < 2:
        return None
    first, middle, third = quantiles(ratios, n=4, method="inclusive")
    return first, middle, third
