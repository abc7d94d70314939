"""`shoal.Client` and `shoal.AsyncClient` against a real server: what they ask, and what they get."""

import asyncio
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import AsyncClient, Client, errors
from shoal.errors import ConnectionLostError, TimedOutError
from shoal.shm import whole_slabs
from shoal.shm.doorbell import GuestBell
from shoal.star import place
from tests.end_to_end.changes import post
from tests.end_to_end.client_server import BOTH, A, B, ask_until, refused_while_busy, repeat, sums
from tests.end_to_end.server import DEADLINE_S, Server

# -- inference ---------------------------------------------------------------------------------------------------------


def test_outputs_by_name(client: Client) -> None:
    result = client.infer("simple", BOTH)
    assert (result["OUTPUT0"] == A + B).all()
    assert (result["OUTPUT1"] == A - B).all()
    assert (result.model_name, result.model_version, result.parameters) == ("simple", "1", {})
    result["OUTPUT0"][:] = 0  # the caller's own
    assert list(client.infer("simple", BOTH, ["OUTPUT1"], version="1", request_id="x", timeout=60)) == ["OUTPUT1"]


def test_what_is_no_array_becomes_one(client: Client) -> None:
    inputs = {"INPUT0": [list(range(16))], "INPUT1": [[1] * 16]}
    assert (client.infer("simple", inputs)["OUTPUT0"] == A + B).all()


def test_any_layout_in_memory(client: Client) -> None:
    wide = np.arange(64, dtype=np.int32).reshape(4, 16).T.copy().T
    result = client.infer("simple", {"INPUT0": wide, "INPUT1": wide[::-1]})
    assert (result["OUTPUT0"] == wide + wide[::-1]).all()


def test_strings(client: Client) -> None:
    for numbers in (np.array([[str(n) for n in range(16)]]), np.array([[b"%d" % n for n in range(16)]], object)):
        result = client.infer("simple_string", {"INPUT0": numbers, "INPUT1": numbers})
        assert result["OUTPUT0"].tolist() == [[b"%d" % (2 * n) for n in range(16)]]


def test_views_of_the_servers_memory(client: Client) -> None:
    with client.infer("simple", BOTH, copy=False) as result:
        array = result["OUTPUT0"]
        assert (array == A + B).all()
        assert not array.flags.writeable
    for _ in range(50):
        assert sums(client)
    assert (array == A + B).all()  # nobody has written there, though the result is closed


