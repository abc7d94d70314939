"""Embedding tables, served: rows, bags and stores through the real client, replaced under load, in memory once."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.end_to_end.asking import outputs, tensors
from tests.end_to_end.figures import wait_for_pending
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import DEADLINE_S, Server, serving_to_the_end, title

Array = np.ndarray[Any, np.dtype[Any]]
NUM_ITEMS, NUM_INSTANCES = 1 << 16, 4
#: Whole numbers, so that a table that is raised by 1 shows it to the bit.
ITEMS = np.random.default_rng(0).integers(-100, 100, (NUM_ITEMS, 64)).astype(np.float32)
USERS = (np.arange(40).reshape(10, 4) - 20).astype(np.int8)

CONFIGS = {
    "items": f"""
        max_batch_size: 64
        input {{ name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }}
        output {{ name: "items" data_type: TYPE_FP32 dims: [ -1, 64 ] }}
        dynamic_batching {{ }}
        instance_group {{ count: {NUM_INSTANCES} kind: KIND_CPU }}
        """,
    "ranking": """
        max_batch_size: 8
        input { name: "user_id" data_type: TYPE_STRING dims: [ 1 ] reshape { shape: [ ] } }
        input { name: "clicked" data_type: TYPE_INT64 dims: [ -1 ] }
        output { name: "user" data_type: TYPE_FP32 dims: [ 4 ] }
        output { name: "clicked_mean" data_type: TYPE_FP16 dims: [ 64 ] }
        output { name: "bought" data_type: TYPE_FP32 dims: [ 2 ] }
        parameters { key: "user.ids" value { string_value: "user_id" } }
        parameters { key: "user.table" value { string_value: "users" } }
        parameters { key: "user.unknown_id" value { string_value: "anonymous" } }
        parameters { key: "clicked_mean.ids" value { string_value: "clicked" } }
        parameters { key: "clicked_mean.table" value { string_value: "items.npy" } }
        parameters { key: "clicked_mean.pooling" value { string_value: "mean" } }
        parameters { key: "clicked_mean.padding_id" value { string_value: "-1" } }
        parameters { key: "bought.ids" value { string_value: "user_id" } }
        parameters { key: "bought.table" value { string_value: "lmdb:bought.lmdb" } }
        parameters { key: "bought.unknown_id" value { string_value: "zeros" } }
        """,
    "corrupt": """
        input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
        output { name: "items" data_type: TYPE_FP32 dims: [ -1, 64 ] }
        """,
    "wide": """
        input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
        output { name: "items" data_type: TYPE_FP32 dims: [ -1, 128 ] }
        """,
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("embedding")
    for name, config in CONFIGS.items():
        add_model(directory, name, f'backend: "embedding"\n{config}')
        np.save(directory / name / "1" / "items.npy", ITEMS)
    (directory / "corrupt" / "1" / "items.npy").write_bytes(b"\x93NUMPY\x01\x00nothing of the kind")
    version = directory / "ranking" / "1"
    (version / "users").mkdir()
    np.save(version / "users" / "vectors.npy", USERS)
    np.save(version / "users" / "ids.npy", np.array([b"anonymous", *(b"user%d" % number for number in range(9))]))
    np.save(version / "users" / "scales.npy", np.arange(10, dtype=np.float32))
    with lmdb.open(f"{version}/bought.lmdb", subdir=False, map_size=1 << 20).begin(write=True) as changes:
        changes.put(b"user3", np.array([3, 4], np.float32).tobytes())
    return directory


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    flags = ("--exit-on-error=false", "--model-control-mode=explicit", "--load-model=*")
    with serving_to_the_end(repository, *flags) as server:
        yield server


def client_of(server: Server) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(
        server.url, concurrency=16, network_timeout=DEADLINE_S, connection_timeout=DEADLINE_S
    )


def ask(client: triton.InferenceServerClient, model: str, **inputs: Array) -> dict[str, Array]:
    return outputs(client.infer(model, tensors(inputs)))


def workers_of(server: Server, model: str) -> list[int]:
    """The processes of all its instances."""
    workers = [pid for pid in server.children if title(pid).startswith(f"shoal worker {model}_")]
    assert len(workers) == NUM_INSTANCES
    return workers


def test_rows_of_many_requests_at_once(server: Server) -> None:
    def ask_alone(ids: Array) -> bool:
        with client_of(server) as client:
            return np.array_equal(ask(client, "items", ids=ids)["items"], ITEMS[ids])

    # Full batches, which nothing can join: one for each instance to stand still with, and one that waits.
    rows = [64] * (NUM_INSTANCES + 1) + [1 + number % 3 for number in range(64)]
    asked = [np.random.default_rng(number).integers(0, NUM_ITEMS, (count, 64)) for number, count in enumerate(rows)]
    workers = workers_of(server, "items")
    with ThreadPoolExecutor(16) as threads:
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        try:
            answers = [threads.submit(ask_alone, ids) for ids in asked[: NUM_INSTANCES + 1]]
            wait_for_pending(server, "items", 1)
            answers += [threads.submit(ask_alone, ids) for ids in asked[NUM_INSTANCES + 1 :]]
            wait_for_pending(server, "items", 16 - NUM_INSTANCES)
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT)
        assert all(answer.result(DEADLINE_S) for answer in answers)
    with client_of(server) as client:
        [statistics] = client.get_inference_statistics("items")["model_stats"]
    assert statistics["execution_count"] < len(asked)
    assert statistics["inference_count"] == sum(len(ids) for ids in asked)


def test_an_unknown_id(server: Server) -> None:
    with client_of(server) as client, pytest.raises(InferenceServerException) as refused:
        ask(client, "items", ids=np.array([[5, NUM_ITEMS]]))
    assert refused.value.status() == "400"
    assert refused.value.message() == f"id {NUM_ITEMS} is not in table 'items.npy' of model 'items'"


def test_many_tables_of_one_model(server: Server) -> None:
    with client_of(server) as client:
        user_ids = np.array([[b"user3"], [b"nobody"]], np.object_)
        found = ask(client, "ranking", user_id=user_ids, clicked=np.array([[1, 2, 3], [7, -1, -1]]))
    assert np.array_equal(found["user"], [USERS[4] * 4.0, USERS[0] * 0.0])
    assert np.allclose(found["clicked_mean"], [ITEMS[[1, 2, 3]].mean(axis=0), ITEMS[7]], atol=0.05)
    assert found["bought"].tolist() == [[3, 4], [0, 0]]


def test_models_that_cannot_be_served_say_why(server: Server) -> None:
    with client_of(server) as client:
        reasons = {each["name"]: each.get("reason", "") for each in client.get_model_repository_index()}
    assert "table 'items.npy' of model 'corrupt': 'items.npy' cannot be read: " in reasons["corrupt"]
    assert reasons["wide"].endswith(
        "table 'items.npy' of model 'wide': rows have shape [64], the configuration of the output expects [128]"
    )


def test_all_instances_together_have_the_table_in_memory_once(server: Server, repository: Path) -> None:
    path, everything = repository / "items" / "1" / "items.npy", np.arange(NUM_ITEMS)[np.newaxis]
    workers = workers_of(server, "items")
    end = time.monotonic() + DEADLINE_S
    with client_of(server) as client:
        while min(found["Rss"] for found in (mapped_kib(pid, path) for pid in workers)) < ITEMS.nbytes >> 10:
            assert time.monotonic() < end, [mapped_kib(pid, path) for pid in workers]
            for request in [client.async_infer("items", tensors({"ids": everything})) for _ in range(8)]:
                request.get_result(timeout=DEADLINE_S)
    found = [mapped_kib(pid, path) for pid in workers]
    assert sum(each["Pss"] for each in found) <= (path.stat().st_size >> 10) + 4 * NUM_INSTANCES
    assert {each["Anonymous"] for each in found} == {0}


def mapped_kib(pid: int, path: Path) -> dict[str, int]:
    """What the kernel says of one file's mapping."""
    _, _, rest = Path(f"/proc/{pid}/smaps").read_text().partition(f"{path}\n")
    fields = re.findall(r"^(\w+): +(\d+) kB$", rest.partition("VmFlags")[0], re.MULTILINE)
    return {name: int(number) for name, number in fields}


