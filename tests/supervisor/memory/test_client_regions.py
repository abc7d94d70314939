"""Who hears of clients' regions, and when the client does; the test plays the processes that are told."""

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.messages.from_client import QuestionAsked
from shoal.messages.message import Message
from shoal.messages.to_client import CudaRegionRegistered, QuestionAnswered, RegionRegistered, RegionUnregistered
from shoal.messages.to_worker import CudaRegionGone
from shoal.supervisor.memory.client_regions import ClientRegions
from shoal.supervisor.processes.members import PATIENCE_S
from shoal.supervisor.questions.questions import Questions
from tests.messages import FD
from tests.supervisor.star_rig import StarRig

KEY = f"shoal-test-supervisor-{os.getpid()}"


class Office(StarRig):
    """A star with everybody joined whose front end a asks."""

    def __init__(self) -> None:
        super().__init__()
        self.regions = ClientRegions(self.star, [0, 2])
        self.questions = Questions(self.loop, self.regions.verbs)

    def unregister(self, name: str, kind: str = "system") -> None:
        self.ask_for("unregister_region", name, kind=kind)

    def ask_for(self, verb: str, name: str, **more: Any) -> None:
        self.questions.take(self.a.member, QuestionAsked(1, verb, {"name": name, **more}))
        self.clock.settle()

    def register(self, name: str, nbytes: int = 8, offset: int = 0) -> None:
        self.ask_for("register_region", name, key=KEY, offset=offset, byte_size=nbytes)


@pytest.fixture
def office() -> Iterator[Office]:
    file = Path("/dev/shm", KEY)
    file.write_bytes(bytes(64))
    made = Office()
    yield made
    file.unlink()
    made.close()


def news(name: str, nbytes: int = 8) -> RegionRegistered:
    return RegionRegistered(name=name, key=KEY, offset=0, byte_size=nbytes, memory=FD)


def answers(office: Office) -> list[tuple[int, str]]:
    office.clock.settle()
    return [(message.wire, message.sentence) for message in office.a.heard() if isinstance(message, QuestionAnswered)]


def test_the_client_hears_when_every_front_end_has_the_region(office: Office) -> None:
    office.register("r")
    assert office.a.heard() == office.b.heard() == [news("r")]
    assert office.batcher.heard() == office.third.heard() == []
    assert len({os.fstat(fd).st_ino for fd in (office.a.fds[-1], office.b.fds[-1])}) == 1
    office.acknowledge(office.a)
    assert answers(office) == []
    office.acknowledge(office.b)
    assert answers(office) == [(0, "")]


@pytest.mark.parametrize(("name", "left"), [("r", ["s"]), ("", [])])
def test_and_when_it_is_gone_everywhere(office: Office, name: str, left: list[str]) -> None:
    for each in ("r", "s"):
        office.register(each)
        office.settle()
    office.unregister(name)
    assert office.a.heard() == office.b.heard() == [RegionUnregistered("system", name)]
    office.acknowledge(office.a)
    assert answers(office) == []
    office.acknowledge(office.b)
    assert answers(office) == [(0, "")]
    # Who joins later hears of those that are left.
    process, client = office.join_client()
    process.heard()
    office.regions.send_to(client)
    assert process.heard() == [news(each) for each in left]


def test_a_refused_region_is_not_announced(office: Office) -> None:
    office.register("r")
    office.settle()
    office.register("r")
    office.register("s", 65)
    assert office.b.heard() == []
    assert answers(office) == [
        (7, "shared memory region 'r' already in manager"),
        (4, "failed to register shared memory region 's': invalid args"),
    ]


def test_regions_leave_descriptors_for_connections(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (8, 8))
    office.regions = ClientRegions(office.star)
    office.questions = Questions(office.loop, office.regions.verbs)
    for name in ("r", "s", "t"):
        office.register(name)
        office.settle()
    (refused,) = [each for each in office.a.all_heard if isinstance(each, QuestionAnswered) and each.wire]
    assert (refused.wire, refused.sentence[:33]) == (5, "2 shared memory regions are regis")


