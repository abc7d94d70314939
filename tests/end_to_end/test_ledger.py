"""The ledger: whatever has been asked, refused, aborted or killed, at rest all that was taken has been given back."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.end_to_end.figures import wait_for_pending
from tests.end_to_end.http_cases import against_the_model, answered, refused, routes
from tests.end_to_end.http_cases.case import Case
from tests.end_to_end.http_cases.models import write_models
from tests.end_to_end.payloads import pid_of
from tests.end_to_end.raw_client import LIVE, Client, numbers, post, tensor, tensor_in
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import SAMPLES, Ledger, Server, await_rest, footprint, imbalances, serving_to_the_end

CASES = [*routes.CASES, *answered.CASES, *refused.CASES, *against_the_model.CASES]
#: A header that the lane leaves to the road.
TO_ROAD = b"TE: trailers"
LARGE = bytes(range(256)) * 8192  # 2 MiB: more than a block of a slab, there and back
FLAGS = (
    "--exit-on-error=false", "--shm-client-slab-mib=4", "--shm-worker-slab-mib=1", "--shm-oversize-mib=64",
    "--request-timeout-secs=5",
)  # fmt: skip
#: Too slow to be given executions ahead.
SLOW = config_text("identity", "A INT32 -1", "OUT_A INT32 -1", count=1, execute_delay_ms=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The samples and identity models of every kind, on small slabs."""
    repository = write_models(tmp_path_factory.mktemp("models"))
    add_model(repository, "slow", SLOW)
    with serving_to_the_end([SAMPLES, repository], *FLAGS) as server:
        yield server


def sample_requests() -> Iterator[bytes]:
    """One to each sample model that it answers, and one that fails while it is executed."""
    yield post("digits", (SAMPLES / "digits" / "request.json").read_bytes())
    for model, datatype, count, value in [
        ("mlp", "FP32", 512, 0.5),
        ("simple", "INT32", 16, 3),
        ("simple_string", "BYTES", 16, "3"),
        ("simple_string", "BYTES", 16, "not a number"),
        ("simple_identity", "BYTES", 2, "ein Fisch"),
    ]:
        names = {"mlp": ["features"], "simple_identity": ["INPUT0"]}.get(model, ["INPUT0", "INPUT1"])
        inputs = [{"name": n, "datatype": datatype, "shape": [1, count], "data": [value] * count} for n in names]
        yield post(model, json.dumps({"inputs": inputs}).encode())


def as_bytes(case: Case, *fields: bytes) -> bytes:
    lines = [b"Host: x", *fields, *(f"{name}: {value}".encode("latin-1") for name, value in case.headers.items())]
    if case.body or case.method == "POST":
        lines.append(b"Content-Length: %d" % len(case.body))
    return b"%s %s HTTP/1.1\r\n%s\r\n\r\n" % (case.method.encode(), case.path.encode(), b"\r\n".join(lines)) + case.body


def ask_everything(server: Server) -> None:
    """Every case of the table by lane and by road, every sample model; small and large, answered and refused."""
    for fields in ([], [TO_ROAD]):
        for case in CASES:
            with Client(server) as client:
                client.ask(as_bytes(case, *fields))
    with Client(server) as client:
        statuses = [client.ask(request).status for request in sample_requests()]
        assert statuses == [200, 200, 200, 200, 500, 200]
        for data in (LARGE, LARGE[:40_000], LARGE[: 1 << 18], LARGE):
            assert tensor_in(client.ask(tensor(data))) == data


