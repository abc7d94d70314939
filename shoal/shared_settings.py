"""The settings and bounds that the supervisor and other processes have in common. A process that needs one imports no
`ServerOptions` (shoal/options.py) for it, a class of so many fields that 4 ms of CPU are spent to make it."""

from dataclasses import dataclass

MIB = 1024 * 1024

#: The parts of a slab's largest block: a request or a result larger than one part gets a segment of its own (ours). A
#: block for such a payload would be at least half as large as the largest one, and would have to wait until so much is
#: free in one piece.
SLAB_PARTS = 4
#: The largest payload in bytes. A block's reference counts units of 4096 bytes in 20 bits, and the word for a part of a
#: block has 32 bits for the part's size (shm/layout.py), so both reach less than 4 GiB.
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
