"""The death of a worker, by the kernel and the supervisor: a sentence for the log and a word for clients.

Pure; runs in the supervisor. shoal.reasons turns the word into the sentence that clients read.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shoal.placement import Placement
from shoal.process import EXIT_DEVICE_LOST
from shoal.reasons import (
    MAX_FIGURE,
    SHARED_PROCESS,
    UNNAMED_GROUP,
    DeathDetail,
    Reason,
    describe_exit,
    end_fields,
    pack_sizes,
)

_MIB = 1 << 20
#: The words that the log adds to the exit of a process that the OOM killer has ended.
OUT_OF_MEMORY = " by the kernel, which had run out of memory (OOM killer)"
#: How many last lines of a process's output are logged where there is no stack dump or traceback.
_NUM_LAST_LINES = 10


def instance_word(pid: int, groups: Sequence[str], placement: Placement) -> int:
    """The word that names an instance's process; `groups` are the names of `ModelVersion.groups`."""
    group = min(groups.index(placement.group), UNNAMED_GROUP)
    return DeathDetail(pid, group, int(placement.instance_name.rpartition("_")[2]), 0).pack()


@dataclass(frozen=True, slots=True)
class Death:
    """The unexpected end of a worker."""

    pid: int
    code: int  # the exit code; negative: the signal
    activity: str  # what the worker was doing: "loading", "executing batch 17", "idle"
    peak_rss_bytes: int  # the process's largest resident memory, as wait4 reports it
    memory_limit_bytes: int  # the limit of the worker's cgroup, or the machine's memory
    is_oom_kill: bool  # the kernel has counted an OOM kill that explains no other death
    limit_ms: int = 0  # the execution limit, where the supervisor ended the worker for that
    may_use_gpu: bool = False  # the worker's kind was not KIND_CPU
    is_shared: bool = False  # other instances were in the process, which has ended

    @property
    def reason(self) -> Reason:
        """The reason in replies to requests that the worker was executing."""
        if self.limit_ms:
            return Reason.EXECUTION_LIMIT
        if self.is_oom_kill and self.code == -signal.SIGKILL:
            return Reason.OUT_OF_MEMORY
        return Reason.INSTANCE_DIED

    def detail(self, groups: Sequence[str], placement: Placement) -> int:
        """The word that says which instance has died and how; `groups` are the names of `ModelVersion.groups`."""
        return instance_word(self.pid, groups, placement) | self._figure()

    def _figure(self) -> int:
        if self.reason is Reason.EXECUTION_LIMIT:
            return min(self.limit_ms, MAX_FIGURE)
        if self.reason is Reason.OUT_OF_MEMORY:
            return pack_sizes(self.peak_rss_bytes // _MIB, self.memory_limit_bytes // _MIB)
        return self.code & 0xFFFF | SHARED_PROCESS * self.is_shared

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of the log: what the worker was doing, its pid, and its end."""
        stage = "execute" if self.activity.startswith("executing") else "idle" if self.activity == "idle" else "load"
        return {"stage": stage, "worker_pid": self.pid, **end_fields(self.code)}

    def describe(self) -> str:
        """The words that follow "instance 'simple_0_0'" in the log."""
        shared = ", shared with other instances" if self.is_shared else ""
        return (
            f"(pid {self.pid}{shared}) {describe_exit(self.code)}{self._cause()} while it was {self.activity}; its "
            f"memory peaked at {self.peak_rss_bytes // _MIB} MiB, the limit is {self.memory_limit_bytes // _MIB} MiB"
        )

    def _cause(self) -> str:
        if self.reason is Reason.EXECUTION_LIMIT:
            return f" because it was over the execution limit of {self.limit_ms} ms"
        if self.reason is Reason.OUT_OF_MEMORY:
            return f"{OUT_OF_MEMORY},"
        if self.may_use_gpu and self.code == EXIT_DEVICE_LOST:
            return ", since its GPU answered it no more,"
        return " without being told to" if self.code == 0 else ""


def last_words(written: str) -> str:
    """A process's last report: its last stack dump or traceback, else its last lines."""
    for beginning in ("Fatal Python error: ", "Traceback (most recent call last):"):
        start = written.rfind(beginning)
        if start >= 0:
            return written[start:].rstrip()
    return "\n".join(written.rstrip().splitlines()[-_NUM_LAST_LINES:])
