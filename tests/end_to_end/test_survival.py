"""Conditions that a server survives: too few descriptors, too little memory, an unread log, a worker that lies.

One server for all: the limits of its processes are lowered and raised from outside, as if they had been used up.
"""

import json
import os
import resource
import signal
import socket
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from shoal import Client
from shoal.errors import UnavailableError
from tests.end_to_end.asking import tensors
from tests.end_to_end.lifecycle import instances, write_model
from tests.end_to_end.server import DEADLINE_S, Server, await_standby, descendants, only, serving, title, wait_until
from tests.end_to_end.traffic import MODEL
from tests.scarcity import limited

#: What the request is: answered, answered after a message to the supervisor that lacks what belongs to it, or refused
#: with a word on stderr.
ECHO, LIE, COMPLAIN = range(3)
LIAR = """
import gc, sys
import msgpack
import triton_python_backend_utils as pb_utils
from shoal.control import Channel

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            word = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
            if word[0, 0] == 1:
                for channel in (each for each in gc.get_objects() if isinstance(each, Channel)):
                    channel.send_encoded(msgpack.packb(["SegmentWanted", 0]), ())
            if word[0, 0] == 2:
                raise ValueError("as it was told")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("B", word)]))
        return responses
"""
#: A stray SIGSTOP comes while the model loads.
STOPPED_IN_LOAD = """
import os, signal

class TritonPythonModel:
    def initialize(self, args):
        os.kill(os.getpid(), signal.SIGSTOP)

    def execute(self, requests):
        return []
"""
#: The soft limit that the server is started with, and raises.
SOFT_DESCRIPTORS = 256
ARBITER = "gunicorn: master [shoal front ends]"
#: Of a process that gunicorn forks from now on.
FEW_DESCRIPTORS = 128


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("repository")
    write_model(made, "steady", 1)
    write_model(made, "later", 1, config=MODEL.replace("count: 1", "count: 4"))
    write_model(made, "wide", 1, config=MODEL.replace("[ 4 ]", "[ -1 ]"))
    liar = write_model(made, "liar", 1, config=MODEL.replace("identity", "python"))
    (liar / "1" / "model.py").write_text(LIAR)
    stopped = write_model(made, "stopped_in_load", 1, config=MODEL.replace("identity", "python"))
    (stopped / "1" / "model.py").write_text(STOPPED_IN_LOAD)
    return made


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    flags = [*only("steady", "liar", "wide"), "--http-process-count=2", "--shm-client-slab-mib=1"]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving(repository, *flags, descriptors=(SOFT_DESCRIPTORS, hard)) as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S, connection_timeout=DEADLINE_S) as made:
        yield made
    assert server.process.poll() is None


def ask(client: triton.InferenceServerClient, model: str, word: int = ECHO) -> None:
    values = client.infer(model, tensors({"A": np.full((1, 4), word, np.int32)})).as_numpy("B")
    assert values is not None
    assert values.tolist() == [[word] * 4]


def pid_of(client: triton.InferenceServerClient, model: str) -> int:
    (instance,) = instances(client, model)
    return int(instance["pid"])


def lanes(server: Server) -> set[int]:
    """The pids of the HTTP lanes that run by now."""
    return {pid for pid in descendants(server.process.pid) if title(pid) == "shoal http"}


def both_lanes(server: Server, without: Set[int] = frozenset()) -> set[int]:
    """The pids of the two HTTP lanes, once both run and none of `without`, which were killed, is left."""
    found: set[int] = set()

    def are_there() -> bool:
        nonlocal found
        found = lanes(server)  # once: between two looks those that were killed may end
        return len(found) == 2 and not found & without

    wait_until(are_there)
    return found


def num_open(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_every_process_may_have_as_many_descriptors_as_the_system_allows(server: Server) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pids = [server.process.pid, *descendants(server.process.pid)]
    assert {resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] for pid in pids} == {min(hard, 1 << 20)}


