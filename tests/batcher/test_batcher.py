"""The batcher's loop, at a real control connection: the test plays the supervisor, a client and workers."""

from shoal.messages import to_batcher
from shoal.messages.from_batcher import ModelRetired, WorkerRetired
from shoal.messages.shared import LedgerWanted, Ping
from shoal.shm import layout
from shoal.shm.layout import BATCH_ITEM, CLIENT, HAVE, REPLY, REQUEST, P
from tests.batcher.batcher_process import FIRST, FRONT_END, MODEL, SECOND, answer, ask, batching


def test_a_worker_that_makes_way_is_reported_when_it_has_answered() -> None:
    with batching() as supervisor:
        client, first = supervisor.add(CLIENT, FRONT_END), supervisor.add_worker(FIRST)
        ask(client, 1)
        item = first.receive()
        supervisor.send_message(to_batcher.RetireWorker(FIRST))
        second = supervisor.add_worker(SECOND)
        ask(client, 2)
        answer(second, second.receive())
        assert client.receive()[P.NUMBER] == 2
        answer(first, item)
        assert supervisor.receive() == WorkerRetired(FIRST)
        assert client.receive()[:2] == (REPLY, 1)
        supervisor.send_message(to_batcher.WorkerDied(owner=FIRST, reason=5, detail=0))


def test_a_model_that_makes_way_first_serves_what_stands_in_rings() -> None:
    with batching() as supervisor:
        client, worker = supervisor.add(CLIENT, FRONT_END), supervisor.add_worker(FIRST)
        # Visible, and no bell has rung for it.
        client.writer.push(layout.record(REQUEST, 1, MODEL, layout.pack_ref(FRONT_END, 3, 1), 64 << 32 | 40, 1))
        client.writer.publish()
        supervisor.send_message(to_batcher.RetireModel(MODEL))
        item = worker.receive()
        assert item[0] == BATCH_ITEM
        answer(worker, item)
        assert supervisor.receive() == ModelRetired(MODEL)
        supervisor.send_message(to_batcher.ModelRemoved(MODEL))


def test_a_successor_that_is_told_again_reports_after_it_serves() -> None:
    with batching(is_successor=True) as supervisor:
        supervisor.add(CLIENT, FRONT_END)
        supervisor.add_worker(FIRST)
        for message in (to_batcher.RetireWorker(FIRST), to_batcher.RetireModel(MODEL)):
            supervisor.send_message(message)
        supervisor.send_message(Ping())  # turns the loop once more; nothing may have been said
        supervisor.send_message(to_batcher.Resume())
        assert supervisor.receive() == WorkerRetired(FIRST)
        assert supervisor.receive() == ModelRetired(MODEL)


def test_a_successor_looks_once_more_at_a_worker_that_has_told_it_all() -> None:
    with batching(is_successor=True) as supervisor:
        supervisor.add(CLIENT, FRONT_END)
        worker = supervisor.add_worker(FIRST)
        supervisor.send_message(to_batcher.Resume())
        for number in (1, 2):  # from the second time on nothing else is awaited of it
            worker.send(HAVE, 0, 0, 0, layout.pack_ref(FIRST, number, 1))
            supervisor.send_message(to_batcher.WorkerCaughtUp(FIRST))
            supervisor.channel.send(LedgerWanted())
            counts = supervisor.receive().counts
            assert (counts["slots_acquired"], counts["slots_released"]) == (number, number)