@pytest.mark.parametrize("columns", [16, 50_000, 900_000])
def test_an_array_that_is_the_requests_memory(client: Client, columns: int) -> None:
    array = client.empty("echo", "INPUT0", (2, columns))
    for number in range(3):  # what is known of those that went before is used from the second on
        array[:] = np.arange(columns) + number
        for sent in (array, array[1:], array[:, : columns // 2], np.array(array)):
            assert np.array_equal(client.infer("echo", {"INPUT0": sent})["OUTPUT0"], sent)
    view = client.infer("echo", {"INPUT0": array}, copy=False)["OUTPUT0"]
    array[:] = 0
    assert view[1, -1] == columns + 1
    with pytest.raises(errors.InvalidArgumentError, match="holds strings"):
        client.empty("simple_string", "INPUT0", (1, 16))
    with pytest.raises(errors.InvalidArgumentError, match="unexpected inference input 'x'"):
        client.empty("echo", "x", (1, 16))


def test_a_large_array_to_an_ensemble(client: Client) -> None:
    array = client.empty("echo", "INPUT0", (2, 900_000))  # made for no model in particular
    array[:] = np.arange(900_000)
    for sent in (array, np.array(array)):
        assert np.array_equal(client.infer("echo_twice", {"INPUT0": sent})["OUTPUT0"], sent)


def test_memory_that_is_not_copied(client: Client) -> None:
    array = client.empty("echo", "INPUT0", (2, 50_000))
    session = client._connected()
    assert session._memory.find(array) is not None
    assert session._memory.find(array[1:]) is not None
    assert session._memory.find(np.array(array)) is None
    port = session.connection._port
    taken = port.slab.num_taken
    for _ in range(20):
        client.infer("echo", {"INPUT0": array})
    assert port.slab.num_taken == taken
    del array
    session.connection.tidy()
    assert port.slab.num_taken == taken - 1


def test_more_memory_than_there_is(client: Client) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="raise --shm-oversize-mib"):
        client.empty("echo", "INPUT0", (2, 100_000_000))
    arrays = [client.empty("echo", "INPUT0", (2, 1_000_000)) for _ in range(3)]  # of 8 MB, and half of 64 MiB is ours
    large = (2, 1_300_000)
    with pytest.raises(errors.UnavailableError, match="let go of arrays"):
        client.empty("echo", "INPUT0", large)
    arrays.clear()
    assert client.empty("echo", "INPUT0", large).nbytes == 10_400_000


def test_memory_for_large_arrays_is_made_once(
    client_served: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_slabs, "KEEP_S", DEADLINE_S)  # ours is kept for the next, however late that is
    array = np.zeros((2, 900_000), np.float32)

    def num_made() -> int:
        ledger = client_served.ledger_once(lambda ledger: True)
        return int(ledger["supervisor"]["oversize_acquired"])

    client.infer("mlp", {"features": np.zeros((8, 512), np.float32)})
    before = num_made()
    for number in range(5):
        array[:] = number
        assert (client.infer("echo", {"INPUT0": array})["OUTPUT0"] == number).all()
    assert num_made() == before + 1
    # What is kept gives way.
    arrays = [client.empty("echo", "INPUT0", (2, 1_000_000)) for _ in range(3)]
    assert client.empty("echo", "INPUT0", (2, 500_000)).nbytes == 4_000_000
    del arrays


def test_threads_share_a_client(client: Client) -> None:
    def ask(seed: int) -> bool:
        array = A + seed
        return all(
            (client.infer("simple", {"INPUT0": array, "INPUT1": B})["OUTPUT1"] == array - B).all() for _ in "x" * 50
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))


def test_a_stream(client: Client) -> None:
    assert [int(each["OUT"][0]) for each in client.stream("repeat", repeat(4, 2, 8))] == [4, 2, 8]
    assert [int(each["OUT"][0]) for each in client.stream("repeat", repeat(4, 2), copy=False)] == [4, 2]
    assert [list(each) for each in client.stream("simple", BOTH)] == [["OUTPUT0", "OUTPUT1"]]
    with pytest.raises(errors.UnsupportedError, match="any number of times"):
        client.infer("repeat", repeat(1))


def test_a_stream_that_is_left(client: Client) -> None:
    answers = client.stream("repeat", repeat(*range(100), delay_ms=20))
    assert int(next(answers)["OUT"][0]) == 0
    answers.close()  # type: ignore[attr-defined]
    assert sums(client)


def test_a_stream_that_was_never_read(client: Client) -> None:
    answers = client.stream("repeat", repeat(*range(10_000), delay_ms=20))  # 200 s, if nobody ended it
    connection = client._connected().connection
    assert connection.num_open == 1
    del answers
    ask_until(client, lambda: not connection.num_open)


# -- what cannot be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "inputs", "kind", "sentence"),
    [
        ("nothing", BOTH, errors.NotFoundError, "'nothing' is not found"),
        ("simple", {"INPUT0": A}, errors.InvalidArgumentError, "expected 2 inputs but got 1"),
        ("simple", BOTH | {"INPUT1": B[:, :3]}, errors.InvalidArgumentError, "unexpected shape for input 'INPUT1'"),
        ("simple", BOTH | {"INPUT1": B * 1.0}, errors.InvalidArgumentError, "data-type is 'FP64'"),
        ("simple", BOTH | {"INPUT1": B * 1j}, errors.InvalidArgumentError, "is no datatype"),
        ("simple", BOTH | {"INPUT1": [["x"] * 16]}, errors.InvalidArgumentError, "cannot be made an array"),
        ("simple", {"INPUT0": np.ones((9, 16), "i4"), "INPUT1": np.ones((9, 16), "i4")}, errors.InvalidArgumentError,
         "batch-size must be <= 8"),
    ],
)  # fmt: skip
def test_what_the_model_does_not_take(
    client: Client, model: str, inputs: dict[str, object], kind: type[Exception], sentence: str
) -> None:
    for _ in range(2):
        with pytest.raises(kind, match=sentence):
            client.infer(model, inputs)


