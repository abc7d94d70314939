"""Two servers that share their answers through a real Redis, and what becomes of them when it fails.

Their repositories are copies of one, as on two machines. Each test asks for numbers of its own.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import tritonclient.grpc
import tritonclient.http

from tests.batcher.redis_server import RedisServer
from tests.end_to_end.cached_models import CONFIG, ENABLE, MODEL, Asker, ask_eight_times_at_once, expected
from tests.end_to_end.ensemble_models import step, write_ensemble
from tests.end_to_end.figures import statistics
from tests.end_to_end.gate import Gate
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import DEADLINE_S, Server, descendants, imbalances, samples, serving, title, wait_until

PASSWORD = "not to be seen"


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), "--requirepass", PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    one, other = (tmp_path_factory.mktemp(name) / "models" for name in ("one", "other"))
    for name, more in (("cached", ENABLE), ("plain", "")):
        add_model(one, name, CONFIG + more, MODEL)
    write_ensemble(one, "chain", step("plain", {"X": "X"}, {"Y": "Y", "Z": "Z"}), outputs=("Y", "Z"))
    with (one / "chain" / "config.pbtxt").open("a") as config:
        config.write(ENABLE)
    shutil.copytree(one, other)  # with the times
    return one, other


@pytest.fixture(scope="module")
def servers(repositories: tuple[Path, Path], redis_server: RedisServer) -> Iterator[list[Server]]:
    # A Redis that has no core for a second, on a machine that does much else, is not to be taken for a silent one.
    said = "host=127.0.0.1", f"port={redis_server.port}", "db=1", "socket_timeout=5000"
    flags = [f"--cache-config=redis,{each}" for each in said]
    secret = {"TRITONCACHE_REDIS_PASSWORD": PASSWORD}
    control = "--model-control-mode=explicit", "--load-model=*"
    with ExitStack() as stack:
        running = [
            stack.enter_context(serving(each, "--grpc-port=0", *control, *flags, environment=secret))
            for each in repositories
        ]
        for server in running:
            assert server.read_log(answers(redis_server))
        yield running
        for server in running:
            server.ledger_once(lambda ledger: not imbalances(ledger))
            assert PASSWORD.encode() not in server.log


@pytest.fixture
def askers(servers: list[Server], request: pytest.FixtureRequest) -> list[Asker]:
    return [Asker(server, getattr(request, "param", tritonclient.http)) for server in servers]


#: What differs between protocols is who makes the digests.
BOTH = pytest.mark.parametrize("askers", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"], indirect=True)


def done(server: Server, model: str = "cached") -> tuple[int, int, int]:
    """Executions, hits and misses."""
    found = statistics(server, model)
    inference = found["inference_stats"]
    return found["execution_count"], inference["cache_hit"]["count"], inference["cache_miss"]["count"]


def since(server: Server, before: tuple[int, int, int], model: str = "cached") -> tuple[int, ...]:
    return tuple(now - then for now, then in zip(done(server, model), before, strict=True))


def answers(redis_server: RedisServer) -> bytes:
    """The log's words for a connection that is up; the line about one that is lost says "until it answers", too."""
    return b"Redis at 127.0.0.1:%d answers" % redis_server.port


def share(redis_server: RedisServer, asker: Asker, number: float, model: str = "cached") -> None:
    """Have something answered that Redis does not know, and return when it does: the answer may be there first."""
    with redis_server.client(password=PASSWORD, db=1) as client:
        num_known = client.dbsize()
        assert asker.ask(model, number, asker.own) == expected(number, asker.own)
        wait_until(lambda: client.dbsize() != num_known)


@BOTH
def test_what_one_server_has_answered_the_other_need_not_execute(
    servers: list[Server], askers: list[Asker], redis_server: RedisServer
) -> None:
    before = [done(server) for server in servers]
    share(redis_server, askers[0], 1)
    assert askers[1].ask("cached", 1, askers[0].own) == expected(1, askers[0].own)
    assert [since(*each) for each in zip(servers, before, strict=True)] == [(1, 0, 1), (0, 1, 0)]
    assert askers[1].ask("cached", 1, askers[0].own) == expected(1, askers[0].own)
    assert since(servers[1], before[1]) == (0, 2, 0), "which is kept there, too"


