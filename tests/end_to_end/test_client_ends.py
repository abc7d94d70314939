"""Clients that fork, die, stand still or lie, and a server that does not survive: what that undoes, and what not."""

import gc
import mmap
import os
import signal
import socket
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import msgpack
import pytest

from shoal import Client, errors
from shoal.client.request_arguments import RequestArguments
from shoal.errors import ConnectionLostError
from shoal.shm.layout import TAIL_WORD
from tests.end_to_end.client_deaths import cycle
from tests.end_to_end.client_server import BOTH, A, B, repeat, sums
from tests.end_to_end.server import (
    DEADLINE_S,
    LOOK_AGAIN_S,
    SAMPLES,
    Server,
    descendants,
    imbalances,
    only,
    serving_to_the_end,
    title,
)

#: Answers for a minute, ten a second: a client that hangs up is not waited for longer than that.
LASTING = repeat(*range(600), delay_ms=100)

# -- what a request names ----------------------------------------------------------------------------------------------


def test_memory_that_a_request_names_stays_until_its_answer(client: Client) -> None:
    inputs = {"INPUT0": client.empty("echo", "INPUT0", (2, 50_000))}
    inputs["INPUT0"][:] = 3
    for _ in range(2):
        client.infer("echo", inputs)
    session = client._connected()
    taken = session.connection._port.slab.num_taken
    call, sleeper = client._submit(RequestArguments("echo", inputs))
    inputs.clear()
    session.connection.tidy()
    assert session.connection._port.slab.num_taken == taken + 1  # with the request's own
    with call:
        assert session.connection.wait(call.waiter, sleeper, float("inf"))
        assert (call.result()["OUTPUT0"] == 3).all()


# -- forks, deaths, restarts -------------------------------------------------------------------------------------------


def test_a_fork_has_a_connection_of_its_own(client: Client) -> None:
    held = client.infer("simple", BOTH, copy=False)
    features = client.empty("mlp", "features", (8, 512))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            del held, features
            gc.collect()
            code = 0 if sums(client) and sums(client) else 2
        finally:
            os._exit(code)
    answered = [sums(client) for _ in range(100)]
    assert os.waitpid(child, 0)[1] == 0
    assert all(answered)
    assert (held["OUTPUT0"] == A + B).all()


def test_a_fork_that_closes_what_it_has_inherited_touches_nothing_shared(client: Client) -> None:
    """Not the ring of requests, which the original has written to meanwhile; and a lock that another thread held at the
    fork is not waited for."""
    answers = client.stream("repeat", LASTING)
    assert isinstance(answers, Generator)
    next(answers)
    connection = client._connected().connection
    closes, closed = os.pipe()
    has_lock, may_release = threading.Event(), threading.Event()

    def hold_lock() -> None:
        with connection._lock:
            has_lock.set()
            may_release.wait()

    holder = threading.Thread(target=hold_lock)
    holder.start()
    has_lock.wait()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(DEADLINE_S))  # where it waits for ever
            os.read(closes, 1)
            answers.close()
            client.close()
            os._exit(0)
        finally:
            os._exit(1)
    may_release.set()
    holder.join()
    assert all(sums(client) for _ in range(20))
    tail = connection._port._writer._own_words[TAIL_WORD]
    os.write(closed, b"x")
    for fd in (closes, closed):
        os.close(fd)
    assert os.waitpid(child, 0)[1] == 0
    assert connection._port._writer._own_words[TAIL_WORD] == tail
    next(answers)
    answers.close()
    assert sums(client)


def test_clients_that_are_killed_leave_nothing(client_served: Server, client_path: str) -> None:
    with Client(client_path) as other:
        assert sums(other)
        cycle(client_path, 10)
        before = client_served.ledger_once(lambda ledger: not imbalances(ledger))["supervisor"]
        done = threading.Event()

        def go_on() -> bool:
            answers = [sums(other)]
            while not done.wait(LOOK_AGAIN_S):
                answers.append(sums(other))
            return all(answers)

        with ThreadPoolExecutor(1) as pool:
            answers = pool.submit(go_on)
            cycle(client_path, 80)
            done.set()
            assert answers.result()
        after = client_served.ledger_once(
            lambda ledger: not imbalances(ledger) and ledger["supervisor"]["descriptors"] <= before["descriptors"]
        )["supervisor"]
    assert after["shared_bytes"] == before["shared_bytes"]