def test_a_request_that_takes_too_long(client: Client) -> None:
    with pytest.raises(TimedOutError):
        list(client.stream("repeat", repeat(1, delay_ms=2000), timeout=0.1))
    assert sums(client)


def test_no_server(tmp_path: Path) -> None:
    client = Client(tmp_path / "none")
    assert not client.is_live()
    with pytest.raises(ConnectionLostError, match=r"no server is found at .*/none: No such file"):
        client.infer("simple", BOTH)


# -- the server --------------------------------------------------------------------------------------------------------


def test_what_is_known_of_the_server(client: Client) -> None:
    assert client.is_live()
    assert client.is_ready()
    assert client.is_ready("simple")
    assert client.server_metadata()["name"] == "triton"
    assert client.model_metadata("mlp")["inputs"] == [{"name": "features", "datatype": "FP32", "shape": [-1, 512]}]
    assert client.model_config("mlp")["max_batch_size"] > 0
    before = client.statistics("simple")[0]["inference_count"]
    assert sums(client)
    assert client.statistics("simple")[0]["inference_count"] == before + 1
    assert {row["name"] for row in client.statistics()} >= {"simple", "mlp"}
    with pytest.raises(errors.NotFoundError):
        client.is_ready("nothing")


# -- over the network -------------------------------------------------------------------------------------------------


def test_the_same_calls_by_url(remote: Client, client: Client) -> None:
    result = remote.infer("simple", BOTH)
    assert (result["OUTPUT0"] == A + B).all()
    assert (result.model_name, result.model_version, result.parameters) == ("simple", "1", {})
    result["OUTPUT0"][:] = 0  # the caller's own
    inputs = {"INPUT0": [list(range(16))], "INPUT1": [[1] * 16]}
    assert list(remote.infer("simple", inputs, ["OUTPUT1"], version="1", timeout=30)) == ["OUTPUT1"]
    features = remote.empty("mlp", "features", (2, 512))
    features[:] = 1
    assert remote.infer("mlp", {"features": features})["scores"].shape == (2, 10)
    assert features.dtype == np.float32
    assert remote.is_live()
    assert remote.is_ready()
    assert remote.is_ready("simple", version="1")
    assert remote.server_metadata() == client.server_metadata()
    for model in ("mlp", "repeat", "asked"):
        assert remote.model_metadata(model) == client.model_metadata(model)
        assert remote.model_config(model) == client.model_config(model)
        assert remote.statistics(model) == client.statistics(model)
    assert remote.statistics("mlp")[0]["inference_count"] > 0
    assert [row["name"] for row in remote.statistics()] == [row["name"] for row in client.statistics()]


def test_the_same_tensors_by_url(remote: Client, client: Client) -> None:
    numbers = np.array([[str(n) for n in range(16)]])
    words = np.arange(0x3F80, 0x3F90, dtype=np.uint16).reshape(1, 16)
    for model, inputs in (
        ("simple_string", {"INPUT0": numbers, "INPUT1": numbers}),
        ("simple_string", {"INPUT0": numbers.tolist(), "INPUT1": numbers.astype(object)}),
        ("echo_bf16", {"INPUT0": words}),
    ):
        there, here = remote.infer(model, inputs)["OUTPUT0"], client.infer(model, inputs)["OUTPUT0"]
        assert (there == here).all()
        assert there.dtype == here.dtype


