"""A batcher dies: what its successor, clients and workers hear of one another, and when."""

from shoal.messages.shared import BatcherReplaced, SegmentAnnounced, SegmentGone
from shoal.messages.to_batcher import (
    BatcherActivated,
    BatcherMemoryMade,
    ClientCaughtUp,
    ClientJoined,
    PayloadAnnounced,
    Resume,
    RetireWorker,
    WorkerCaughtUp,
    WorkerDied,
    WorkerJoined,
    WorkerReady,
)
from shoal.messages.to_client import ClientWelcomed
from shoal.reasons import Reason
from shoal.supervisor.memory.participant import Participant
from tests.messages import FD
from tests.supervisor.star_rig import StarRig


def announced(worker: Participant, model_id: int) -> WorkerJoined:
    """The message that announces a worker to a successor."""
    return WorkerJoined(
        owner=worker.owner, model_id=model_id, demand=None, segment=FD, link=FD, bell=FD, workers_bell=FD,
        instance=worker.instance,
    )  # fmt: skip


def test_a_successor_is_sent_all_peers_before_their_records_and_waits_for_none(rig: StarRig) -> None:
    result = rig.make(rig.third, rig.worker_of_3)
    successor = rig.replace_batcher()
    joined, *told = successor.heard()
    assert joined.is_successor is True
    assert told == [
        ClientJoined(owner=rig.client_a.owner, is_late=True, segment=FD, link=FD, bell=FD, clients_bell=FD),
        ClientJoined(owner=rig.client_b.owner, is_late=True, segment=FD, link=FD, bell=FD, clients_bell=FD),
        announced(rig.worker_of_3, 3),
        WorkerReady(rig.worker_of_3.owner),
        PayloadAnnounced(owner=result, writer=rig.worker_of_3.owner, is_result=True, segment=FD),
        announced(rig.worker_of_4, 4),
        WorkerReady(rig.worker_of_4.owner),
    ]
    assert rig.a.heard() == rig.third.heard() == []
    rig.acknowledge(successor)
    assert rig.a.heard() == rig.b.heard() == rig.third.heard() == [BatcherReplaced()]
    assert successor.heard() == [Resume()]
    for process, message in (
        (rig.b, ClientCaughtUp(rig.client_b.owner)),
        (rig.third, WorkerCaughtUp(rig.worker_of_3.owner)),
        (rig.a, ClientCaughtUp(rig.client_a.owner)),
    ):
        rig.acknowledge(process)
        assert successor.heard() == [message]


def test_a_successor_has_memory_for_an_ensemble_that_came_while_there_was_no_batcher(rig: StarRig) -> None:
    rig.star.leave_batcher(rig.batcher.member)
    rig.star.give_batcher_memory()
    rig.star.payloads.ensembles.add(5)
    successor = rig.start()
    rig.star.join_batcher(successor.member)
    assert [type(message) for message in successor.heard()] == [BatcherActivated, BatcherMemoryMade]
    assert rig.a.heard() == [SegmentAnnounced(owner=rig.star.batcher_memory.owner, segment=FD)]


def test_a_client_that_joins_during_a_take_over_has_no_earlier_requests(rig: StarRig) -> None:
    successor, late = rig.replace_batcher(), rig.start()
    client = rig.begin_to_join(rig.star.join_client, late)
    rig.settle()
    assert ClientJoined(owner=client.owner, segment=FD, link=FD, bell=FD, clients_bell=FD) in successor.all_heard
    assert BatcherReplaced() not in late.all_heard
    assert ClientCaughtUp(client.owner) not in successor.all_heard


def test_who_joins_as_a_batcher_dies_is_welcome_once_the_successor_has_its_memory(rig: StarRig) -> None:
    """What it wrote before would be passed over, and it is not told to send that again."""
    process = rig.start()
    client = rig.begin_to_join(rig.star.join_client, process)
    first = rig.replace_batcher()
    assert process.heard() == []
    rig.batcher = first
    second = rig.replace_batcher()  # the first one dies before it has acknowledged
    assert process.heard() == []
    assert ClientJoined(owner=client.owner, segment=FD, link=FD, bell=FD, clients_bell=FD) in second.heard()
    rig.acknowledge(second)
    assert isinstance(process.heard()[0], ClientWelcomed)
    rig.settle()
    assert BatcherReplaced() not in process.all_heard


