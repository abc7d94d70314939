"""A pod's limits of memory and cores as a control group of this machine, version 1 or 2, as the kubelet makes them."""

import os
from pathlib import Path
from typing import Any

GROUPS = Path("/sys/fs/cgroup")
_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "K": 10**3, "M": 10**6, "G": 10**9, "": 1}
_PERIOD_US = 100_000


def nbytes(quantity: str) -> int:
    """A quantity of Kubernetes' in bytes."""
    number = quantity.rstrip("KMGi")
    return int(float(number) * _UNITS[quantity[len(number) :]])


def cores(quantity: str) -> float:
    return float(quantity.removesuffix("m")) / (1000 if quantity.endswith("m") else 1)


class Limits:
    """Control groups with the limits of a container. Raises OSError where none may be made."""

    def __init__(self, limits: dict[str, Any], name: str) -> None:
        memory, quota = nbytes(str(limits["memory"])), int(cores(str(limits["cpu"])) * _PERIOD_US)
        self._folders = list[Path]()
        if (GROUPS / "cgroup.controllers").exists():
            values = {"": {"memory.max": str(memory), "cpu.max": f"{quota} {_PERIOD_US}"}}
            self._peak, self._kills = "memory.peak", "memory.events"
        else:
            values = {
                "memory": {"memory.limit_in_bytes": str(memory)},
                "cpu": {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota)},
            }
            self._peak, self._kills = "memory.max_usage_in_bytes", "memory.oom_control"
        try:
            for controller, settings in values.items():
                folder = GROUPS / controller / name
                folder.mkdir()
                self._folders.append(folder)
                for file, value in settings.items():
                    (folder / file).write_text(value)
        except OSError:
            self.close()
            raise

    def around(self, command: list[str]) -> list[str]:
        """The command of a process that joins the groups before it begins."""
        join = "".join(f"echo $$ > {folder}/cgroup.procs && " for folder in self._folders)
        return ["sh", "-c", f'{join}exec "$@"', "sh", *command]

    def facts(self) -> dict[str, int]:
        """The most memory that its processes and files in memory had, in bytes, and how many were killed for want."""
        lines = dict(line.split() for line in (self._folders[0] / self._kills).read_text().splitlines())
        return {"peak": int((self._folders[0] / self._peak).read_text()), "killed": int(lines["oom_kill"])}

    def close(self) -> None:
        """Remove the groups, whose processes have ended."""
        for folder in self._folders:
            os.rmdir(folder)
        self._folders.clear()
