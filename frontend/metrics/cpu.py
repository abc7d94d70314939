"""The machine's CPU and memory, from /proc, by Triton's definitions. Runs in the road."""

from pathlib import Path

#: Fields of the first line of /proc/stat that Triton counts as work, and as idling; guests are part of user and nice.
_WORK, _IDLE = (0, 1, 2, 5, 6, 7), (3, 4)
_KIB = 1024


class Cpu:
    """Reads the machine's utilization and memory. Utilization is the share of time worked since the last `read`; at
    the first, since this object was made."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        # Changed by read.
        self._work, self._idle = self._ticks()

    def read(self) -> dict[str, float]:
        """The figures that the families in families.CPU_FAMILIES print, by the figures' names."""
        work, idle = self._ticks()
        worked, idled = max(0, work - self._work), max(0, idle - self._idle)
        self._work, self._idle = work, idle
        memory = self._memory()
        return {
            "utilization": worked / (worked + idled) if worked + idled else 0.0,
            "memory_total_bytes": memory["MemTotal"],
            "memory_used_bytes": memory["MemTotal"] - memory["MemAvailable"],
        }

    def _ticks(self) -> tuple[int, int]:
        first, _, _ = (self._proc / "stat").read_text().partition("\n")
        ticks = [int(field) for field in first.split()[1:]]
        return sum(ticks[field] for field in _WORK), sum(ticks[field] for field in _IDLE)

    def _memory(self) -> dict[str, int]:
        lines = (self._proc / "meminfo").read_text().splitlines()
        return {name: int(rest.split()[0]) * _KIB for name, _, rest in (line.partition(":") for line in lines)}
