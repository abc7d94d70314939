"""gauges.py: what is read of processes and of segments that the test writes as their owners do."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgpack

from shoal.placement import Placement
from shoal.repository.lifecycle import ModelVersion
from shoal.shm.layout import REQUEST, record
from shoal.shm.ring import RingWriter
from shoal.shm.segment import Segment, SegmentView
from shoal.shm.slab import Slab
from shoal.supervisor.memory.participant import Participant
from shoal.supervisor.memory.process_memory import MemoryFigures
from shoal.supervisor.processes.progress import WorkerProgress
from shoal.supervisor.questions.gauges import gauges, memory_of_models
from tests.supervisor.star_rig import CONFIG, StarRig

VERSION = ModelVersion("m", 2, 3, 0, Path())
ON_CPU = Placement("m_0_0", "m_0", "KIND_CPU", 0, (0,))


@dataclass(frozen=True)
class Observed:
    """An instance as gauges looks at it."""

    progress: WorkerProgress | None = None
    participant: Participant | None = None
    pid: int = 0
    num_starts: int = 0
    num_recycles: int = 0
    placement: Placement = ON_CPU
    version: ModelVersion = VERSION
    name: str = "m_0_0"

    @property
    def worker(self) -> "Observed":
        return self


Instance: Any = Observed


def join_worker(rig: StarRig) -> tuple[Participant, memoryview]:
    """A worker that has its memory, and the words of its segment as it maps them itself."""
    process = rig.start()
    worker = rig.star.join_worker(process.member, CONFIG)
    process.heard()
    return worker, Segment.attach(os.dup(process.fds[0])).words


def test_an_instance_tells_of_its_batches_its_process_and_its_memory(rig: StarRig) -> None:
    worker, words = join_worker(rig)
    instance = Instance(
        WorkerProgress(worker.read_only_fd, worker.link_fd), worker, os.getpid(), num_starts=3, num_recycles=1
    )
    words[24], words[32], words[40] = 5, 1_000, 777
    (figures,) = gauges([instance], rig.star, 0, now_ns=1_250)["instances"]
    rss_bytes = figures.pop("rss_bytes")
    assert 1 << 20 < rss_bytes < 1 << 34
    assert figures == {
        "model": "m", "version": 2, "model_instance": "m_0_0", "device": "CPU", "restarts": 2, "recycles": 1,
        "is_up": True, "busy_ns": 777, "executing_ns": 250, "batches": 4,
        "slab_used_bytes": 0, "slab_total_bytes": (1 << 20) + 4096, "ring_used_ratio": 0.0,
    }  # fmt: skip
    words[32] = 0
    (figures,) = gauges([instance], rig.star, 0, now_ns=1_250)["instances"]
    assert (figures["executing_ns"], figures["batches"]) == (0, 5)


def test_one_that_is_down_tells_what_there_is(rig: StarRig) -> None:
    on_gpu = replace(Instance(), placement=ON_CPU._replace(kind="KIND_GPU", device_id=1))
    assert gauges([Instance(), on_gpu], rig.star, 0, 0)["instances"] == [
        {"model": "m", "version": 2, "model_instance": "m_0_0", "device": device, "restarts": 0, "recycles": 0,
         "rss_bytes": 0, "is_up": False}
        for device in ("CPU", "GPU 1")
    ]  # fmt: skip


def test_of_two_instances_of_one_name_the_one_that_serves_is_told_of(rig: StarRig) -> None:
    worker, _ = join_worker(rig)
    serving = Instance(WorkerProgress(worker.read_only_fd, worker.link_fd), worker, num_starts=2)
    for instances in ((serving, Instance(num_starts=1)), (Instance(num_starts=1), serving)):
        (figures,) = gauges(instances, rig.star, 0, 0)["instances"]
        assert (figures["is_up"], figures["restarts"]) == (True, 1)


def test_front_ends_tell_how_full_their_memory_is(rig: StarRig) -> None:
    own = Segment.attach(os.dup(rig.client_a.segment_fd))
    slab = Slab(own)
    assert slab.allocate(4096)
    block = slab.allocate(3 * 4096)
    assert block
    writer = RingWriter(own, SegmentView.attach(os.dup(rig.client_a.link_fd)))
    capacity = own.header.ring_capacity
    for number in range(capacity // 2):
        writer.push(record(REQUEST, number))
    writer.publish()
    rig.client_a.member.pid = os.getpid()
    a, b = gauges([], rig.star, 0, 0)["front_ends"]
    assert (a["slab_used_bytes"], a["slab_total_bytes"], a["ring_used_ratio"]) == (4096 + 4 * 4096, 1 << 20, 0.5)
    assert (b["slab_used_bytes"], b["ring_used_ratio"]) == (0, 0.0)
    assert "pytest" in a["process"]
    slab.free(block.ref)
    assert gauges([], rig.star, 0, 0)["front_ends"][0]["slab_used_bytes"] == 4096


def test_responses_of_torchserves_protocol_are_added_up_and_outlive_their_front_end(rig: StarRig) -> None:
    processes = [rig.join_client() for _ in range(2)]
    for number, (process, _) in enumerate(processes):
        words = Segment.attach(os.dup(process.fds[0])).words
        words[72 + 2], words[72 + 5] = 10 + number, number
    assert gauges([], rig.star, 0, 0)["answered"] == [0, 0, 21, 0, 0, 1]
    rig.star.leave_client(processes[1][1])
    rig.settle()
    assert gauges([], rig.star, 0, 0)["answered"] == [0, 0, 21, 0, 0, 1]


def test_what_front_ends_count_beside_requests_outlives_them(rig: StarRig) -> None:
    processes = [rig.join_client() for _ in range(2)]
    for number, (process, _) in enumerate(processes):
        words = Segment.attach(os.dup(process.fds[0])).words
        words[80], words[81], words[82] = 10 + number, number, 5
    for _ in range(2):
        told = gauges([], rig.star, 0, 0)
        assert (told["handshakes_failed"], told["num_abandoned"]) == ({"http": 21, "grpc": 1}, 10)
        rig.star.leave_client(processes[1][1])
        rig.settle()


def test_a_worker_that_overwrites_the_head_of_its_segment_is_left_out(rig: StarRig) -> None:
    worker, words = join_worker(rig)
    words[4] = 0
    (figures,) = gauges([Instance(participant=worker)], rig.star, 0, 0)["instances"]
    assert "slab_used_bytes" not in figures


def test_the_server_tells_of_all_shared_memory_and_of_take_overs(rig: StarRig) -> None:
    told = gauges([], rig.star, 4, 0)
    assert told["num_takeovers"] == 4
    assert told["shared_bytes"] >= rig.star.nbytes
    assert msgpack.unpackb(msgpack.packb(told)) == told


def test_the_memory_of_a_model_is_that_of_its_processes_each_once() -> None:
    """Two instances share the first process; the last one's was not measured."""
    instances = [Instance(pid=7), Instance(pid=7), Instance(pid=8), Instance(pid=9), Instance()]
    measured = {7: MemoryFigures(100, {"GPU-1": 10}), 8: MemoryFigures(20, {"GPU-1": 1, "GPU-2": 3})}
    assert memory_of_models(instances, measured) == [
        {"model": "m", "version": 2, "nbytes": 120, "gpus": {"GPU-1": 11, "GPU-2": 3}}
    ]
    assert memory_of_models(instances, {}) == []
