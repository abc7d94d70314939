"""Who hears of clients' regions, and when the client does; the test plays the processes that are told."""

import os
import resource
from collections.abc import Callable, Iterator
from typing import Any

import posix_ipc
import pytest

from shoal.messages.from_client import QuestionAsked
from shoal.messages.to_client import QuestionAnswered, RegionRegistered, RegionUnregistered
from shoal.supervisor.memory.client_regions import ClientRegions
from shoal.supervisor.questions.questions import Questions
from tests.messages import FD
from tests.supervisor.star_rig import StarRig

KEY = f"shoal-test-supervisor-{os.getpid()}"


class Office(StarRig):
    """A star with everybody joined whose front end a asks."""

    def __init__(self) -> None:
        super().__init__()
        self.regions = ClientRegions(self.star)
        self.questions = Questions(self.loop, self.regions.verbs)

    def ask_for(self, verb: str, name: str, **more: Any) -> None:
        self.questions.take(self.a.member, QuestionAsked(1, verb, {"name": name, **more}))
        self.clock.settle()

    def register(self, name: str, nbytes: int = 8, offset: int = 0) -> None:
        self.ask_for("register_region", name, key=KEY, offset=offset, byte_size=nbytes)


@pytest.fixture
def office() -> Iterator[Office]:
    posix_ipc.SharedMemory(f"/{KEY}", posix_ipc.O_CREX, size=64).close_fd()
    made = Office()
    yield made
    posix_ipc.unlink_shared_memory(f"/{KEY}")
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
    office.ask_for("unregister_region", name)
    assert office.a.heard() == office.b.heard() == [RegionUnregistered(name)]
    office.acknowledge(office.a)
    assert answers(office) == []
    office.acknowledge(office.b)
    assert answers(office) == [(0, "")]
    # Who joins later hears of those that are left.
    process, client = office.join_client()
    process.heard()
    office.regions.send_to(client)
    assert process.heard() == [news(each) for each in left]


def test_a_region_that_is_refused_is_told_to_nobody(office: Office) -> None:
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
        office.ask_for("unregister_region", "")
        office.settle()
        for process in (office.a, office.b):
            os.close(process.fds.pop())
    assert num_descriptors() == before
