"""A server whose processes look for faults in a directory (shoal/fault.py), and what a test does to them."""

import json
import struct
import time
from pathlib import Path

from tests.end_to_end.asking import fetch
from tests.end_to_end.server import DEADLINE_S, LOOK_AGAIN_S, Server, descendants, title

#: Steps of a worker at which the request is being executed: it fails where it must not be executed a second time.
EXECUTING = {"mapped", "begun", "opened", "written", "pushed"}
#: Steps that only a batcher that takes a dead one's place goes through.
TAKE_OVER = {"introduced", "resumed"}
#: Little memory: a payload of two and a half MiB has a segment of its own, in the client's memory and in the worker's.
SMALL_MEMORY = ("--shm-client-slab-mib=8", "--shm-worker-slab-mib=4", "--shm-oversize-mib=64")
#: Of every process: what the server needs, and a few connections.
FEW_DESCRIPTORS = 256, 256


class Patient:
    """A server whose processes look for faults in a directory."""

    def __init__(self, server: Server, faults: Path, socket: str) -> None:
        self.server = server
        self.faults = faults
        self.socket = socket
        self.number = 0
        # Of those that shall have died: how many; up to where the log has told of them.
        self.num_armed = self.told = 0

    def arm(self, step: str) -> None:
        """The next process that comes to this step dies there."""
        self.num_armed += 1
        self._lay(step, "kill")

    def stop_at(self, step: str) -> None:
        """The next process that comes to this step stands still there, until it is killed."""
        self.num_armed += 1
        self._lay(step, "stop")

    def _lay(self, step: str, action: str) -> None:
        self.get_live()  # the lane is past what the last request left it to do
        # Complete before it has its name: a process may look at any moment.
        (self.faults / "next").write_text(action)
        (self.faults / "next").rename(self.faults / step)

    def stopped(self, kind: str) -> int:
        """The process whose title begins so and that stands still, as soon as there is one."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            for pid in descendants(self.server.process.pid):
                if title(pid).startswith(kind) and Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] == "T":
                    return pid
            time.sleep(LOOK_AGAIN_S)
        raise AssertionError(f"no {kind} stands still")

    def get_live(self) -> None:
        """One request that goes no further than the lane."""
        assert fetch(self.server.http_port, "/v2/health/live").status == 200

    def await_deaths(self) -> None:
        """Return when the log, ours or gunicorn's in it, has said of each process that it died; no fault is left."""
        while self.num_armed:
            assert self.server.read_log(b"SIGKILL", start=self.told)
            found = self.server.log.index(b"SIGKILL", self.told)
            self.told = found + 1
            line = self.server.log[self.server.log.rfind(b"\n", 0, found) + 1 : found]
            self.num_armed -= b"a request to model" not in line  # which a process's death has cost
        assert not list(self.faults.iterdir())

    def ask(self, model: str, *, by_road: bool = False) -> tuple[int, bytes]:
        """One request over a connection of its own; the status and the body, which for a 200 has been verified."""
        self.number += 1
        tensor = struct.pack("<4i", self.number, 2, 3, 4)
        request = {"inputs": [{"name": "A", "shape": [1, 4], "datatype": "INT32", "data": [self.number, 2, 3, 4]}]}
        body = json.dumps(request).encode()
        # The lane hands over whatever comes in chunks.
        reply = fetch(self.server.http_port, f"/v2/models/{model}/infer", iter([body]) if by_road else body)
        if reply.status == 200:
            (output,) = reply.json["outputs"]
            assert struct.pack("<4i", *output["data"]) == tensor
        return reply.status, reply.body
