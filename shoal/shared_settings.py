"""The settings and bounds that the supervisor and other processes have in common. A process that needs one imports no
`ServerOptions` (shoal/options.py) for it, a class of so many fields that 4 ms of CPU are spent to make it."""

from dataclasses import dataclass

MIB = 1024 * 1024

#: The parts of a slab's largest block: a request or a result larger than one part gets a segment of its own (ours). The
#: block of such a payload would take at least half of the slab, and would have to wait until so much is free in one
#: piece.
SLAB_PARTS = 4
#: The largest payload in bytes: references and spans in shared memory count less than 4 GiB.
MAX_OVERSIZE_BYTES = (1 << 32) - 4096

#: What the address of a Unix socket begins with; its port is 0.
UNIX = "unix:"


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """The settings of --metrics-config; all defaults are Triton's."""

    counter_latencies: bool = True  # cumulative times as counters
    histogram_latencies: bool = False  # nv_inference_first_response_histogram_ms
    summary_latencies: bool = False  # quantiles over the last minute
    #: (quantile, the error of rank that Triton allows): Shoal's error is in the value, see docs/metrics.md.
    summary_quantiles: tuple[tuple[float, float], ...] = (
        (0.5, 0.05), (0.9, 0.01), (0.95, 0.001), (0.99, 0.001), (0.999, 0.001),
    )  # fmt: skip
