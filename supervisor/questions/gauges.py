"""What the supervisor knows for /metrics: each instance, and how full rings and slabs are. Asked for, kept nowhere.

Runs in the supervisor, which reads words of other processes' segments and writes none. What a worker says stands in
memory that a model's code may write: a figure may be wrong, and is nothing but a figure.
"""

import os
from collections.abc import Iterable
from typing import Any, Protocol

from shoal.placement import Placement
from shoal.repository.lifecycle import ModelVersion
from shoal.shm.layout import HEAD_WORD, TAIL_WORD, LayoutError
from shoal.shm.segment import SegmentView
from shoal.shm.slab import taken_nbytes
from shoal.supervisor.ledger import shared_bytes, title_of
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.memory.star import Star
from shoal.supervisor.processes.progress import WorkerProgress, rss_bytes

Figures = dict[str, Any]


class ObservedInstance(Protocol):
    """What is read of a model instance."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> ModelVersion: ...
    @property
    def placement(self) -> Placement: ...
    @property
    def num_starts(self) -> int: ...
    @property
    def num_recycles(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def progress(self) -> WorkerProgress | None: ...
    @property
    def participant(self) -> Participant | None: ...


def gauges(instances: Iterable[ObservedInstance], star: Star, num_takeovers: int, now_ns: int) -> Figures:
    """Everything, as msgpack can carry it."""
    # While a version is loaded anew there are two instances of one name: of those, the one that serves is told of.
    by_name = {}
    for figures in sorted((_instance(each, now_ns) for each in instances), key=lambda figures: bool(figures["is_up"])):
        by_name[tuple(figures[label] for label in ("model", "version", "model_instance", "device"))] = figures
    return {
        "instances": list(by_name.values()),
        "front_ends": [
            {"process": title_of(client.member.pid).removeprefix("shoal "), **_memory(client)}
            for client in star.front_ends
        ],
        "shared_bytes": shared_bytes(),
        "num_takeovers": num_takeovers,
    }


def _instance(instance: ObservedInstance, now_ns: int) -> Figures:
    """One that is not up has neither batches nor memory; its worker's figures begin anew with its next start."""
    figures: Figures = {
        "model": instance.version.name,
        "version": instance.version.version,
        "model_instance": instance.name,
        "device": _device(instance.placement),
        "restarts": max(0, instance.num_starts - 1),
        "recycles": instance.num_recycles,
        "rss_bytes": rss_bytes(instance.pid),
        "is_up": instance.progress is not None,
    }
    if instance.progress is not None:
        since_ns = instance.progress.busy_since_ns
        figures |= {
            "busy_ns": instance.progress.busy_for_ns,
            "executing_ns": max(0, now_ns - since_ns) if since_ns else 0,
            "batches": instance.progress.num_completed,
        }
    if instance.participant is not None:
        figures |= _memory(instance.participant)
    return figures


def _memory(participant: Participant) -> Figures:
    """How full its slab is, and the fuller of its two rings with the batcher, as a share of what that can hold."""
    try:
        own, link = (SegmentView.attach(os.dup(fd)) for fd in (participant.read_only_fd, participant.link_fd))
    except LayoutError:  # a worker has overwritten the head of its segment
        return {}
    rings = (own, link), (link, own)
    shares = [
        (writer.words[TAIL_WORD] - reader.words[HEAD_WORD]) / max(1, writer.header.ring_capacity)
        for writer, reader in rings
    ]
    return {
        "slab_used_bytes": taken_nbytes(own),
        "slab_total_bytes": own.header.slab_nbytes,
        "ring_used_ratio": min(1.0, max(0.0, *shares)),
    }


def _device(placement: Placement) -> str:
    return f"GPU {placement.device_id}" if placement.kind == "KIND_GPU" else "CPU"