def test_a_worker_that_lies_costs_itself(server: Server, client: triton.InferenceServerClient) -> None:
    steady, liar = pid_of(client, "steady"), pid_of(client, "liar")
    start = len(server.log)
    with suppress(InferenceServerException):  # its instance may be killed before it has answered
        ask(client, "liar", LIE)
    told = b"model 'liar' version 1: instance 'liar_0_0': its worker has sent no message that is due"
    assert server.read_log(told, start=start)
    wait_until(lambda: pid_of(client, "liar") not in (0, liar) and client.is_model_ready("liar"))
    ask(client, "liar")
    assert pid_of(client, "steady") == steady
    assert b"of the server's own" not in server.log[start:]


def test_the_last_descriptors_are_kept_for_instances_that_start_again(
    server: Server, client: triton.InferenceServerClient
) -> None:
    start, liar, pid = len(server.log), pid_of(client, "liar"), server.process.pid
    beyond_a_slab = np.ones((1, 100_000), np.int32)
    with limited(resource.RLIMIT_NOFILE, num_open(pid) + 48 - 20, pid):  # some may be given back meanwhile
        with (
            Client(server.client_socket) as guest,
            pytest.raises(UnavailableError, match=r"taken\. Raise the limit of"),
        ):
            guest.infer("steady", {"A": np.ones((1, 4), np.int32)})
        with pytest.raises(InferenceServerException, match="keeps its last file descriptors for instances that start"):
            client.infer("wide", tensors({"A": beyond_a_slab}))
        assert server.read_log(b"file descriptors open and may have", start=start)
        os.kill(liar, signal.SIGKILL)
        assert server.read_log(b"instance 'liar_0_0' of model 'liar' is up again", start=start)
        ask(client, "liar")
    assert client.infer("wide", tensors({"A": beyond_a_slab})).as_numpy("B") is not None
    with Client(server.client_socket) as guest:
        assert guest.infer("steady", {"A": np.ones((1, 4), np.int32)})["B"].tolist() == [[1] * 4]


def test_a_load_for_which_there_are_no_descriptors_is_refused(
    server: Server, client: triton.InferenceServerClient
) -> None:
    pid = server.process.pid
    with limited(resource.RLIMIT_NOFILE, num_open(pid) + 48 + 10, pid):
        with pytest.raises(InferenceServerException, match="cannot have 4 more instances: each takes 10 file descr"):
            client.load_model("later")
        ask(client, "steady")
    client.load_model("later")
    ask(client, "later")
    client.unload_model("later")


def test_a_worker_that_cannot_be_started_again_is_tried_later(
    server: Server, client: triton.InferenceServerClient
) -> None:
    start, liar = len(server.log), pid_of(client, "liar")
    with limited(resource.RLIMIT_NOFILE, 3, server.process.pid):
        os.kill(liar, signal.SIGKILL)
        assert server.read_log(b"'liar_0_0' cannot be started: no file descriptor is left", start=start)
        ask(client, "steady")
    wait_until(lambda: client.is_model_ready("liar"))
    ask(client, "liar")


def test_batchers_and_front_ends_that_cannot_be_started_are_tried_later(
    server: Server, client: triton.InferenceServerClient
) -> None:
    start = len(server.log)
    ask(client, "steady")
    names = ("shoal batcher", "shoal batcher (standby)", "shoal zygote base", ARBITER)
    with limited(resource.RLIMIT_NOFILE, 3, server.process.pid):
        for pid in descendants(server.process.pid):
            if title(pid) in names:
                os.kill(pid, signal.SIGKILL)
        for words in (b"no batcher can be started", b"zygote 'base' cannot be", b"front ends' arbiter cannot be"):
            assert server.read_log(words, start=start)
    wait_until(lambda: is_answering(server))
    ask(client, "steady")


def is_answering(server: Server) -> bool:
    try:
        with triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as client:
            return bool(client.is_model_ready("steady"))
    except ConnectionError:
        return False


def test_a_front_end_for_which_there_is_no_memory_waits_for_it(
    server: Server, client: triton.InferenceServerClient
) -> None:
    start, before = len(server.log), both_lanes(server)
    with limited(resource.RLIMIT_FSIZE, 4096, server.process.pid):
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        assert server.read_log(b"cannot join: no shared memory for a client segment", start=start)
    ask(client, "steady")