def test_what_is_asked_beside_the_tensors_is_the_same_by_url(remote: Client, client: Client) -> None:
    said: list[bytes] = []
    asked: list[dict[str, Any]] = [
        {"request_id": "a", "parameters": {"number": 1, "word": "x", "truth": True}},
        {"sequence_id": 7, "sequence_start": True},
        {"sequence_id": 7},
        {"sequence_id": "seven", "sequence_end": True},
    ]
    for more in asked:
        there, here = (each.infer("asked", {"INPUT0": [1]}, **more) for each in (remote, client))
        assert there["OUTPUT0"][0] == here["OUTPUT0"][0]
        said.append(here["OUTPUT0"][0])
        assert there.parameters == here.parameters == {"number": 5, "word": "x", "truth": True}
    assert said == [b"a 0 0 [('number', 1), ('truth', True), ('word', 'x')]", b" 7 1 []", b" 7 0 []", b" seven 2 []"]


def test_streams_by_url(remote: Client) -> None:
    if remote._place is not None and remote._place.startswith("http"):
        with pytest.raises(errors.UnsupportedError, match="grpc://"):
            remote.stream("repeat", repeat(1))
        return
    assert [int(each["OUT"][0]) for each in remote.stream("repeat", repeat(4, 2, 8))] == [4, 2, 8]
    assert [list(each) for each in remote.stream("simple", BOTH, ["OUTPUT1"])] == [["OUTPUT1"]]
    answers = remote.stream("repeat", repeat(*range(100), delay_ms=20))
    assert int(next(answers)["OUT"][0]) == 0
    answers.close()  # type: ignore[attr-defined]
    with pytest.raises(errors.NotFoundError, match="'nothing' is not found"):
        list(remote.stream("nothing", BOTH))
    with pytest.raises(TimedOutError):
        list(remote.stream("repeat", repeat(1, delay_ms=2000), timeout=0.1))


def test_who_would_be_late_is_refused_at_once(remote: Client, client: Client, client_served: Server) -> None:
    for asker in (client, remote):
        refused_while_busy(asker, client, client_served)


def test_what_cannot_be_by_url(remote: Client) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="unexpected shape"):
        remote.infer("simple", BOTH | {"INPUT1": B[:, :3]})
    with pytest.raises(errors.InvalidArgumentError, match="is no datatype"):
        remote.infer("simple", BOTH | {"INPUT1": B * 1j})
    with pytest.raises(errors.InvalidArgumentError, match="cannot be made an array"):
        remote.infer("simple", BOTH | {"INPUT1": [["x"] * 16]})
    for element in (None, 3):  # of which tritonclient makes the texts "None" and "3"
        with pytest.raises(errors.InvalidArgumentError, match=r"element of input 'INPUT0' is (NoneType|int), neither"):
            remote.infer(
                "simple_string", {"INPUT0": np.full((1, 16), element, object), "INPUT1": np.full((1, 16), "1")}
            )
    for timeout in (0, -1):
        with pytest.raises(TimedOutError):
            remote.infer("simple", BOTH, timeout=timeout)
    with pytest.raises(errors.InvalidArgumentError, match="unexpected inference input 'x'"):
        remote.empty("simple", "x", (1, 16))
    for call in (remote.is_ready, remote.model_metadata, lambda model: remote.infer(model, BOTH)):
        with pytest.raises(errors.NotFoundError, match="'nothing' is not found"):
            call("nothing")
    remote.close()
    with pytest.raises(ConnectionLostError, match="is closed"):
        remote.infer("simple", BOTH)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_no_server_by_url(scheme: str) -> None:
    with Client(f"{scheme}://127.0.0.1:1") as remote:
        assert not remote.is_live()
        with pytest.raises(ConnectionLostError, match=r"no server is found at 127\.0\.0\.1:1"):
            remote.infer("simple", BOTH)