def abort_everywhere(server: Server) -> None:
    """Clients that vanish: within a head, within bodies, while they wait, while their answer is sent."""
    before = num_blocks(server.ledger())
    with Client(server).send(tensor(LARGE[: 1 << 18])[: 1 << 17]) as client:
        # The rest is received into the block that its head has got.
        server.ledger_once(lambda ledger: num_blocks(ledger) > before)
        client.reset()
    whole = [tensor(LARGE), tensor(LARGE, TO_ROAD), tensor(LARGE[: 1 << 18]), tensor(LARGE[: 1 << 18], TO_ROAD)]
    for sent in [LIVE[:20], *(request[: len(request) // 2] for request in whole)]:
        Client(server).send(sent).reset()
    for request in whole:
        client = Client(server, receive_buffer=4096).send(request)
        assert client.socket.recv(10)
        client.reset()
    for fields in ([], [TO_ROAD]):
        with held(server):
            clients = [Client(server).send(numbers("slow", number, *fields)) for number in range(3)]
            wait_for_pending(server, "slow", 2)
            for client in clients:
                client.reset()
            if not fields:  # a thread of the road does not look at its connection while it waits
                wait_for_pending(server, "slow", 0)


def num_blocks(ledger: Ledger) -> int:
    """Blocks that front ends have taken so far."""
    return sum(each["blocks_acquired"] for each in ledger["processes"] if each["title"] in ("shoal http", "shoal road"))


@contextmanager
def held(server: Server) -> Iterator[None]:
    """The only instance of the model "slow" executes nothing meanwhile."""
    with Client(server) as client:
        assert client.ask(numbers("slow", 0)).status == 200  # so it is done with all that came before
    worker = pid_of(server, "shoal worker slow_0_0")
    os.kill(worker, signal.SIGSTOP)
    yield
    with suppress(ProcessLookupError):  # the test may have killed it
        os.kill(worker, signal.SIGCONT)


@pytest.fixture(scope="module")
def warm(server: Server) -> list[object]:
    """The footprint at rest of a server that has done everything once."""
    ask_everything(server)
    abort_everywhere(server)
    await_rest(server)
    return footprint(server.ledger_at_rest())


def rest(server: Server, warm: list[object]) -> Ledger:
    """The ledger once it balances and the footprint is what it was."""
    return server.ledger_once(lambda ledger: not imbalances(ledger) and footprint(ledger) == warm, warm)


def test_all_is_given_back_whatever_was_asked(server: Server, warm: list[object]) -> None:
    before = rest(server, warm)
    ask_everything(server)
    after = rest(server, warm)
    for each, earlier in zip(after["processes"], before["processes"], strict=True):
        if each["title"] in ("shoal road", "shoal batcher") or "grid" in each["title"]:
            assert each["slots_acquired"] > earlier["slots_acquired"]
            if each["title"] != "shoal batcher":  # whose blocks are for ensembles: test_ensembles.py counts them
                assert each.get("blocks_acquired", 1) > earlier.get("blocks_acquired", 0)
    # A request and its result, twice; of those the second may lie where the first lay.
    assert after["supervisor"]["oversize_acquired"] - before["supervisor"]["oversize_acquired"] in (2, 3, 4)


def test_memos_show_where_they_do_not_help(server: Server) -> None:
    def kept(word: str) -> int:
        return sum(each.get(f"memo_http_json_template_{word}", 0) for each in server.ledger()["processes"])

    def request(number: int, blanks: str = "", **members: object) -> bytes:
        tensor = {"name": "A", "datatype": "INT32", "shape": [1], "data": [number]}
        return post("slow", ("{" + blanks + json.dumps({**members, "inputs": [tensor]})[1:]).encode())

    with Client(server) as client:
        before = kept("kept")
        assert {client.ask(numbers("slow", number)).status for number in range(10, 60)} == {200}
        assert {client.ask(request(1, id=f"request-{number}")).status for number in range(50)} == {200}
        alike = kept("kept")
        unlike = [f"{number:010b}".replace("0", " ").replace("1", "\t") for number in range(600)]
        assert {client.ask(request(1, blanks)).status for blanks in unlike} == {200}
    assert alike - before <= 2  # 50 requests that differ in their numbers, and 50 in their ids
    assert kept("kept") - alike == 600  # and 600 whose JSON is not spelled alike
    assert kept("dropped") >= 1


def test_all_is_given_back_when_clients_vanish(server: Server, warm: list[object]) -> None:
    abort_everywhere(server)
    rest(server, warm)


def test_the_signal_harms_no_child_that_gets_it_by_mistake(server: Server, warm: list[object]) -> None:
    before = [each["pid"] for each in rest(server, warm)["processes"]]
    for pid in server.children:
        with suppress(ProcessLookupError):  # the poller ends when it has nothing to do
            os.kill(pid, signal.SIGUSR1)
    assert [each["pid"] for each in rest(server, warm)["processes"]] == before


def test_all_is_given_back_when_answers_come_too_late(server: Server, warm: list[object]) -> None:
    with held(server):
        clients = [Client(server).send(numbers("slow", 1, *fields)) for fields in ([], [TO_ROAD])]
        for client in clients:
            with client:
                assert client.reply().status == 503
    rest(server, warm)


@pytest.mark.parametrize(
    "title", ["shoal worker slow_0_0", "shoal worker grid_0_0", "shoal batcher", "shoal road", "shoal http"]
)
def test_all_is_given_back_when_a_process_is_killed(server: Server, warm: list[object], title: str) -> None:
    with held(server):
        requests = [numbers("slow", 1), numbers("slow", 2, TO_ROAD)] * 2
        clients = [Client(server).send(request) for request in requests]
        wait_for_pending(server, "slow", 3)
        unread = Client(server, receive_buffer=4096).send(tensor(LARGE))
        unread.data = unread.socket.recv(10)
        os.kill(pid_of(server, title), signal.SIGKILL)
    for client in (*clients, unread):
        with client, suppress(EOFError, ConnectionResetError):
            client.reply()
    rest(server, warm)