def test_a_full_table_of_connections_keeps_no_worker_out(server: Server, client: triton.InferenceServerClient) -> None:
    liar = pid_of(client, "liar")  # what takes the road would not find back into a full table
    arbiters = [pid for pid in descendants(server.process.pid) if title(pid) == ARBITER]
    idle = list[socket.socket]()
    with limited(resource.RLIMIT_NOFILE, FEW_DESCRIPTORS, arbiters[0]):
        before = both_lanes(server)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        fresh = both_lanes(server, without=before)
    address = "127.0.0.1", server.http_port
    with triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as first:
        ask(first, "steady")
        assert {resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] for pid in fresh} == {FEW_DESCRIPTORS}
        idle += [socket.create_connection(address, DEADLINE_S) for _ in range(2 * FEW_DESCRIPTORS)]
        wait_until(lambda: all(num_open(pid) > FEW_DESCRIPTORS // 2 for pid in fresh))
        start = len(server.log)
        os.kill(liar, signal.SIGKILL)
        assert server.read_log(b"instance 'liar_0_0' of model 'liar' is up again", start=start)
        ask(first, "liar")  # over the connection that it had
        assert lanes(server) == fresh
    for each in idle:
        each.close()
    for pid in fresh:
        os.kill(pid, signal.SIGKILL)
    both_lanes(server, without=fresh)
    with triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as last:
        ask(last, "steady")


STOPPED = {ARBITER, "shoal zygote base", "shoal batcher (standby)"}


def test_what_is_stopped_is_resumed(server: Server, client: triton.InferenceServerClient) -> None:
    """An arbiter that is stopped replaces no lane, a poller that is stopped answers no load, and a worker that is
    stopped while its model loads would have minutes for that."""
    await_standby(server)
    start, killed = len(server.log), both_lanes(server)
    stopped = [pid for pid in descendants(server.process.pid) if title(pid) in STOPPED]
    assert len(stopped) == len(STOPPED)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    both_lanes(server, without=killed)
    with triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as fresh:
        fresh.load_model("later")
        fresh.unload_model("later")
        fresh.load_model("stopped_in_load")
        fresh.unload_model("stopped_in_load")
    for pid in stopped:
        assert server.read_log(f"(pid {pid}) has been stopped for 3 s; it is resumed".encode(), start=start)
        assert pid in descendants(server.process.pid)


def test_an_arbiter_shows_its_progress(server: Server) -> None:
    """One that shows none, though it could, is killed after 30 s: tests/supervisor/processes/test_arbiter.py. Signals
    by which gunicorn would load its settings again, or start another arbiter, change nothing."""
    (arbiter,) = [pid for pid in descendants(server.process.pid) if title(pid) == ARBITER]
    for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU):
        os.kill(arbiter, number)
    link = next(each for each in Path(f"/proc/{arbiter}/fd").iterdir() if "passes of the arbiter" in os.readlink(each))
    before = link.read_bytes()
    wait_until(lambda: link.read_bytes() != before)


def test_a_log_that_is_not_read_stops_no_process(server: Server, client: triton.InferenceServerClient) -> None:
    # Of each of these gunicorn writes a line; a pipe takes 64 KiB.
    for number in range(600):
        with socket.create_connection(("127.0.0.1", server.metrics_port), DEADLINE_S) as connection:
            connection.sendall(b"GET /%d HTTP/1.1\r\nHost: a\r\nContent-Length: what\r\n\r\n" % number)
            assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
    killed = both_lanes(server).pop()
    os.kill(killed, signal.SIGKILL)
    both_lanes(server, without={killed})
    ask(client, "steady")
    server.read_on()


def test_a_log_whose_reader_has_gone_ends_nothing(server: Server, client: triton.InferenceServerClient) -> None:
    assert server.process.stdout is not None
    server.process.stdout.close()
    server.process.stdout = open(os.devnull, "rb")  # noqa: SIM115  what the fixture reads at its end
    with pytest.raises(InferenceServerException, match="as it was told"):
        ask(client, "liar", COMPLAIN)
    liar = pid_of(client, "liar")
    os.kill(liar, signal.SIGKILL)
    wait_until(lambda: pid_of(client, "liar") not in (0, liar) and client.is_model_ready("liar"))
    ask(client, "liar")
    assert json.loads(client._get("v2/repository/models/liar/instances", None, None).read())