def test_no_model_server_by_url(client_served: Server) -> None:
    with (
        Client(f"http://127.0.0.1:{client_served.metrics_port}") as remote,
        pytest.raises(ConnectionLostError, match=r"what answers at .* is not a model server"),
    ):
        remote.model_metadata("simple")


def test_urls_of_nothing() -> None:
    for url in ("ftp://localhost", "http://", "http://:8000", "http://localhost:99999", "grpc://localhost:http"):
        with pytest.raises(
            errors.InvalidArgumentError, match=r"URL is http://host:port, https://host:port or grpc://host:port$"
        ):
            Client(url)
    with pytest.raises(errors.InvalidArgumentError, match="is a URL"):
        AsyncClient("http://localhost:8000")
    with pytest.raises(errors.InvalidArgumentError, match="a server's URL is http://localhost:8000, or grpc://"):
        Client("localhost:8000")


# -- asyncio -----------------------------------------------------------------------------------------------------------


def test_asyncio(client_served: Server, client_path: str) -> None:
    async def ask() -> None:
        async with AsyncClient(client_path) as client:
            results = await asyncio.gather(*[client.infer("simple", {"INPUT0": A + n, "INPUT1": B}) for n in range(64)])
            assert all((each["OUTPUT0"] == A + n + B).all() for n, each in enumerate(results))
            assert [int(each["OUT"][0]) async for each in client.stream("repeat", repeat(4, 2))] == [4, 2]
            assert (await client.model_metadata("mlp"))["name"] == "mlp"
            assert await client.is_ready()
            features = await client.empty("mlp", "features", (8, 512))
            features[:] = 1
            assert (await client.infer("mlp", {"features": features}))["scores"].shape == (8, 10)
            with pytest.raises(TimedOutError):
                async for _ in client.stream("repeat", repeat(1, delay_ms=2000), timeout=0.05):
                    pass
            with pytest.raises(errors.NotFoundError):
                await client.infer("nothing", BOTH)

    asyncio.run(ask())


def test_a_model_that_was_just_loaded_is_known_before_the_news_was_heard(
    client_served: Server, client_path: str
) -> None:
    async def ask() -> None:
        async with AsyncClient(client_path) as client:
            words = {"INPUT0": [[b"word"]]}
            with pytest.raises(errors.NotFoundError):
                await client.infer("simple_identity", words)
            # No coroutine runs meanwhile, and so nobody listens to the server.
            post(client_served, "models/simple_identity/load")
            assert (await client.infer("simple_identity", words))["OUTPUT0"].tolist() == words["INPUT0"]

    asyncio.run(ask())


def test_coroutines_that_ask_at_once_ring_once(
    client_served: Server, client_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings: list[bytes] = []

    class CountedSocket(socket.socket):
        def send(self, data: Any, flags: int = 0) -> int:
            rings.append(data)
            return super().send(data, flags)

    def counted(fd: int) -> GuestBell:
        bell = GuestBell(fd)
        bell._socket = CountedSocket(fileno=bell._socket.detach())
        return bell

    monkeypatch.setattr(place, "GuestBell", counted)

    async def ask() -> None:
        async with AsyncClient(client_path) as client:
            await client.infer("simple", BOTH)
            rings.clear()
            results = await asyncio.gather(*[client.infer("simple", BOTH) for _ in range(32)])
            assert all((each["OUTPUT0"] == A + B).all() for each in results)

    asyncio.run(ask())
    assert len(rings) == 1


def test_its_import_is_light() -> None:
    heavy = "[each for each in ('flask', 'gunicorn', 'google.protobuf', 'tritonclient', 'grpc') if each in sys.modules]"
    for code, expected in (
        ("import shoal", "'numpy' in sys.modules, " + heavy),
        ("from shoal import Client, AsyncClient", "False, " + heavy),
    ):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; {code}; print({expected})"], capture_output=True, text=True, check=True
        )
        assert done.stdout == "False []\n"
