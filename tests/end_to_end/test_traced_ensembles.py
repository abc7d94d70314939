"""Traces of ensembles through a whole server: a trace for each step, below that of the ensemble, in files and spans."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
import tritonclient.http

from tests.end_to_end.cached_models import ENABLE
from tests.end_to_end.ensemble_models import step, stream, write_ensemble
from tests.end_to_end.server import DEADLINE_S, Server, imbalances, only, serving_to_the_end
from tests.end_to_end.traced import OLD_LOOKS, OWN_POINTS, POINTS, Traced, ask, traces
from tests.end_to_end.triton_ensembles import write, write_all
from tests.tracer.receiver import receiving

ENSEMBLES = "whole_again", "going_on", "lacking", "nested", "keeping"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ensembles")
    write_all(path)
    write(path, "kept", "return [response(Y=given(request)) for request in requests]", more=ENABLE)
    write_ensemble(path, "keeping", step("kept", {"X": "X"}, {"Y": "Y"}))
    return path


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    file = repository.parent / "traces"
    flags = f"--trace-config=triton,file={file}", "--trace-config=rate=1", "--cache-config=local,size=65536"
    with serving_to_the_end(repository, "--grpc-port=0", *flags, *only(*ENSEMBLES), environment=OLD_LOOKS) as server:
        yield server
        server.ledger_once(lambda ledger: not imbalances(ledger))


@pytest.fixture
def trace(server: Server, repository: Path) -> Iterator[Callable[[], Traced]]:
    yield from traces(server, repository.parent / "traces")


@pytest.mark.parametrize("protocol", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_steps_are_below_their_ensemble(server: Server, trace: Any, protocol: Any) -> None:
    ask(server, protocol, "whole_again", "first")
    ask(server, protocol, "going_on", "second")
    found = trace()
    again = [("whole_again", ""), ("whole", "whole_again"), ("double", "whole")]
    assert found.tree == [*again, ("going_on", ""), ("partial", "going_on"), ("either", "going_on")]
    assert [each["request_id"] for each in found.heads] == ["first"] * 3 + ["second"] * 3
    assert [each["model_version"] for each in found.heads] == [1] * 6
    for model in ("double", "partial", "either"):
        assert found.names(model) == POINTS
    for model in ("whole_again", "whole", "going_on"):
        assert found.names(model) == OWN_POINTS
    found.check_times()


def test_steps_lie_within_their_ensemble_where_many_requests_come_at_once(server: Server, trace: Any) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: ask(server, tritonclient.http, "whole_again"), range(60)))
    found = trace()
    assert len(found.heads) == 180
    found.check_times()


def test_steps_of_a_request_that_fails_are_there(server: Server, trace: Any) -> None:
    with pytest.raises(tritonclient.http.InferenceServerException, match="in ensemble 'lacking'"):
        ask(server, tritonclient.http, "lacking")
    found = trace()
    assert found.tree == [("lacking", ""), ("partial", "lacking")]
    found.check_times()


def test_a_step_that_is_answered_from_the_cache_has_been_queued_as_any_other(server: Server, trace: Any) -> None:
    for model in ("keeping", "keeping", "kept"):
        ask(server, tritonclient.http, model)
    found = trace()
    assert found.tree == [("keeping", ""), ("kept", "keeping")] * 2 + [("kept", "")]
    assert found.names("kept") == POINTS + OWN_POINTS + OWN_POINTS
    found.check_times()


def test_a_stream_has_a_step_for_each_response(server: Server, trace: Any) -> None:
    stream(server, "counting_on", 3)
    found = trace()
    assert found.tree[0] == ("counting_on", "")
    assert sorted(found.tree[1:]) == [("count", "counting_on"), *[("either", "counting_on")] * 3]
    found.check_times()


def test_a_long_stream_has_no_more_steps_than_a_trace_may_have(server: Server, trace: Any) -> None:
    assert len(stream(server, "counting_on", 4000)) == 4000
    found = trace()
    assert found.tree[0] == ("counting_on", "")
    assert 200 < len(found.heads) <= 1 + 901
    assert set(found.tree[1:]) <= {("count", "counting_on"), ("either", "counting_on")}
    found.check_times()


def test_a_stream_whose_end_comes_alone_has_its_steps(server: Server, trace: Any) -> None:
    assert stream(server, "nested", 0, empty_final=True) == [({}, True)]
    with closing(HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)) as connection:
        connection.request("POST", "/v2/models/nested/generate_stream", json.dumps({"X": [[0]]}))
        assert connection.getresponse().read() == b""
        connection.request("GET", "/v2/health/live")  # is looked at when the stream's trace has gone to the tracer
        assert connection.getresponse().status == 200
    found = trace()
    assert found.tree == 2 * [("nested", ""), ("counting_on", "nested"), ("count", "counting_on")]
    found.check_times()


def test_spans(repository: Path) -> None:
    with receiving() as receiver:
        flags = "mode=opentelemetry", "level=TIMESTAMPS", "rate=1", f"opentelemetry,url={receiver.url}"
        config = [f"--trace-config={each}" for each in (*flags, "opentelemetry,bsp_schedule_delay=1")]
        with serving_to_the_end(repository, *config, *only("whole_again")) as server:
            ask(server, tritonclient.http, "whole_again")
            spans = receiver.spans(5)
    names = {span.span_id: span.name for span in spans}
    assert sorted([(span.name, names.get(span.parent_id, "")) for span in spans]) == [
        ("InferRequest", ""),
        ("compute", "double"),
        ("double", "whole"),
        ("whole", "whole_again"),
        ("whole_again", "InferRequest"),
    ]
    assert len({span.trace_id for span in spans}) == 1
    numbers = {span.name: span.attributes.get("triton.trace_id") for span in spans}
    (double,) = [span for span in spans if span.name == "double"]
    assert double.attributes["triton.trace_parent_id"] == numbers["whole"]
