"""A client or a worker in the star as the supervisor has it: its connection, its memory's descriptors, its progress.

A value with little behaviour; `star.py` changes it.
"""

import os
from dataclasses import dataclass

from shoal.control import Message
from shoal.shm.doorbell import Doorbell
from shoal.supervisor.members import Member


@dataclass(slots=True, eq=False)
class Participant:
    """A client or a worker in the star: its connection and the descriptors of its side."""

    owner: int
    member: Member
    segment_fd: int  # writable where it is a client's, sealed where it is a worker's
    read_only_fd: int
    link_fd: int
    bell: Doorbell
    is_joined: bool = False  # others may be told of it, and it of others
    is_caller: bool = False  # a client that is a worker, too: its model calls others
    model_id: int = 0  # a worker's, once it may be announced
    is_ready: bool = False  # batches may go to this worker
    is_retiring: bool = False  # no more shall, and it ends when it has finished those it has

    def close(self) -> None:
        """Give all descriptors back; what others have mapped stays until they let go."""
        for fd in (self.segment_fd, self.read_only_fd, self.link_fd):
            os.close(fd)
        self.bell.close()


def client_message(client: Participant) -> tuple[Message, list[int]]:
    """What the batcher hears of a client."""
    fds = [client.read_only_fd, client.link_fd, client.bell.fd]
    return {"op": "client", "owner": client.owner}, fds


def worker_message(worker: Participant) -> tuple[Message, list[int]]:
    """What the batcher hears of a worker."""
    fds = [worker.read_only_fd, worker.link_fd, worker.bell.fd]
    return {"op": "worker", "owner": worker.owner, "model": worker.model_id}, fds