def test_descriptors_go_with_their_regions(office: Office, num_descriptors: Callable[[], int]) -> None:
    before = num_descriptors()
    for _ in range(3):
        office.register("r")
        office.settle()
        office.unregister("")
        office.settle()
        for process in (office.a, office.b):
            os.close(process.fds.pop())
    assert num_descriptors() == before


def on_gpu(name: str, number: int) -> CudaRegionRegistered:
    return CudaRegionRegistered(name=name, number=number, device_id=2, handle=b"h" * 64, byte_size=8)


def register_cuda(office: Office, name: str, device_id: int = 2) -> None:
    office.ask_for("register_cuda_region", name, handle=b"h" * 64, device_id=device_id, byte_size=8)


def test_memory_on_a_gpu_is_numbered_anew_with_each_registration(office: Office) -> None:
    for number in (1, 2):
        register_cuda(office, "r")
        assert office.a.heard() == office.b.heard() == [on_gpu("r", number)]
        assert office.third.heard() == []  # a worker hears of it with the first request
        office.settle()
        office.unregister("r", "cuda")
        office.settle()
    office.a.all_heard.clear()
    register_cuda(office, "r")
    office.settle()
    register_cuda(office, "r")
    register_cuda(office, "s", device_id=1)
    assert answers(office) == [
        (7, "shared memory region 'r' already in manager"),
        (4, "failed to register CUDA shared memory region 's': invalid device_id 1, the server's GPUs are: 0, 2"),
    ]
    process, client = office.join_client()
    process.heard()
    office.regions.send_to(client)
    assert process.heard() == [on_gpu("r", 3)]


def test_workers_close_what_front_ends_have_forgotten(office: Office) -> None:
    for name in ("r", "s"):
        register_cuda(office, name)
        office.settle()
    office.register("t")
    office.settle()
    office.a.all_heard.clear()
    office.unregister("t", "cuda")  # of the other kind
    assert office.third.heard() == []
    office.settle()
    office.unregister("", "cuda")
    assert office.third.heard() == office.fourth.heard() == []
    office.acknowledge(office.a)
    office.acknowledge(office.b)
    assert office.third.heard() == office.fourth.heard() == [CudaRegionGone(1), CudaRegionGone(2)]
    office.acknowledge(office.third)
    told = [message for message in office.a.all_heard if isinstance(message, QuestionAnswered)]
    assert len(told) == 1
    office.acknowledge(office.fourth)
    assert answers(office) == [(0, "")]


def test_a_worker_that_executes_is_not_waited_for(office: Office) -> None:
    register_cuda(office, "r")
    office.settle()
    office.unregister("r", "cuda")
    office.acknowledge(office.a)
    office.acknowledge(office.b)
    office.acknowledge(office.third)
    assert answers(office) == []
    office.clock.pass_time(PATIENCE_S)
    assert answers(office) == [(0, "")]


def test_a_region_on_a_gpu_has_a_number_of_each_server_of_an_upgrade(office: Office) -> None:
    """Both number regions on, so a number of the other server's may be one of this server's."""
    register_cuda(office, "q")
    office.settle()
    office.a.heard()
    office.b.heard()
    office.regions.restore(on_gpu("r", 1))
    assert office.a.heard() == office.b.heard() == [on_gpu("r", 2)]
    office.settle()
    register_cuda(office, "s")
    assert office.a.heard() == [on_gpu("s", 3)]
    office.settle()
    office.regions.restore(RegionUnregistered("cuda", "r"))
    assert office.a.heard() == [RegionUnregistered("cuda", "r")]
    assert office.third.heard() == [CudaRegionGone(2)]


def test_changes_by_clients_are_reported_to_the_old_server_and_its_own_are_not(office: Office) -> None:
    reported = list[Message]()
    office.regions.report = reported.append
    office.regions.restore(on_gpu("r", 1))
    office.settle()
    register_cuda(office, "s")
    office.settle()
    office.unregister("s", "cuda")
    office.settle()
    assert reported == [on_gpu("s", 2), RegionUnregistered("cuda", "s")]


def test_a_change_that_a_new_server_has_sent_is_not_sent_back(office: Office) -> None:
    follower = office.start()
    office.regions.follow(follower.member)
    office.regions.restore(on_gpu("r", 1))
    register_cuda(office, "s")
    assert follower.heard() == [on_gpu("s", 2)]
