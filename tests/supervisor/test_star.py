"""Who hears of a payload's segment and when: the test plays the batcher, front ends and workers at real connections."""

import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.control import Channel, Message
from shoal.model_config.rate_limiter import Demand, Resource
from shoal.options import ServerOptions
from shoal.placement import Placement
from shoal.reasons import Reason
from shoal.supervisor.event_loop import EventLoop
from shoal.supervisor.members import PATIENCE_S, Acknowledgements, Member
from shoal.supervisor.participant import Participant
from shoal.supervisor.star import Star

OPTIONS = ServerOptions(
    model_repository=(Path(),), shm_client_slab_mib=1, shm_worker_slab_mib=1, shm_oversize_mib=4, max_in_flight=8
)
CONFIG = {"max_batch_size": 0, "output": []}
NBYTES = 2 << 20
PLACEMENT = Placement("m_0", "m", "KIND_CPU", 0, (0,), demand=Demand(2, ((Resource("R", 0), 3),)))
F_GET_SEALS, FUTURE_WRITE_AND_SEAL = 1034, 0x10 | 0x01


class Process:
    """One end of a control connection and what came over it."""

    def __init__(self, loop: EventLoop) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        theirs.setblocking(False)
        self.channel = Channel(theirs)
        self.member = Member(loop, Channel(ours), pid=1)
        self.fds: list[int] = []
        self.all_heard: list[Message] = []
        self.unacknowledged: list[int] = []

    def heard(self) -> list[Message]:
        """What came since the last time, without sequence numbers."""
        found = list[Message]()
        while True:
            try:
                message, fds = self.channel.receive()
            except BlockingIOError:
                return found
            self.fds += fds
            if (seq := message.pop("seq", None)) is not None:
                self.unacknowledged.append(seq)
            found.append(message)
            self.all_heard.append(message)

    def close(self) -> None:
        self.channel.close()
        self.member.hang_up()
        for fd in self.fds:
            os.close(fd)


