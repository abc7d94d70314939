"""Workers that lack memory for a result: who is asked for theirs. Pure; lives in the batcher.

A worker that has no room (ROOM) first gets back what front ends hold for slow readers: they copy it, within their
bounds, and release it. Meanwhile it has memory of another kind made. Where there is none (ROOM_NOW), front ends give up
their slowest readers, and of guests, who cannot be asked, the one that holds most is ended.
"""

from collections.abc import Mapping
from itertools import islice

from shoal.batcher.blocks import Blocks
from shoal.batcher.guests import is_starved, most_holding_guest
from shoal.batcher.holders import Holders
from shoal.batcher.peers import Client, Worker
from shoal.shm.layout import MAX_RECALLED, ROOM, ROOM_NOW, recall_record


class Shortages:
    """Front ends that are asked join `written`."""

    def __init__(self, clients: Mapping[int, Client], holders: Holders, blocks: Blocks, written: set[Client]) -> None:
        self._clients = clients
        self._holders = holders
        self._blocks = blocks
        self._written = written

    def ask_back(self, worker: Worker, urgency: int, now_ns: int) -> int:
        """Ask front ends for what they hold of this worker's results. Returns the guest that must go; mostly 0."""
        worker.is_hungry = True
        if urgency not in (ROOM, ROOM_NOW):
            return 0
        is_urgent = urgency == ROOM_NOW
        segments = {worker.owner}
        if is_urgent:
            segments.update(owner for owner, writer in self._blocks.results.items() if writer is worker)
        for owner, held in self._holders.segments_held(segments).items():
            client = self._clients.get(owner)
            if client is not None and client.is_front_end:
                self._ask(client, held, is_urgent=is_urgent)
        if not is_starved(worker, now_ns, is_urgent=is_urgent):
            return 0
        return most_holding_guest(self._holders, self._clients, segments)

    def _ask(self, client: Client, segments: set[int], *, is_urgent: bool) -> None:
        if client.has_unread_recall:
            return  # it stands still, or has not come to it: what it holds is asked for again if it is still wanted
        rest = iter(segments)
        while owners := tuple(islice(rest, MAX_RECALLED)):
            client.recall(recall_record(owners, is_urgent=is_urgent))
        self._written.add(client)