def test_a_table_is_replaced_while_it_is_asked(server: Server, repository: Path) -> None:
    """Each answer is of one whole table: the newest that was there when it was asked, or a newer one."""
    path, ids = repository / "items" / "1" / "items.npy", np.arange(0, NUM_ITEMS, 97)[np.newaxis]
    newest = 0
    num_asking = 4
    all_ask, is_over = threading.Barrier(num_asking + 1), threading.Event()

    def keep_asking(_: int) -> None:
        with client_of(server) as client:
            ask(client, "items", ids=ids)
            all_ask.wait(DEADLINE_S)
            while not is_over.is_set():
                oldest = newest
                [raised_by] = np.unique(ask(client, "items", ids=ids)["items"] - ITEMS[ids])
                assert oldest <= raised_by <= newest + 1

    with ThreadPoolExecutor(num_asking) as threads:
        asking = threads.map(keep_asking, range(num_asking))
        try:
            all_ask.wait(DEADLINE_S)
            for number in range(1, 11):
                replace(path, ITEMS + np.float32(number))
                newest = number
        finally:
            is_over.set()
        list(asking)  # none of them has found anything wrong
    with client_of(server) as client:
        assert np.array_equal(ask(client, "items", ids=ids)["items"], ITEMS[ids] + 10)
        replace(path, ITEMS[:, :63])
        # Of whichever table the instance had: one that was not asked meanwhile has an older one.
        [raised_by] = np.unique(ask(client, "items", ids=ids)["items"] - ITEMS[ids])
        assert raised_by in range(11)
    assert server.read_log(b"table 'items.npy' of model 'items' is served as it was, the new one is refused: rows have")
    replace(path, ITEMS)


def replace(path: Path, table: Array) -> None:
    np.save(path.with_name("new.npy"), table)
    path.with_name("new.npy").rename(path)


def test_a_model_is_loaded_again(server: Server) -> None:
    with client_of(server) as client:
        client.load_model("items")
        assert np.array_equal(ask(client, "items", ids=np.array([[7]]))["items"], ITEMS[[[7]]])
        client.unload_model("ranking")
        assert not client.is_model_ready("ranking")