def raw(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(20)
    connection.connect(path)
    return connection


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x00",
        b"\x01",
        b"\x00\xc1",
        b"\x00" + b"\x91" * 4000,
        b"x" * 60_000,
        ["BatcherReplaced", 0],
        ["BatcherConnected", 0],
        ["GuestConnected", 0, 5],
        {"op": 5},
        [1],
        ["Acknowledged", 0, 1],
    ],
    ids=lambda said: str(said)[:20],
)
def test_who_does_not_join_is_hung_up_on(client: Client, client_path: str, said: object) -> None:
    with raw(client_path) as connection:
        connection.send(said if isinstance(said, bytes) else b"\x00" + (msgpack.packb(said) or b""))
        assert connection.recv(100) == b""
    assert sums(client)


@pytest.mark.parametrize(
    "said",
    [
        ["PayloadWanted", 0, 1, -1, 0],
        ["PayloadWanted", 0, 1, "1", 0],
        ["PayloadReleased", 0],
        ["SegmentWanted", 0, None],
        ["SegmentWanted", 0, 1, 2],
        ["QuestionAsked", 0, 1, "statistics", []],
        ["WorkerDied", 0, 1, 5, 0],
    ],
    ids=str,
)
def test_who_says_what_no_client_says_is_hung_up_on(client: Client, client_path: str, said: list[object]) -> None:
    with Client(client_path) as hostile:
        assert sums(hostile)
        answers = hostile.stream("repeat", LASTING)
        hostile._connected().connection.channel.send_encoded(msgpack.packb(said) or b"", ())
        with pytest.raises(ConnectionLostError):
            list(answers)
        assert sums(hostile)  # connected anew
    assert sums(client)


@pytest.mark.parametrize("verb", ["load", "unload", "gauges", "log_settings", "nothing"])
def test_a_guest_cannot_change_the_server(client: Client, verb: str) -> None:
    with pytest.raises(errors.InternalError, match="does not know the verb"):
        client._ask(verb)


def test_a_guest_that_writes_over_its_head_harms_itself(client: Client, client_path: str) -> None:
    with Client(client_path) as hostile:
        memory = hostile._connected().connection._port.slab._memory.obj
        assert isinstance(memory, mmap.mmap)
        memory[:4096] = b"\xff" * 4096
        with pytest.raises(errors.ShoalError):
            hostile.infer("simple", BOTH, timeout=20)
    assert sums(client)


def test_too_many_clients(client_served: Server, client_path: str, client: Client) -> None:
    assert sums(client)
    clients = [Client(client_path) for _ in range(39)]
    try:
        for each in clients:
            assert each.is_live()
        with pytest.raises(errors.UnavailableError, match="raise --client-count"):
            Client(client_path).server_metadata()
        assert sums(client)
    finally:
        for each in clients:
            each.close()


def test_a_batcher_that_dies_is_not_noticed(client_served: Server, client_path: str, client: Client) -> None:
    batcher = next(pid for pid in descendants(client_served.process.pid) if title(pid) == "shoal batcher")
    held = client.infer("simple", BOTH, copy=False)
    stopped = stand_still(client_path)
    try:
        with ThreadPoolExecutor(4) as pool:
            answers = [pool.submit(sums, client) for _ in range(400)]
            os.kill(batcher, signal.SIGKILL)
            assert all(each.result(30) for each in answers)
        assert (held["OUTPUT0"] == A + B).all()
    finally:
        os.kill(stopped, signal.SIGKILL)
        os.waitpid(stopped, 0)


def stand_still(path: str) -> int:
    """A client that is connected and reads nothing more; its process."""
    child = os.fork()
    if child == 0:
        other = Client(path)
        sums(other)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    return child


# -- the last: the server does not survive it --------------------------------------------------------------------------


def test_the_server_restarts(client_served: Server, client_path: str, client: Client) -> None:
    assert sums(client)
    array = client.empty("simple", "INPUT0", (1, 16))
    array[:] = A
    answers = client.stream("repeat", LASTING)
    client_served.process.kill()
    with pytest.raises(ConnectionLostError):
        list(answers)
    with pytest.raises(ConnectionLostError):
        client.infer("simple", BOTH)
    assert os.path.exists(client_path)  # what a server leaves that was killed
    with serving_to_the_end(SAMPLES, *only("simple"), f"--client-socket={client_path}"):
        assert sums(client)
        assert (client.infer("simple", {"INPUT0": array, "INPUT1": B})["OUTPUT0"] == A + B).all()
    assert not client.is_live()