class Sky:
    """A star with everybody joined: a batcher, front ends a and b, workers of models 3 and 4."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.star = Star(OPTIONS, {}, Acknowledgements(self.loop))
        self.all: list[Process] = []
        self.batcher = self.start()
        self.star.join_batcher(self.batcher.member)
        self.a, self.client_a = self.join_client()
        self.b, self.client_b = self.join_client()
        self.third, self.worker_of_3 = self.join_worker(3)
        self.fourth, self.worker_of_4 = self.join_worker(4)
        self.settle()

    def start(self) -> Process:
        self.all.append(Process(self.loop))
        return self.all[-1]

    def join_client(self) -> tuple[Process, Participant]:
        process = self.start()
        client = self.star.join_client(process.member, {}, lambda _client: None)
        self.settle()
        return process, client

    def join_worker(self, model_id: int) -> tuple[Process, Participant]:
        process = self.start()
        worker = self.star.join_worker(process.member, CONFIG)
        self.star.announce_worker(worker, model_id, lambda: self.star.admit_worker(worker), PLACEMENT)
        return process, worker

    def acknowledge(self, process: Process) -> None:
        process.heard()
        while process.unacknowledged:
            self.star.acknowledgements.received(process.member, process.unacknowledged.pop(0))

    def settle(self) -> None:
        """Everybody reads and acknowledges until nothing is said any more."""
        said = True
        while said:
            said = False
            for process in self.all:
                said |= bool(process.heard()) or bool(process.unacknowledged)
                self.acknowledge(process)

    def ask(self, process: Process, asker: Participant) -> Message:
        """Ask for a segment for model 3; the answer."""
        self.star.payloads.hear(asker, {"op": "oversize", "request": 7, "nbytes": NBYTES, "model": 3})
        return process.heard()[-1]

    def make(self, process: Process, asker: Participant) -> int:
        """A segment that its writer has mapped and that everybody knows; its owner id."""
        owner = int(self.ask(process, asker)["owner"])
        self.star.payloads.hear(asker, {"op": "oversize_mapped", "owner": owner})
        self.settle()
        return owner


@pytest.fixture
def sky() -> Iterator[Sky]:
    made = Sky()
    yield made
    for each in (*made.star.clients.values(), *made.star.workers.values()):
        each.close()
    for process in made.all:
        process.close()


def test_a_successor_hears_of_everybody_before_they_speak_to_it_and_waits_for_nobody(sky: Sky) -> None:
    result = sky.make(sky.third, sky.worker_of_3)
    sky.star.leave_batcher(sky.batcher.member)
    successor = sky.start()
    sky.star.join_batcher(successor.member)
    sky.star.introduce()
    joined, *told = successor.heard()
    assert joined["is_successor"] is True
    assert told == [
        {"op": "client", "owner": sky.client_a.owner, "is_late": True},
        {"op": "client", "owner": sky.client_b.owner, "is_late": True},
        {"op": "worker", "owner": sky.worker_of_3.owner, "model": 3},
        {"op": "worker_ready", "owner": sky.worker_of_3.owner},
        {"op": "segment", "owner": result, "worker": sky.worker_of_3.owner},
        {"op": "worker", "owner": sky.worker_of_4.owner, "model": 4},
        {"op": "worker_ready", "owner": sky.worker_of_4.owner},
    ]
    assert sky.a.heard() == sky.third.heard() == []
    sky.acknowledge(successor)
    assert sky.a.heard() == sky.b.heard() == sky.third.heard() == [{"op": "batcher"}]
    assert successor.heard() == [{"op": "resume"}]
    for process, op, each in (
        (sky.b, "client_told", sky.client_b),
        (sky.third, "worker_told", sky.worker_of_3),
        (sky.a, "client_told", sky.client_a),
    ):
        sky.acknowledge(process)
        assert successor.heard() == [{"op": op, "owner": each.owner}]


def test_who_joins_while_a_successor_hears_of_everybody_has_said_nothing_before(sky: Sky) -> None:
    sky.star.leave_batcher(sky.batcher.member)
    successor, late = sky.start(), sky.start()
    sky.star.join_batcher(successor.member)
    sky.star.introduce()
    client = sky.star.join_client(late.member, {}, lambda _client: None)
    sky.settle()
    assert {"op": "client", "owner": client.owner} in successor.all_heard
    assert {"op": "batcher"} not in late.all_heard
    assert {"op": "client_told", "owner": client.owner} not in successor.all_heard


def test_a_successor_is_told_of_dead_workers_whose_answers_its_predecessor_had_not_passed_on(sky: Sky) -> None:
    """Else it would have what they had begun executed a second time."""
    result = sky.make(sky.third, sky.worker_of_3)
    third = sky.worker_of_3.owner
    gone = {"op": "worker_gone", "owner": third, "reason": 5, "detail": 77}
    sky.star.leave_worker(sky.worker_of_3, Reason.INSTANCE_DIED, 77)
    assert sky.batcher.heard() == [gone]
    sky.star.leave_batcher(sky.batcher.member)
    assert sky.a.heard() == []
    sky.star.leave_worker(sky.worker_of_4, Reason.INSTANCE_DIED, 0)
    first, second = sky.start(), sky.start()
    for successor in (first, second):  # the first one dies, too, before it has passed anything on
        sky.star.join_batcher(successor.member)
        sky.star.introduce()
        told = successor.heard()[3:]
        assert told[:4] == [
            {"op": "worker", "owner": third, "model": 3},
            {"op": "worker_ready", "owner": third},
            {"op": "worker_retire", "owner": third},
            {"op": "segment", "owner": result, "worker": third},
        ]
        assert [message["op"] for message in told[4:]] == ["worker", "worker_ready", "worker_retire"]
        sky.acknowledge(successor)
        for process in (sky.a, sky.b):
            assert process.heard() == [{"op": "batcher"}]
            sky.acknowledge(process)
        assert [message["op"] for message in successor.heard()] == ["resume", "worker_gone", "worker_gone"]
        if successor is first:
            sky.star.leave_batcher(successor.member)
            assert sky.a.heard() == []
    sky.acknowledge(second)
    assert {"op": "segment_gone", "owner": third} in sky.a.heard()


def test_a_worker_that_dies_while_a_place_is_taken_is_reported_to_the_batcher_that_serves(sky: Sky) -> None:
    sky.star.leave_batcher(sky.batcher.member)
    successor = sky.start()
    sky.star.join_batcher(successor.member)
    sky.star.introduce()
    sky.star.leave_worker(sky.worker_of_3, Reason.INSTANCE_DIED, 0)
    sky.acknowledge(successor)
    assert "worker_gone" not in [message["op"] for message in successor.all_heard]
    for process in (sky.a, sky.b):
        sky.acknowledge(process)
    assert [message["op"] for message in successor.heard()] == ["resume", "worker_gone"]


def test_a_successor_that_dies_while_it_hears_is_followed_by_another(sky: Sky) -> None:
    sky.star.leave_batcher(sky.batcher.member)
    first, second = sky.start(), sky.start()
    for successor in (first, second):
        sky.star.join_batcher(successor.member)
        sky.star.introduce()
        if successor is first:
            sky.star.leave_batcher(first.member)
    sky.settle()
    assert sky.a.heard() == []
    assert sky.star.batcher is second.member
    resumed = [message["op"] for message in second.all_heard].count("resume")
    assert resumed == 1
    assert "resume" not in [message["op"] for message in first.all_heard]


def test_a_request_may_be_named_at_once_and_its_worker_asks_for_it(sky: Sky) -> None:
    answer = sky.ask(sky.a, sky.client_a)
    owner = answer["owner"]
    assert answer == {"op": "oversize", "request": 7, "owner": owner}
    sky.star.payloads.hear(sky.client_a, {"op": "oversize_mapped", "owner": owner})
    assert fcntl.fcntl(sky.a.fds[-1], F_GET_SEALS) & FUTURE_WRITE_AND_SEAL == FUTURE_WRITE_AND_SEAL
    assert sky.a.heard() == [{"op": "oversize_ready", "owner": owner}]
    assert sky.third.heard() == sky.b.heard() == sky.fourth.heard() == sky.batcher.heard() == []
    sky.star.lend(sky.worker_of_3, owner)
    assert sky.third.heard() == [{"op": "segment", "owner": owner}]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(sky.third.fds[-1], b"x", 0)


def test_a_front_end_joins_although_every_worker_executes(sky: Sky) -> None:
    process, joined = sky.start(), list[Participant]()
    client = sky.star.join_client(process.member, {}, joined.append)
    for each in (sky.batcher, process):
        sky.acknowledge(each)
    assert joined == [client]
    assert sky.third.heard() == sky.fourth.heard() == [{"op": "segment", "owner": client.owner}]  # to spare a question
    assert sky.third.unacknowledged == []
    sky.star.leave_client(client)
    sky.acknowledge(sky.batcher)
    assert sky.third.heard() == sky.fourth.heard() == [{"op": "segment_gone", "owner": client.owner}]


def test_a_worker_comes_up_although_it_has_not_read_of_front_ends(sky: Sky) -> None:
    process, up = sky.start(), list[str]()
    worker = sky.star.join_worker(process.member, CONFIG)
    sky.star.announce_worker(worker, 3, lambda: up.append("up"), PLACEMENT)
    for each in (sky.batcher, sky.a):
        sky.acknowledge(each)
    assert up == []
    sky.acknowledge(sky.b)
    assert up == ["up"]
    assert process.heard()[1:] == [{"op": "segment", "owner": each.owner} for each in (sky.client_a, sky.client_b)]


def test_a_result_may_be_named_after_the_batcher_and_all_front_ends_know_it(sky: Sky) -> None:
    owner = sky.ask(sky.third, sky.worker_of_3)["owner"]
    sky.star.payloads.hear(sky.worker_of_3, {"op": "oversize_mapped", "owner": owner})
    assert sky.a.heard() == sky.b.heard() == [{"op": "segment", "owner": owner}]
    assert sky.batcher.heard() == [{"op": "segment", "owner": owner, "worker": sky.worker_of_3.owner}]
    assert sky.fourth.heard() == []
    for process in (sky.a, sky.batcher, sky.b):
        assert sky.third.heard() == []
        sky.acknowledge(process)
    assert sky.third.heard() == [{"op": "oversize_ready", "owner": owner}]


def test_a_front_end_that_joins_later_knows_what_workers_may_have_kept(sky: Sky) -> None:
    result = sky.make(sky.third, sky.worker_of_3)
    late, _ = sky.join_client()
    assert {"op": "segment", "owner": result} in late.all_heard
    sky.star.payloads.hear(sky.worker_of_3, {"op": "oversize_gone", "owner": result})
    assert late.heard() == [{"op": "segment_gone", "owner": result}]


def test_a_writer_is_told_what_it_may_keep(sky: Sky) -> None:
    sky.star.payloads.hear(sky.client_a, {"op": "oversize", "request": 8, "nbytes": 4096, "model": 3})
    (answer,) = sky.a.heard()
    assert answer == {"op": "oversize", "request": 8, "owner": answer["owner"], "keep": True}


def test_room_comes_back_when_all_readers_have_let_go(sky: Sky) -> None:
    owner = sky.make(sky.a, sky.client_a)
    sky.star.lend(sky.worker_of_3, owner)
    refusal = sky.ask(sky.b, sky.client_b)
    assert (refusal["request"], refusal["wire"]) == (7, 5)
    assert refusal["sentence"].endswith("or raise --shm-oversize-mib")
    assert sky.third.heard() == [{"op": "segment", "owner": owner}]
    sky.star.payloads.hear(sky.client_b, {"op": "oversize_gone", "owner": owner})  # it is not b's to end
    assert sky.third.heard() == []
    sky.star.payloads.hear(sky.client_a, {"op": "oversize_gone", "owner": owner})
    sky.star.payloads.hear(sky.client_a, {"op": "oversize_gone", "owner": owner})
    assert sky.third.heard() == [{"op": "segment_gone", "owner": owner}]
    assert "sentence" in sky.ask(sky.b, sky.client_b)
    sky.acknowledge(sky.third)
    assert "owner" in sky.ask(sky.b, sky.client_b)


def test_a_dead_front_ends_requests_go_when_the_batcher_has_forgotten_them(sky: Sky) -> None:
    owner = sky.make(sky.a, sky.client_a)
    sky.star.lend(sky.worker_of_3, owner)
    sky.settle()
    sky.star.leave_client(sky.client_a)
    assert sky.third.heard() == []
    sky.acknowledge(sky.batcher)
    assert {"op": "segment_gone", "owner": owner} in sky.third.heard()
    sky.acknowledge(sky.third)
    assert "owner" in sky.ask(sky.b, sky.client_b)


def test_a_dead_workers_results_go_when_the_batcher_has_passed_them_on(sky: Sky) -> None:
    owner = sky.make(sky.third, sky.worker_of_3)
    sky.star.leave_worker(sky.worker_of_3, Reason.INSTANCE_DIED, 77)
    assert sky.a.heard() == []
    sky.acknowledge(sky.batcher)
    assert {"op": "segment_gone", "owner": owner} in sky.a.heard()
    assert "sentence" in sky.ask(sky.b, sky.client_b)
    sky.settle()
    assert "owner" in sky.ask(sky.b, sky.client_b)


def test_batcher_hears_how_a_worker_ended(sky: Sky) -> None:
    sky.star.leave_worker(sky.worker_of_3, Reason.INSTANCE_DIED, 77)
    assert sky.batcher.heard() == [{"op": "worker_gone", "owner": sky.worker_of_3.owner, "reason": 5, "detail": 77}]


def test_owner_ids_come_round_and_skip_who_is_there(sky: Sky) -> None:
    taken = {each.owner for each in (sky.client_a, sky.client_b, sky.worker_of_3, sky.worker_of_4)}
    sky.star.give_batcher_memory()
    taken |= {sky.star.batcher_memory.owner, 1}  # the counters came first
    held = sky.make(sky.a, sky.client_a)
    sky.star.leave_worker(sky.worker_of_4, Reason.INSTANCE_DIED, 0)  # its last answers are still to be passed on
    sky.star.next_owner = (1 << 24) - 1
    owners = [sky.star.take_owner() for _ in range(16)]
    assert owners[0] == (1 << 24) - 1
    assert 0 not in owners
    assert (taken | {held}).isdisjoint(owners)
    assert sorted(owners[1:]) == owners[1:]


def test_memory_of_the_batchers_own_is_made_once_and_anew_for_a_successor(sky: Sky) -> None:
    sky.star.give_batcher_memory()
    sky.star.give_batcher_memory()
    owner = sky.star.batcher_memory.owner
    assert sky.batcher.heard() == [{"op": "memory"}]
    assert sky.a.heard() == sky.b.heard() == [{"op": "segment", "owner": owner}]
    sky.star.lend(sky.worker_of_3, owner)
    assert sky.third.heard() == [{"op": "segment", "owner": owner}]
    sky.star.leave_batcher(sky.batcher.member)
    successor = sky.start()
    sky.star.join_batcher(successor.member)
    sky.star.introduce()
    joined, memory, *_ = successor.heard()
    assert (joined["op"], memory) == ("joined", {"op": "memory"})
    assert sky.third.heard() == [{"op": "segment_gone", "owner": owner}]
    assert sky.a.heard() == [{"op": "segment_gone", "owner": owner}]
    sky.acknowledge(successor)
    assert sky.a.heard() == [{"op": "segment", "owner": sky.star.batcher_memory.owner}, {"op": "batcher"}]
    assert sky.star.batcher_memory.owner != owner


def test_the_batcher_reads_large_requests_to_ensembles_itself(sky: Sky) -> None:
    sky.star.payloads.ensembles.add(3)
    owner = int(sky.ask(sky.a, sky.client_a)["owner"])
    sky.star.payloads.hear(sky.client_a, {"op": "oversize_mapped", "owner": owner})
    assert sky.third.heard() == []
    assert sky.batcher.heard()[-1] == {"op": "segment", "owner": owner, "asker": sky.client_a.owner}


def test_a_change_is_in_force_once_clients_act_upon_it_and_the_batcher_upon_what_it_was_told(sky: Sky) -> None:
    done: list[str] = []
    sky.star.tell_batcher({"op": "ensemble_models"})
    sky.star.announce_to_clients([{"op": "version"}], lambda: done.append("changed"))
    for process in (sky.a, sky.b):
        assert process.heard() == [{"op": "version"}]
        sky.acknowledge(process)
    assert done == []
    assert sky.batcher.heard() == [{"op": "ensemble_models"}, {"op": "ping"}]
    sky.acknowledge(sky.batcher)
    assert done == ["changed"]


def test_a_change_does_not_wait_for_models_that_call_others_for_long(sky: Sky) -> None:
    process = sky.start()
    sky.star.join_caller(process.member, {}, lambda _caller: None)
    sky.settle()
    done: list[str] = []
    sky.star.announce_to_clients([{"op": "version"}], lambda: done.append("changed"))
    for each in (sky.a, sky.b, sky.batcher):
        sky.acknowledge(each)
    assert done == []  # it mostly hears at once, and then asks for nothing that is gone
    sky.loop.call_after(PATIENCE_S, sky.loop.stop)
    sky.loop.run()
    assert done == ["changed"]
    sky.acknowledge(process)
    assert process.all_heard[-1] == {"op": "version"}
    assert done == ["changed"]
