"""What a process has open and mapped, as the kernel counts it, and the message that tells the supervisor.

Used in every process, and only when somebody asks: nothing here is counted on the way of a request.
"""

import os
import re
import socket
import stat
from contextlib import suppress
from typing import Any

#: Our memory in /proc/self/maps: a segment is a memfd or a file in /dev/shm that has lost its name.
_OURS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .*(?:/memfd:shoal|/dev/shm/shoal-)", re.MULTILINE)


def ledger_message(**counts: int) -> dict[str, Any]:
    """What this process answers when the supervisor asks for its ledger: `counts` beside what the kernel says."""
    return {"op": "ledger", "counts": {"descriptors": descriptors(), "mapped_bytes": mapped_bytes(), **counts}}


def descriptors() -> int:
    """Open descriptors of this process."""
    return len(os.listdir("/proc/self/fd")) - 1  # the listing's own


def connections() -> int:
    """TCP connections among them; one that was reset counts until it is closed."""
    found = 0
    for entry in os.scandir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            if stat.S_ISSOCK(entry.stat().st_mode):
                with socket.socket(fileno=os.dup(int(entry.name))) as each:
                    is_listening = each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    found += each.family in (socket.AF_INET, socket.AF_INET6) and not is_listening
    return found


def mapped_bytes() -> int:
    """Bytes of segments, its own and its peers', that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return sum(int(end, 16) - int(start, 16) for start, end in _OURS.findall(maps.read()))
