"""The response cache through a whole server and Triton's clients: what is executed, and what is answered without.

Y is twice X and Z is thrice. The model stands still in a request with 100 until its gate is opened, dies in one with 13
if there is poison, and refuses what is negative. Each test asks for numbers of its own.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils

from tests.end_to_end.cached_models import (
    CONFIG,
    ENABLE,
    HOLD,
    KILL,
    MODEL,
    Asker,
    ask_eight_times_at_once,
    expected,
    num_lookups,
    wait_for_lookups,
)
from tests.end_to_end.ensemble_models import step, write_ensemble
from tests.end_to_end.figures import statistics
from tests.end_to_end.gate import Gate
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import DEADLINE_S, Server, descendants, imbalances, samples, serving, title

#: Of 4096 bytes each: an answer takes one, or more.
NUM_BLOCKS = 16


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cached")
    for name, more in (("cached", ENABLE), ("plain", "")):
        add_model(path, name, CONFIG + more, MODEL)
        Gate(path / name / "gate")
    kept = step("cached", {"X": "X"}, {"Y": "t", "Z": "Z"})
    write_ensemble(path, "composed", kept, step("plain", {"X": "t"}, {"Y": "Y"}), outputs=("Y", "Z"))
    write_ensemble(path, "composed_again", step("composed", {"X": "X"}, {"Y": "Y", "Z": "Z"}), outputs=("Y", "Z"))
    steps = step("plain", {"X": "X"}, {"Y": "t", "Z": "Z"}), step("plain", {"X": "t"}, {"Y": "Y"})
    write_ensemble(path, "chain", *steps, outputs=("Y", "Z"))
    with (path / "chain" / "config.pbtxt").open("a") as config:
        config.write(ENABLE)
    return path


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    flags = f"--cache-config=local,size={4096 * NUM_BLOCKS}", "--model-control-mode=explicit", "--load-model=*"
    with serving(repository, "--grpc-port=0", *flags) as server:
        yield server
        ledger = server.ledger_once(lambda ledger: not imbalances(ledger))
        (num_cached,) = [each["blocks_cached"] for each in ledger["processes"] if "blocks_cached" in each]
        assert 0 < num_cached <= NUM_BLOCKS


@pytest.fixture(params=[tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def asker(server: Server, request: pytest.FixtureRequest) -> Asker:
    return Asker(server, request.param)


@pytest.fixture
def http(server: Server) -> Asker:
    return Asker(server, tritonclient.http)


Counts = Callable[[], tuple[int, int, int, int]]


@pytest.fixture
def counts(server: Server) -> Counts:
    """What the cached model has done since: successes, executions, hits and misses."""

    def read() -> tuple[int, ...]:
        found = statistics(server, "cached")
        inference = found["inference_stats"]
        return (
            inference["success"]["count"],
            found["execution_count"],
            inference["cache_hit"]["count"],
            inference["cache_miss"]["count"],
        )

    before = read()
    return lambda: tuple(now - then for now, then in zip(read(), before, strict=True))  # type: ignore[return-value]


def test_an_equal_request_is_not_executed_whatever_its_id(asker: Asker, counts: Counts) -> None:
    for id_ in ("", "a", "b"):
        assert asker.ask("cached", 1, asker.own, request_id=id_) == expected(1, asker.own)
    assert counts() == (3, 1, 2, 1)


def test_the_protocols_share_answers(server: Server, counts: Counts) -> None:
    for protocol in (tritonclient.http, tritonclient.grpc, tritonclient.http):
        assert Asker(server, protocol).ask("cached", 3) == expected(3)
    # Compressed responses are the road's.
    http = Asker(server, tritonclient.http)
    assert http.ask("cached", 3, response_compression_algorithm="gzip") == expected(3)
    assert counts() == (4, 1, 3, 1)


def test_what_was_used_last_stays_and_the_rest_makes_room(server: Server, http: Asker, counts: Counts) -> None:
    evicted = samples(server.metrics_port)["nv_cache_num_evictions"]
    http.ask("cached", 5)
    for number in range(NUM_BLOCKS):
        assert http.ask("cached", 5, number) == expected(5, number)
        http.ask("cached", 5)
    assert counts() == (1 + 2 * NUM_BLOCKS, 1 + NUM_BLOCKS, NUM_BLOCKS, 1 + NUM_BLOCKS)
    http.ask("cached", 5, 0)  # has gone
    assert counts()[1] == 2 + NUM_BLOCKS
    now = samples(server.metrics_port)
    for number in range(1, 100):
        if now["nv_cache_num_entries"] == NUM_BLOCKS:
            break
        # An evicted answer whose reply a front end has not released yet keeps its block until the next one comes.
        assert http.ask("cached", 5, number % (NUM_BLOCKS + 1)) == expected(5, number % (NUM_BLOCKS + 1))
        now = samples(server.metrics_port)
    assert now["nv_cache_num_entries"] == NUM_BLOCKS
    assert now["nv_cache_util"] == 1
    assert now["nv_cache_num_evictions"] > evicted


def test_what_is_larger_than_the_cache_is_not_kept(http: Asker, counts: Counts) -> None:
    numbers = range(2048 * NUM_BLOCKS)
    for _ in range(2):
        assert http.ask("cached", *numbers) == expected(*numbers)
    assert counts() == (2, 2, 0, 2)


def test_an_execution_that_fails_is_a_miss_and_an_ensemble_that_does_is_none(
    server: Server, asker: Asker, counts: Counts
) -> None:
    before = statistics(server, "chain")["inference_stats"]["cache_miss"]["count"]
    for model in ("cached", "cached", "chain"):
        with pytest.raises(tritonclient.utils.InferenceServerException):
            asker.ask(model, -1)
    assert counts() == (0, 2, 0, 2)
    assert statistics(server, "chain")["inference_stats"]["cache_miss"]["count"] == before


def test_equal_requests_on_their_way_are_executed_once(
    server: Server, repository: Path, asker: Asker, counts: Counts
) -> None:
    ask_eight_times_at_once(server, asker, Gate(repository / "cached" / "gate"))
    assert counts() == (8, 1, 7, 1)


def test_where_the_first_dies_with_its_worker_the_next_is_executed(
    server: Server, repository: Path, http: Asker, counts: Counts
) -> None:
    poison, before = repository / "cached" / "poison", num_lookups(server)
    poison.touch()
    with ThreadPoolExecutor(9) as pool:
        held = pool.submit(http.ask, "cached", HOLD, 1)
        wait_for_lookups(server, before + 1)  # else one of the others could be the first
        asked = [pool.submit(http.ask, "cached", KILL) for _ in range(8)]
        wait_for_lookups(server, before + 9)
        assert not held.done()
        with Gate(repository / "cached" / "gate").opened():
            assert held.result(DEADLINE_S) == expected(HOLD, 1)
            refused = [each for each in asked if each.exception(DEADLINE_S) is not None]
    assert len(refused) == 1
    assert "SIGKILL" in str(refused[0].exception())
    assert all(each.result() == expected(KILL) for each in asked if each not in refused)
    assert counts() == (8, 2, 6, 2)


def test_a_batcher_that_dies_takes_the_answers_along_and_nothing_else(server: Server, asker: Asker) -> None:
    is_over, num_failed = threading.Event(), statistics(server, "cached")["inference_stats"]["fail"]["count"]

    def ask_on() -> None:
        while not is_over.is_set():
            assert asker.ask("cached", 10, asker.own) == expected(10, asker.own)

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask_on) for _ in range(4)]
        for _ in range(2):
            (batcher,) = [pid for pid in descendants(server.process.pid) if title(pid) == "shoal batcher"]
            start = len(server.log)
            os.kill(batcher, signal.SIGKILL)
            assert server.read_log(b"another takes its place", start=start)
            wait_for_lookups(server, num_lookups(server) + 20)  # of which none is the dead one's
            assert not any(each.done() for each in asked)
        is_over.set()
        for each in asked:
            each.result(DEADLINE_S)
    assert statistics(server, "cached")["inference_stats"]["fail"]["count"] == num_failed


def test_an_ensemble_is_cached_as_a_whole(server: Server, asker: Asker) -> None:
    whole = {"Y": expected(12, 2 * asker.own)["Y"], "Z": expected(6, asker.own)["Z"]}
    assert asker.ask("chain", 6, asker.own) == whole
    executed = statistics(server, "plain")["execution_count"]
    assert asker.ask("chain", 6, asker.own) == whole
    assert statistics(server, "plain")["execution_count"] == executed
    told = statistics(server, "chain")["inference_stats"]
    assert told["cache_hit"]["count"] == told["cache_miss"]["count"] > 0


def test_a_step_of_an_ensemble_is_answered_as_an_equal_request_was(asker: Asker, counts: Counts) -> None:
    """Whoever asked it: a client, an ensemble, or one that is a step itself."""
    number = 900 + asker.own
    whole = {"Y": expected(2 * number)["Y"], "Z": expected(number)["Z"]}
    assert asker.ask("composed", number) == whole
    assert counts() == (1, 1, 0, 1)
    assert asker.ask("composed", number) == whole
    assert asker.ask("composed_again", number) == whole
    assert asker.ask("cached", number) == expected(number)
    assert counts() == (4, 1, 3, 1)


def test_steps_on_their_way_are_executed_once(server: Server, repository: Path, asker: Asker, counts: Counts) -> None:
    before = num_lookups(server)
    first = 902 + asker.own
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(asker.ask, "composed", HOLD, first) for _ in range(4)]
        asked += [pool.submit(asker.ask, "cached", HOLD, first) for _ in range(4)]
        wait_for_lookups(server, before + 8)
        assert not any(each.done() for each in asked)
        with Gate(repository / "cached" / "gate").opened():
            answers = [each.result(DEADLINE_S) for each in asked]
    whole = {"Y": expected(2 * HOLD, 2 * first)["Y"], "Z": expected(HOLD, first)["Z"]}
    assert answers == [whole] * 4 + [expected(HOLD, first)] * 4
    assert counts() == (8, 1, 7, 1)


def test_a_reloaded_model_has_no_answers_yet(server: Server, repository: Path, http: Asker) -> None:
    for _ in range(2):
        assert http.ask("cached", 8) == expected(8)
    (repository / "cached" / "1" / "model.py").write_text(MODEL.replace("x * 3", "x * 5"))
    with tritonclient.http.InferenceServerClient(server.url) as client:
        client.load_model("cached")
    for _ in range(2):
        assert http.ask("cached", 8)["Z"] == np.float32(40).tobytes()
    found = statistics(server, "cached")
    assert (found["execution_count"], found["inference_stats"]["cache_hit"]["count"]) == (1, 1)


def test_the_metrics_tell_the_same(server: Server, http: Asker) -> None:
    before = samples(server.metrics_port)
    http.ask("cached", 9)
    http.ask("cached", 9)
    labels = '{model="cached",version="1"}'
    found, told = samples(server.metrics_port), statistics(server, "cached")["inference_stats"]
    for kind in ("hit", "miss"):
        plural = {"hit": "hits", "miss": "misses"}[kind]
        assert found[f"nv_cache_num_{plural}_per_model{labels}"] == told[f"cache_{kind}"]["count"] > 0
        assert found[f"nv_cache_{kind}_duration_per_model{labels}"] == told[f"cache_{kind}"]["ns"] // 1000 > 0
    assert 'nv_cache_num_hits_per_model{model="plain",version="1"}' not in found
    # What waited for another when a batcher was killed was looked up, and found its end in the next one.
    lookups, hits, misses = (
        found[f"nv_cache_num_{name}"] - before[f"nv_cache_num_{name}"] for name in ("lookups", "hits", "misses")
    )
    assert (lookups, hits, misses) == (2, 1, 1)
    assert told["compute_infer"]["count"] == told["success"]["count"] - told["cache_hit"]["count"]


def test_an_ensemble_whose_steps_mean_another_version_has_no_answers_yet(
    server: Server, repository: Path, http: Asker
) -> None:
    for _ in range(2):
        assert http.ask("chain", 14) == {"Y": expected(28)["Y"], "Z": expected(14)["Z"]}
    (repository / "plain" / "1" / "model.py").write_text(MODEL.replace("x * 3", "x * 5"))
    with tritonclient.http.InferenceServerClient(server.url) as client:
        client.load_model("plain")
    for _ in range(2):
        assert http.ask("chain", 14)["Z"] == np.float32(70).tobytes()