def test_a_successor_is_told_of_dead_workers_whose_answers_its_predecessor_had_not_passed_on(rig: StarRig) -> None:
    """Else it would have what they had begun executed a second time."""
    result = rig.make(rig.third, rig.worker_of_3)
    third = rig.worker_of_3.owner
    gone = WorkerDied(third, 5, 77, is_repeated=False)
    rig.star.leave_worker(rig.worker_of_3, Reason.INSTANCE_DIED, 77)
    assert rig.batcher.heard() == [gone]
    rig.star.leave_batcher(rig.batcher.member)
    assert rig.a.heard() == []
    rig.star.leave_worker(rig.worker_of_4, Reason.INSTANCE_DIED, 0)
    first, second = rig.start(), rig.start()
    for successor in (first, second):  # the first one dies, too, before it has passed anything on
        rig.star.join_batcher(successor.member)
        rig.star.introduce()
        told = successor.heard()[3:]
        assert told[:4] == [
            announced(rig.worker_of_3, 3),
            WorkerReady(third),
            RetireWorker(third),
            PayloadAnnounced(owner=result, writer=third, is_result=True, segment=FD),
        ]
        assert [type(message) for message in told[4:]] == [WorkerJoined, WorkerReady, RetireWorker]
        rig.acknowledge(successor)
        for process in (rig.a, rig.b):
            assert process.heard() == [BatcherReplaced()]
            rig.acknowledge(process)
        expected = [Resume, WorkerDied, WorkerDied, ClientCaughtUp, ClientCaughtUp]
        heard = successor.heard()
        assert [type(message) for message in heard] == expected
        # Whether the batcher before it was told of a death; none had been told of the second one.
        assert [message.is_repeated for message in heard[1:3]] == [True, successor is second]
        if successor is first:
            rig.star.leave_batcher(successor.member)
            assert rig.a.heard() == []
    rig.acknowledge(second)
    assert SegmentGone(third) in rig.a.heard()


def test_a_worker_that_dies_between_the_end_of_a_batchers_connection_and_of_its_process(rig: StarRig) -> None:
    """That batcher acknowledges nothing any more. Else what the worker had executed would be executed a second time."""
    third = rig.worker_of_3.owner
    rig.batcher.member.hang_up()
    rig.star.leave_worker(rig.worker_of_3, Reason.INSTANCE_DIED, 0)
    rig.settle()
    rig.star.leave_batcher(rig.batcher.member)
    successor = rig.start()
    rig.star.join_batcher(successor.member)
    rig.star.introduce()
    assert WorkerReady(third) in successor.heard()


def test_a_worker_that_dies_while_a_place_is_taken_is_reported_to_the_batcher_that_serves(rig: StarRig) -> None:
    successor = rig.replace_batcher()
    rig.star.leave_worker(rig.worker_of_3, Reason.INSTANCE_DIED, 0)
    rig.acknowledge(successor)
    assert WorkerDied not in [type(message) for message in successor.all_heard]
    for process in (rig.a, rig.b):
        rig.acknowledge(process)
    assert [type(message) for message in successor.heard()] == [Resume, WorkerDied, ClientCaughtUp, ClientCaughtUp]


def test_a_client_is_late_until_it_has_told_the_batcher_that_serves(rig: StarRig) -> None:
    """What it says of a batcher that is dead by then is no word to the next one."""
    for _ in range(2):
        rig.batcher = rig.replace_batcher()
        rig.acknowledge(rig.batcher)
    assert rig.a.heard() == [BatcherReplaced()] * 2
    for seq, is_late in zip(rig.a.unacknowledged, (True, False), strict=True):
        rig.star.acknowledgements.received(rig.a.member, seq)
        rig.clock.settle()
        assert rig.client_a.is_late == is_late


def test_a_successor_that_dies_while_it_hears_is_followed_by_another(rig: StarRig) -> None:
    rig.star.leave_batcher(rig.batcher.member)
    first, second = rig.start(), rig.start()
    for successor in (first, second):
        rig.star.join_batcher(successor.member)
        rig.star.introduce()
        if successor is first:
            rig.star.leave_batcher(first.member)
    rig.settle()
    assert rig.a.heard() == []
    assert rig.star.batcher is second.member
    resumed = [type(message) for message in second.all_heard].count(Resume)
    assert resumed == 1
    assert Resume not in [type(message) for message in first.all_heard]
