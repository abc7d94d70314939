"""Loads and unloads of one model that come while another load of it is under way."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tritonclient.http as triton

from tests.end_to_end.asking import fetch
from tests.end_to_end.gate import Gate
from tests.end_to_end.lifecycle import ENSEMBLE, ask, index, index_once, infer, unloaded, write_model
from tests.end_to_end.raw_client import Client
from tests.end_to_end.repositories import python_model
from tests.end_to_end.server import DEADLINE_S, Server, serving
from tests.end_to_end.traffic import MODEL

WAITS = python_model("""
    def initialize(self, args):
        open("{gate}").close()

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("B", each.inputs()[0].as_numpy())]) for each in requests]
""")

#: Lines of the log: a request has reached its model, and waits for a load of that.
A_LOAD = b"a load of model '%s' waits: an earlier load of the model is under way"
AN_UNLOAD = b"an unload of model '%s' waits: an earlier load of the model is under way"


@pytest.fixture
def client(explicit: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(explicit.url, network_timeout=DEADLINE_S) as made:
        yield made


def write_waiting_model(repository: Path, name: str, *versions: int) -> Gate:
    """A model that loads when the gate is open."""
    directory = write_model(repository, name, *versions, config=MODEL.replace("identity", "python"))
    gate = Gate(repository / f"gate_of_{name}")
    for version in versions:
        (directory / str(version) / "model.py").write_text(WAITS.format(gate=gate.path))
    return gate


def test_loads_and_unloads_of_one_model_wait_for_each_other(
    client: triton.InferenceServerClient, explicit: Server, shared: Path
) -> None:
    gate = write_waiting_model(shared, "waits", 1)
    loading = [{"name": "waits", "version": "1", "state": "LOADING"}]
    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(ask, explicit, "load_model", "waits")]
        index_once(client, loading)
        for verb in ("unload_model", "load_model", "load_model", "unload_model"):
            start = len(explicit.log)
            asked.append(threads.submit(ask, explicit, verb, "waits"))
            assert explicit.read_log((A_LOAD if verb == "load_model" else AN_UNLOAD) % b"waits", start=start)
        with gate.opened():
            for each in asked:
                each.result(DEADLINE_S)  # none is refused
            index_once(client, [unloaded("waits")])  # by the last one
            client.load_model("waits")
            assert infer(client, "waits") == "1"
            client.unload_model("waits")
            index_once(client, [unloaded("waits")])


def test_loads_that_wait_keep_no_other_administration_waiting(
    client: triton.InferenceServerClient, explicit: Server, shared: Path
) -> None:
    """More than there are threads for loads: the index, settings, and the load of another model are answered."""
    gate = write_waiting_model(shared, "stuck", 1)
    write_model(shared, "other", 1)
    path = b"POST /v2/repository/models/stuck/load HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    waiting = [Client(explicit).send(path) for _ in range(40)]
    index_once(client, [{"name": "stuck", "version": "1", "state": "LOADING"}])
    client.update_log_settings({"log_verbose_level": 0})
    client.load_model("other")
    assert infer(client, "other") == "1"
    client.unload_model("other")
    with gate.opened():
        for each in waiting:
            with each:
                assert each.reply().status == 200
        client.unload_model("stuck")


def test_an_unload_waits_for_a_model_that_an_ensemble_has_brought_along(
    client: triton.InferenceServerClient, explicit: Server, shared: Path
) -> None:
    gate = write_waiting_model(shared, "brought", 1)
    write_model(shared, "brings", 1, config=ENSEMBLE.replace("STEP", "brought"))
    with ThreadPoolExecutor() as threads:
        loaded = threads.submit(ask, explicit, "load_model", "brings")
        index_once(client, [{"name": "brought", "version": "1", "state": "LOADING"}])
        asked = threads.submit(ask, explicit, "unload_model", "brought")
        assert explicit.read_log(AN_UNLOAD % b"brought")
        with gate.opened():
            loaded.exception(DEADLINE_S)  # it may have had its model, or have lost it
            asked.result(DEADLINE_S)
        client.unload_model("brings")
        client.unload_model("brought")


def test_an_ensemble_that_has_lost_its_model_is_unloaded_for_good(
    client: triton.InferenceServerClient, explicit: Server, shared: Path
) -> None:
    write_model(shared, "lost", 1)
    write_model(shared, "loses", 1, config=ENSEMBLE.replace("STEP", "lost"))
    client.load_model("loses")
    client.unload_model("lost")
    with ThreadPoolExecutor() as threads:
        for _ in range(2):
            list(threads.map(lambda _: ask(explicit, "unload_model", "loses"), range(4)))
            index_once(client, [unloaded("loses")])
    client.load_model("lost")
    assert index(client, "loses") == [unloaded("loses")]
    client.load_model("loses")
    assert infer(client, "loses") == "1"
    for name in ("loses", "lost"):
        client.unload_model(name)


def test_loads_that_have_not_ended_when_the_exit_timeout_is_over_are_refused(tmp_path: Path) -> None:
    """Their connections were cut 5 s later, and what a waiting load left behind was printed as a traceback."""
    write_waiting_model(tmp_path, "waits", 1)
    flags = "--model-control-mode=explicit", "--exit-timeout-secs=1"
    with serving(tmp_path, *flags) as server, ThreadPoolExecutor() as threads:
        path = "/v2/repository/models/waits/load"
        asked = [threads.submit(fetch, server.http_port, path, {}) for _ in range(2)]
        assert server.read_log(b"loading: waits:1")
        assert server.read_log(A_LOAD % b"waits")
        assert server.stop() == 1
        replies = [each.result(DEADLINE_S) for each in asked]
        assert [each.status for each in replies] == [503, 503]
        unanswered = "the server ends before there was an answer: --exit-timeout-secs is over"
        assert [each.json["error"] for each in replies] == [unanswered, unanswered]
    assert b"Exit timeout expired. Exiting immediately." in server.log
    assert b"Traceback" not in server.log
