"""Tables in LMDB, in RocksDB and on a real Redis server."""

import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import redis
import rocksdict

from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnavailableError, UnsupportedError
from shoal.workers.backends.embedding.stores import REDIS_TIMEOUT_S, public_name
from shoal.workers.tensors import Array
from tests.batcher.redis_server import PROGRAM
from tests.workers.backends.embedding.asking import ask, config, loaded, vectors
from tests.workers.worker_harness import model_config, tensor_config

TABLE: Array = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
#: Keys and values of all stores.
ENTRIES = {
    **{b"item:%d" % number: row.tobytes() for number, row in enumerate(TABLE)},
    b"item:-5": TABLE[5].tobytes(),
    b"item:short": b"123",
    b"item:half": np.arange(4, dtype=np.float16).tobytes(),
    b"item:brain": (np.array([1, -2, 0.5, 3e38], np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes(),
    b"item:code": np.array([-128, 0, 1, 127], np.int8).tobytes(),
}


def write_lmdb(path: Path, entries: dict[bytes, bytes]) -> None:
    with lmdb.open(str(path), subdir=False, map_size=1 << 20) as environment, environment.begin(write=True) as changes:
        for key, value in entries.items():
            changes.put(key, value)


def write_rocksdb(path: Path, entries: dict[bytes, bytes]) -> None:
    database = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))
    for key, value in entries.items():
        database[key] = value
    database.close()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server on a socket, with the entries in it."""
    directory = tmp_path_factory.mktemp("redis")
    socket = directory / "socket"
    process = subprocess.Popen(
        [PROGRAM, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(directory)],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    with process:
        assert any(b"accept connections" in line for line in process.stdout)
        with redis.Redis(unix_socket_path=str(socket)) as client:
            client.mset(ENTRIES)
        yield f"unix://{socket}"
        process.terminate()


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stores")
    write_lmdb(directory / "items.lmdb", ENTRIES)
    write_rocksdb(directory / "items", ENTRIES)
    return directory


@pytest.fixture(params=["lmdb:items.lmdb", "rocksdb:items", "redis"])
def table(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("redis_server") if request.param == "redis" else request.param
    return url


def stored(table: str, data_type: str = "TYPE_INT64", **settings: str) -> dict[str, Any]:
    settings = {"table": table, "key": "item:{id}", **settings}
    return config((data_type, [-1]), ("TYPE_FP32", [-1, 4]), 0, offsets=False, **settings)


def refusal(version: Path, configuration: dict[str, Any], ids: Any) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        vectors(version, configuration, ids)
    return caught.value


# --- all stores alike ---


def test_rows_by_number(version: Path, table: str) -> None:
    assert np.array_equal(vectors(version, stored(table), [3, 0, 9, -5, 3]), TABLE[[3, 0, 9, 5, 3]])


def test_no_ids_have_no_rows(version: Path, table: str) -> None:
    assert vectors(version, stored(table), []).shape == (0, 4)


def test_rows_by_string(version: Path, table: str) -> None:
    assert np.array_equal(vectors(version, stored(table, "TYPE_STRING"), [b"3", b"-5"]), TABLE[[3, 5]])


def test_numbers_of_another_type(version: Path, table: str) -> None:
    configuration = stored(table, "TYPE_STRING", datatype="TYPE_FP16")
    assert vectors(version, configuration, [b"half"]).tolist() == [[0, 1, 2, 3]]
    configuration = stored(table, "TYPE_STRING", datatype="TYPE_INT8", scale="0.5")
    assert vectors(version, configuration, [b"code"]).tolist() == [[-64, 0, 0.5, 63.5]]


def test_brain_floats_become_the_output(version: Path, table: str) -> None:
    for output in ("FP32", "FP64"):
        configuration = config(
            ("TYPE_STRING", [-1]), (f"TYPE_{output}", [-1, 4]), table=table, key="item:{id}", datatype="TYPE_BF16"
        )
        found = vectors(version, configuration, [b"brain"])
        assert np.allclose(found, [[1, -2, 0.5, 3e38]], rtol=0.01)
    configuration = config(("TYPE_STRING", [-1]), ("TYPE_BF16", [-1, 4]), table=table, key="item:{id}")
    assert vectors(version, configuration, [b"brain"]).tobytes() == ENTRIES[b"item:brain"]


@pytest.mark.parametrize(("stored_as", "given_as"), [("TYPE_BF16", "TYPE_UINT16"), ("TYPE_UINT16", "TYPE_BF16")])
def test_words_of_brain_floats_are_no_numbers(version: Path, table: str, stored_as: str, given_as: str) -> None:
    configuration = config(("TYPE_INT64", [-1]), (given_as, [-1, 4]), table=table, datatype=stored_as)
    assert str(refusal(version, configuration, [1])) == (
        f"table '{table}' of model 'm' holds {stored_as}, which cannot be given as {given_as}"
    )


def test_an_unknown_id(version: Path, table: str) -> None:
    error = refusal(version, stored(table), [1, 10])
    assert isinstance(error, InvalidArgumentError)
    assert str(error) == f"id 10 is not in table '{table}' of model 'm'"
    error = refusal(version, stored(table, "TYPE_STRING"), [b"1", b"\xff" * 600])
    assert str(error).startswith("id '\ufffd\ufffd")


def test_unknown_ids_may_be_replaced(version: Path, table: str) -> None:
    assert np.array_equal(vectors(version, stored(table, unknown_id="zeros"), [1, 99]), [TABLE[1], np.zeros(4)])
    assert np.array_equal(vectors(version, stored(table, unknown_id="2"), [1, 99]), TABLE[[1, 2]])


def test_bags(version: Path, table: str) -> None:
    configuration = config(
        ("TYPE_INT32", [-1]), ("TYPE_FP32", [4]), 8, table=table, key="item:{id}", pooling="mean", padding_id="-1"
    )
    found = vectors(version, configuration, [[1, 2, -1], [3, -1, -1]])
    assert np.allclose(found, [TABLE[[1, 2]].mean(axis=0), TABLE[3]])


def test_a_value_that_is_no_row(version: Path, table: str) -> None:
    error = refusal(version, stored(table, "TYPE_STRING"), [b"1", b"short"])
    assert isinstance(error, InternalError)
    assert str(error) == (
        f"table '{table}' of model 'm': the value of 'item:short' has 3 bytes, a row of shape [4] and TYPE_FP32 has 16"
    )


def test_who_names_a_value_that_is_no_row_fails_alone(version: Path, table: str) -> None:
    configuration = config(
        ("TYPE_STRING", [2]), ("TYPE_FP32", [2, 4]), 8, table=table, key="item:{id}", unknown_id="zeros"
    )
    asked = ([b"1", b"2"], [b"3", b"short"], [b"4", b"none"])
    answers = ask(loaded(version, configuration), configuration, *({"ids": np.array([ids], object)} for ids in asked))
    assert answers.positions == [0, 2]
    assert np.array_equal(answers.outputs["vectors"], np.array([TABLE[[1, 2]], [TABLE[4], np.zeros(4)]]))
    [error] = answers.errors
    assert isinstance(error, InternalError)
    assert "the value of 'item:short' has 3 bytes" in str(error)


def test_a_value_that_is_no_row_cannot_stand_for_unknown_ones(version: Path, table: str) -> None:
    error = refusal(version, stored(table, "TYPE_STRING", unknown_id="short"), [b"1"])
    assert "the value of 'item:short' has 3 bytes" in str(error)


def test_outputs_may_share_a_store(version: Path, table: str) -> None:
    configuration = model_config(
        [tensor_config("ids", "TYPE_STRING", [-1])],
        [tensor_config("whole", "TYPE_FP32", [-1, 4]), tensor_config("code", "TYPE_FP32", [-1, 4])],
        backend="embedding",
        max_batch_size=0,
        parameters={
            "table": table, "unknown_id": "zeros", "whole.key": "item:{id}", "code.key": "item:cod{id}",
            "code.datatype": "TYPE_INT8",
        },
    )  # fmt: skip
    found = ask(loaded(version, configuration), configuration, {"ids": np.array([b"3", b"e"], object)}).outputs
    assert np.array_equal(found["whole"], [TABLE[3], np.zeros(4)])
    assert found["code"].tolist() == [[0] * 4, [-128, 0, 1, 127]]


def test_rows_must_have_a_size(version: Path, table: str) -> None:
    configuration = config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, -1]), table=table)
    assert str(refusal(version, configuration, [1])) == (
        f"table '{table}' of model 'm': a store does not tell how long a row is; the output's dims must"
    )


def test_numbers_that_the_output_cannot_have(version: Path, table: str) -> None:
    assert str(refusal(version, stored(table, datatype="TYPE_BOOL"), [1])) == (
        f"table '{table}' of model 'm' holds bool, which cannot be given as TYPE_FP32"
    )


@pytest.mark.parametrize(
    ("table", "package"), [("lmdb:x", "lmdb"), ("rocksdb:x", "rocksdict"), ("redis://localhost:1", "redis")]
)
def test_a_package_that_is_not_installed_is_named(
    tmp_path: Path, table: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").mkdir()
    monkeypatch.setitem(sys.modules, package, None)
    error = refusal(tmp_path, stored(table), [1])
    assert isinstance(error, UnsupportedError)
    extra = {"rocksdict": "rocksdb"}.get(package, package)
    assert str(error).endswith(f"Install it with: pip install 'shoal[embedding-{extra}]'")


# --- what is of one store alone ---


@pytest.mark.parametrize("scheme", ["lmdb", "rocksdb"])
def test_what_is_no_database(tmp_path: Path, scheme: str) -> None:
    error = refusal(tmp_path, stored(f"{scheme}:x"), [1])
    assert isinstance(error, UnavailableError)
    assert str(error).startswith(f"unable to find table '{scheme}:x' of model 'm': ")
    (tmp_path / "x").write_bytes(b"no database" * 1000)
    assert str(refusal(tmp_path, stored(f"{scheme}:x"), [1])).startswith(
        f"table '{scheme}:x' of model 'm': it cannot be read: "
    )


def test_lmdb_shows_what_is_committed(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "x", {b"1": TABLE[1].tobytes()})
    configuration = config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, 4]), table="lmdb:x", unknown_id="zeros")
    backend = loaded(tmp_path, configuration)
    asked = {"ids": np.array([1, 2])}
    assert np.array_equal(ask(backend, configuration, asked).outputs["vectors"], [TABLE[1], np.zeros(4)])
    code = (
        "import lmdb, sys\n"
        "with lmdb.open('x', subdir=False).begin(write=True) as changes: changes.put(b'2', sys.stdin.buffer.read())"
    )
    subprocess.run([sys.executable, "-c", code], input=TABLE[2].tobytes(), cwd=tmp_path, check=True)
    assert np.array_equal(ask(backend, configuration, asked).outputs["vectors"], TABLE[[1, 2]])


@pytest.mark.parametrize(("scheme", "write"), [("lmdb", write_lmdb), ("rocksdb", write_rocksdb)])
def test_a_database_is_replaced_by_rename(tmp_path: Path, scheme: str, write: Any) -> None:
    for number in (1, 2):
        write(tmp_path / f"v{number}", {b"1": TABLE[number].tobytes()})
    link, new = tmp_path / "x", tmp_path / "new"
    link.symlink_to("v1")
    configuration = config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, 4]), table=f"{scheme}:x")
    backend = loaded(tmp_path, configuration)
    asked = {"ids": np.array([1])}
    assert np.array_equal(ask(backend, configuration, asked).outputs["vectors"], TABLE[[1]])
    new.symlink_to("v2")
    new.rename(link)
    assert np.array_equal(ask(backend, configuration, asked).outputs["vectors"], TABLE[[2]])


def test_two_links_may_lead_to_one_lmdb(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "v1", {b"1": TABLE[1].tobytes()})
    for name in ("a", "b"):
        (tmp_path / f"{name}.lmdb").symlink_to("v1")
    configuration = model_config(
        [tensor_config("ids", "TYPE_INT64", [-1])],
        [tensor_config("a", "TYPE_FP32", [-1, 4]), tensor_config("b", "TYPE_FP32", [-1, 4])],
        backend="embedding",
        max_batch_size=0,
        parameters={"a.table": "lmdb:a.lmdb", "b.table": "lmdb:b.lmdb"},
    )
    backend = loaded(tmp_path, configuration)
    asked = {"ids": np.array([1])}
    answers = ask(backend, configuration, asked)
    assert np.array_equal(answers.outputs["a"], answers.outputs["b"])
    write_lmdb(tmp_path / "v2", {b"1": TABLE[2].tobytes()})
    (tmp_path / "new").symlink_to("v2")
    (tmp_path / "new").rename(tmp_path / "b.lmdb")
    answers = ask(backend, configuration, asked)
    assert np.array_equal(answers.outputs["a"], TABLE[[1]])
    assert np.array_equal(answers.outputs["b"], TABLE[[2]])


def test_an_lmdb_that_is_replaced_without_a_link_is_said_to_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, number in (("x", 1), ("new", 2)):
        write_lmdb(tmp_path / name, {b"1": TABLE[number].tobytes()})
    configuration = config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, 4]), table="lmdb:x")
    backend = loaded(tmp_path, configuration)
    (tmp_path / "new").rename(tmp_path / "x")
    for _ in range(2):
        assert np.array_equal(ask(backend, configuration, {"ids": np.array([1])}).outputs["vectors"], TABLE[[1]])
    assert caplog.messages == [
        "table 'lmdb:x' of model 'm' is served as it was, the new one is refused: LMDB does not let another file take "
        "the place of one in use; let its name be a link"
    ]


def test_an_unloaded_model_lets_go_of_its_lmdb(tmp_path: Path) -> None:
    for name, number in (("x", 1), ("new", 2)):
        write_lmdb(tmp_path / name, {b"1": TABLE[number].tobytes()})
    configuration = config(("TYPE_INT64", [-1]), ("TYPE_FP32", [-1, 4]), table="lmdb:x")
    loaded(tmp_path, configuration).unload()
    (tmp_path / "new").rename(tmp_path / "x")
    assert np.array_equal(vectors(tmp_path, configuration, [1]), TABLE[[2]])


def num_connections(listener: socket.socket) -> int:
    """How many have come; they are closed."""
    listener.setblocking(False)
    for number in itertools.count():
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return number
    raise AssertionError


def test_a_silent_redis_costs_one_timeout(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        for query, timeout_s in (("", REDIS_TIMEOUT_S), ("?socket_timeout=0.1", 0.1)):
            start = time.monotonic()
            error = refusal(tmp_path, stored(url + query), [1])
            assert time.monotonic() - start >= timeout_s
            assert num_connections(silent) == 1  # a second try would be another
            assert isinstance(error, UnavailableError)
            assert str(error) == f"table '{url}' of model 'm' cannot be queried: Timeout reading from socket"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:sec/ret@host:6379/0", "redis://host:6379/0"),
        ("redis:user:secret@host", "redis:host"),
        ("redis://host/0?socket_timeout=secret", "redis://host/0"),
        ("redis://host/0?secret=1", "redis://host/0"),
    ],
)
def test_a_url_that_is_none_is_not_quoted(tmp_path: Path, url: str, shown: str) -> None:
    error = refusal(tmp_path, stored(url), [1])
    assert isinstance(error, InvalidArgumentError)
    assert str(error) == f"table '{shown}' of model 'm': its URL does not name a Redis server"
    assert error.__suppress_context__


def test_a_redis_that_is_not_there_says_so(tmp_path: Path) -> None:
    error = refusal(tmp_path, stored(f"unix://user:secret@{tmp_path}/socket?db=3"), [1])
    assert isinstance(error, UnavailableError)
    assert str(error).startswith(f"table 'unix://{tmp_path}/socket' of model 'm' cannot be queried: ")


def test_a_redis_table_may_go_and_come_back(version: Path, redis_server: str) -> None:
    configuration = stored(redis_server)
    backend = loaded(version, configuration)
    with redis.Redis.from_url(redis_server) as client:
        client.client_kill_filter(_type="normal", skipme=True)
    answers = ask(backend, configuration, {"ids": np.array([1])})
    assert np.array_equal(answers.outputs["vectors"], TABLE[[1]])


def test_a_password_is_not_told() -> None:
    assert public_name("rediss://me:secret@host:6379/2?socket_timeout=1") == "rediss://host:6379/2"
    assert public_name("lmdb:x") == "lmdb:x"


def test_the_packages_are_imported_only_where_they_are_needed() -> None:
    code = "import sys, shoal.workers.backends.embedding; print({'lmdb', 'redis', 'rocksdict'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