def test_an_ensemble_is_shared_as_a_whole(
    servers: list[Server], askers: list[Asker], redis_server: RedisServer
) -> None:
    before = done(servers[1], "plain"), done(servers[1], "chain")
    one, other = askers
    share(redis_server, one, 2, "chain")
    assert other.ask("chain", 2, one.own) == expected(2, one.own)
    assert since(servers[1], before[0], "plain")[0] == 0
    assert since(servers[1], before[1], "chain")[1] == 1


def test_a_batcher_that_dies_takes_no_answers_along(
    servers: list[Server], askers: list[Asker], redis_server: RedisServer
) -> None:
    (server, _), (asker, _) = servers, askers
    share(redis_server, asker, 3)
    before = done(server)
    (batcher,) = [pid for pid in descendants(server.process.pid) if title(pid) == "shoal batcher"]
    server.read_on()
    start = len(server.log)
    os.kill(batcher, signal.SIGKILL)
    assert server.read_log(answers(redis_server), start=start)
    assert asker.ask("cached", 3, asker.own) == expected(3, asker.own)
    assert since(server, before) == (0, 1, 0)


@BOTH
def test_equal_requests_on_their_way_are_executed_once(
    servers: list[Server], repositories: tuple[Path, Path], askers: list[Asker]
) -> None:
    (server, _), (asker, _) = servers, askers
    before = done(server)
    ask_eight_times_at_once(server, asker, Gate(repositories[0] / "cached" / "gate"))
    assert since(server, before) == (1, 7, 1)


def test_a_damaged_value_is_a_miss(servers: list[Server], askers: list[Asker], redis_server: RedisServer) -> None:
    one, other = askers
    with redis_server.client(password=PASSWORD, db=1) as client:
        known = set(client.keys())
        share(redis_server, one, 4)
        (name,) = set(client.keys()) - known
        assert name.startswith(b"shoal:1:cached:1:")
        client.setrange(name, 40, b"damaged")
        before = done(servers[1])
        assert other.ask("cached", 4, one.own) == expected(4, one.own)
        assert since(servers[1], before) == (1, 0, 1)
        wait_until(lambda: b"damaged" not in client.get(name), lambda: "it is not written again")


def test_a_redis_that_stands_still_is_no_error(
    servers: list[Server], askers: list[Asker], redis_server: RedisServer
) -> None:
    (server, _), (asker, _), before, start = servers, askers, done(servers[0]), len(servers[0].log)
    redis_server.pause()
    try:
        for number in range(5):
            assert asker.ask("cached", 5, asker.own, number) == expected(5, asker.own, number)
        assert server.read_log(b"it was silent for 5000 ms", start=start)
    finally:
        redis_server.resume()
    assert asker.ask("cached", 5, asker.own, 0) == expected(5, asker.own, 0)
    assert since(server, before) == (5, 1, 5), "what is kept here is found"
    assert server.read_log(b"answers again", start=start)
    assert server.log.count(b"is not used", start) == 1


def test_a_redis_that_dies_is_no_error_and_its_successor_is_used(
    servers: list[Server], askers: list[Asker], redis_server: RedisServer
) -> None:
    before = [done(server) for server in servers]
    for server in servers:
        server.read_on()
    starts = [len(server.log) for server in servers]
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(askers[0].ask, "cached", 6, askers[0].own, number) for number in range(200)]
        asked[20].result(DEADLINE_S)
        redis_server.kill()
        assert [each.result(DEADLINE_S) for each in asked] == [expected(6, askers[0].own, each) for each in range(200)]
    assert since(servers[0], before[0]) == (200, 0, 200)
    redis_server.start()
    for server, start in zip(servers, starts, strict=True):
        assert server.read_log(answers(redis_server), start=start)
    share(redis_server, askers[0], 7)
    assert askers[1].ask("cached", 7, askers[0].own) == expected(7, askers[0].own)
    assert since(servers[1], before[1]) == (0, 1, 0)


def test_the_metrics_tell_of_both_caches_as_of_one(servers: list[Server], askers: list[Asker]) -> None:
    for asker in (*askers, *askers):
        asker.ask("cached", 8, askers[0].own)
    labels = '{model="cached",version="1"}'
    for server in servers:
        found, told = samples(server.metrics_port), statistics(server, "cached")["inference_stats"]
        assert found[f"nv_cache_num_hits_per_model{labels}"] == told["cache_hit"]["count"] > 0
        assert found[f"nv_cache_num_misses_per_model{labels}"] == told["cache_miss"]["count"] > 0
        assert found["nv_cache_num_lookups"] == found["nv_cache_num_hits"] + found["nv_cache_num_misses"]
        assert found["nv_cache_lookup_duration"] > 0
