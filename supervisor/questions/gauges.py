"""The supervisor's figures for /metrics: each instance, and how full rings and slabs are. Collected on request.

Runs in the supervisor, which reads words of other processes' segments and writes none. A worker's words stand in memory
that a model's code may write: such a figure may be wrong, which does no other harm.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.placement import Placement
from shoal.shm import layout
from shoal.shm.layout import HEAD_WORD, TAIL_WORD, LayoutError
from shoal.shm.segment import SegmentView
from shoal.shm.slab import taken_nbytes
from shoal.supervisor.ledger import shared_bytes, title_of
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.memory.process_memory import MemoryFigures, total
from shoal.supervisor.memory.star import Star
from shoal.supervisor.models.instance import Instance
from shoal.supervisor.processes.progress import rss_bytes

Figures = dict[str, Any]


def gauges(instances: Iterable[Instance], star: Star, num_takeovers: int, now_ns: int) -> Figures:
    """All figures of the supervisor for /metrics, as msgpack can carry them."""
    # While a version is reloaded there are two instances of one name: the figures are those of the one that serves.
    by_name = {}
    for figures in sorted((_instance(each, now_ns) for each in instances), key=lambda figures: bool(figures["is_up"])):
        by_name[tuple(figures[label] for label in ("model", "version", "model_instance", "device"))] = figures
    answered = [client.answered() for client in star.front_ends]
    noted = [sum(each) for each in zip(star.noted_before, *[each.noted() for each in star.front_ends], strict=True)]
    return {
        "instances": list(by_name.values()),
        "front_ends": [
            {"process": title_of(client.member.pid).removeprefix("shoal "), **_memory(client)}
            for client in star.front_ends
        ],
        "answered": [sum(each) for each in zip(star.answered_before, *answered, strict=True)],
        "handshakes_failed": {
            "http": noted[layout.HTTP_HANDSHAKES_FAILED],
            "grpc": noted[layout.GRPC_HANDSHAKES_FAILED],
        },
        "num_abandoned": noted[layout.ABANDONED],
        "shared_bytes": shared_bytes(),
        "num_takeovers": num_takeovers,
    }


def memory_of_models(instances: Iterable[Instance], measured: Mapping[int, MemoryFigures]) -> list[Figures]:
    """The memory of all processes of each model version, as far as it was measured; a process that several instances
    share counts once."""
    pids: dict[tuple[str, int], set[int]] = {}
    for each in instances:
        if each.pid in measured:
            pids.setdefault((each.version.name, each.version.version), set()).add(each.pid)
    found = []
    for (model, version), its_pids in pids.items():
        figures = total(measured[pid] for pid in its_pids)
        found.append({"model": model, "version": version, "nbytes": figures.host_nbytes, "gpus": figures.gpu_nbytes})
    return found


def _instance(instance: Instance, now_ns: int) -> Figures:
    """The figures of one instance; without a worker that is up it has neither batches nor memory."""
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
    if instance.worker.participant is not None:
        figures |= _memory(instance.worker.participant)
    return figures


def _memory(participant: Participant) -> Figures:
    """The shares, from 0 to 1, of a participant's slab and of the fuller of its two rings that are in use."""
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
