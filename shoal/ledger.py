"""Counts of this process for the ledger, by the kernel's tables, and the message that carries them to the supervisor.

Used in every process, and only on request: no request's path counts for this.
"""

import os
import re
from contextlib import suppress

from shoal import memo
from shoal.messages.shared import LedgerCounted
from shoal.open_files import num_open

#: A segment of the server's in /proc/self/maps: a memfd, or a file in /dev/shm without a name.
_OURS = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .*(?:/memfd:shoal|/dev/shm/#)", re.MULTILINE)
#: The state of a listening socket in /proc/net/tcp (include/net/tcp_states.h).
_LISTEN = "0A"


def ledger_message(**counts: int) -> LedgerCounted:
    """The answer to LedgerWanted: `counts`, with the counts of the kernel and of memos."""
    kernel = {"descriptors": num_open(), "mapped_bytes": mapped_bytes()}
    return LedgerCounted({**kernel, **counts, **memo.figures()})


def connections() -> int:
    """The number of open TCP connections of this process; one that was reset counts until it is closed."""
    listening = _listening()
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # no socket, or closed meanwhile
            # No socket object is made for this: it might set the descriptor to non-blocking, for all that share it.
            is_tcp = os.getxattr(int(name), "system.sockprotoname") in (b"TCP\0", b"TCPv6\0")
            found += is_tcp and os.fstat(int(name)).st_ino not in listening
    return found


def _listening() -> set[int]:
    """The inodes of listening sockets. Connections are not counted in the kernel's tables, which lack those that were
    reset and are not closed yet."""
    inodes = set[int]()
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), open(f"/proc/self/net/{table}", encoding="ascii") as lines:  # without IPv6
            for fields in map(str.split, lines):
                if fields[3] == _LISTEN:
                    inodes.add(int(fields[9]))
    return inodes


def mapped_bytes() -> int:
    """Bytes of segments, own and other processes', that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return sum(int(end, 16) - int(start, 16) for start, end in _OURS.findall(maps.read()))
