"""Traces below a request's own, in files and as spans: of an ensemble's steps, and of the calls that a model makes with
`trace=`."""

import json
import os
import select
import signal
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
from tests.end_to_end.gate import Gate
from tests.end_to_end.server import (
    DEADLINE_S,
    Server,
    descendants,
    imbalances,
    only,
    serving_to_the_end,
    title,
)
from tests.end_to_end.traced import OLD_LOOKS, OWN_POINTS, POINTS, Traced, ask, traces
from tests.end_to_end.triton_ensembles import DECOUPLED, write, write_all
from tests.tracer.receiver import receiving

#: Calls of one model by another, on behalf of a request; `HOW`, by the request's id.
CALLS = """
import asyncio, os, signal


def call(model, request, **more):
    tensor = pb_utils.Tensor("X", given(request))
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=["Y"], **more)


def traced(model, request):
    return call(model, request, trace=request.trace())


def answer(called):
    return response(Y=pb_utils.get_output_tensor_by_name(called, "Y").as_numpy())


def once(request):
    return answer(traced("double", request).exec())


def either_way(request):
    call("double", request).exec()
    return once(request)


def of_a_stream(request):
    list(traced("count", request).exec(decoupled=True))
    return response(Y=given(request))


def of_one_that_fails(request):
    assert traced("raising", request).exec().has_error()
    return response(Y=given(request))


def dying(request):
    once(request)
    os.kill(os.getpid(), signal.SIGKILL)


def late(request, kept=[]):
    kept.append(request.trace())
    return answer(call("double", request, trace=kept[0]).exec())


def of_a_long_stream(request):
    tensor = pb_utils.Tensor("X", given(request) * 1500)
    asked = pb_utils.InferenceRequest(
        model_name="counting_on", inputs=[tensor], requested_output_names=["Y"], trace=request.trace()
    )
    list(asked.exec(decoupled=True))
    return response(Y=given(request))


def of_one_with_an_id(request):
    return answer(call("double", request, trace=request.trace(), request_id="mine").exec())


HOW = {
    "": once, "either way": either_way, "of a stream": of_a_stream, "of one that fails": of_one_that_fails,
    "dying": dying, "late": late,
    "untraced": lambda request: answer(call("double", request).exec()),
    "twice removed": lambda request: answer(traced("once", request).exec()),
    "of one with an id": of_one_with_an_id, "of a long stream": of_a_long_stream,
    "of one that waits": lambda request: answer(traced("waiting", request).exec()),
    "of an ensemble": lambda request: answer(traced("whole", request).exec()),
}
"""


def write_calling(path: Path, name: str, body: str, more: str = "") -> None:
    """A Python model that calls others."""
    write(path, name, body, more=more)
    file = path / name / "1" / "model.py"
    text = file.read_text().replace("\n\nclass ", f"\n{CALLS}\n\nclass ")
    file.write_text(text.replace("    def execute", "    async def execute") if "await " in text else text)


def write_repository(path: Path) -> None:
    write_all(path)
    for name in ("reached", "gate"):
        os.mkfifo(path.parent / name)
    body = """
    with open("{0}/reached", "w") as file:
        file.write("x")
    open("{0}/gate").close()
    return [response(Y=given(request)) for request in requests]
    """
    write(path, "waiting", body.format(path.parent))
    write(path, "raising", 'raise ValueError("on purpose")')
    write_calling(path, "once", "return [once(request) for request in requests]")
    write_calling(path, "caller", "return [HOW[request.request_id()](request) for request in requests]")
    write_calling(
        path,
        "at_once",
        """
        calls = [traced("double", request).async_exec() for request in requests for _ in range(3)]
        answers = await asyncio.gather(*calls)
        return [answer(each) for each in answers[::3]]
        """,
    )
    write_calling(
        path,
        "streaming",
        """
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(2):
                sender.send(once(request))
            sender.send(flags=FINAL)
        """,
        more=DECOUPLED,
    )
    write_ensemble(path, "around", step("once", {"X": "X"}, {"Y": "Y"}))
    write(path, "kept", "return [response(Y=given(request)) for request in requests]", more=ENABLE)
    write_ensemble(path, "keeping", step("kept", {"X": "X"}, {"Y": "Y"}))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "repository"
    path.mkdir()
    write_repository(path)
    return path


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    flags = f"--trace-config=triton,file={repository.parent}/traces", "--trace-config=rate=1"
    models = "caller", "at_once", "streaming", "around", "raising", "whole", "counting_on", "waiting"
    ensembles = "whole_again", "going_on", "lacking", "nested", "keeping"
    cache = "--cache-config=local,size=65536"
    with serving_to_the_end(
        repository, "--grpc-port=0", *flags, cache, *only(*models, *ensembles), environment=OLD_LOOKS
    ) as server:
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


@pytest.mark.parametrize("protocol", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def test_a_call_is_below_the_request_it_is_made_for(server: Server, trace: Any, protocol: Any) -> None:
    ask(server, protocol, "caller", "either way")
    found = trace()
    assert found.tree == [("caller", ""), ("double", "caller")]  # and not the call without `trace=`
    assert [each.get("request_id") for each in found.heads] == ["either way", None]
    assert [each["model_version"] for each in found.heads] == [1] * 2
    assert found.names("double") == found.names("caller") == POINTS
    found.check_times()


@pytest.mark.parametrize(
    ("model", "how", "tree"),
    [
        ("caller", "untraced", [("caller", "")]),
        ("caller", "twice removed", [("caller", ""), ("once", "caller"), ("double", "once")]),
        ("caller", "of an ensemble", [("caller", ""), ("whole", "caller"), ("double", "whole")]),
        ("around", "", [("around", ""), ("once", "around"), ("double", "once")]),
        ("at_once", "", [("at_once", ""), *[("double", "at_once")] * 3]),
        ("caller", "of a stream", [("caller", ""), ("count", "caller")]),
        ("caller", "of one with an id", [("caller", ""), ("double", "caller")]),
        ("caller", "of one that fails", [("caller", ""), ("raising", "caller")]),
    ],
)
def test_calls_of_every_kind(server: Server, trace: Any, model: str, how: str, tree: list[tuple[str, str]]) -> None:
    ask(server, tritonclient.http, model, how)
    found = trace()
    assert found.tree == tree
    names = [name for name, _ in tree]
    for called in set(names):
        assert found.names(called) == (OWN_POINTS if called in ("whole", "around") else POINTS) * names.count(called)
    found.check_times()


def test_calls_of_a_model_that_streams(server: Server, trace: Any) -> None:
    stream(server, "streaming", 3, empty_final=True)
    found = trace()
    assert found.tree == [("streaming", ""), *[("double", "streaming")] * 2]
    found.check_times()


def test_an_ensemble_of_many_steps_that_a_model_calls_is_above_them(server: Server, trace: Any) -> None:
    ask(server, tritonclient.http, "caller", "of a long stream")
    found = trace()
    assert found.tree[:2] == [("caller", ""), ("counting_on", "caller")]
    assert set(found.tree[2:]) == {("count", "counting_on"), ("either", "counting_on")}
    assert 400 < len(found.heads) <= 1 + 902
    found.check_times()


def test_a_call_for_a_request_that_is_answered_is_not_traced(server: Server, trace: Any) -> None:
    for _ in range(2):
        ask(server, tritonclient.http, "caller", "late")
    assert trace().tree == [("caller", ""), ("double", "caller"), ("caller", "")]


def test_calls_of_a_model_that_dies_are_in_its_trace(server: Server, trace: Any) -> None:
    with pytest.raises(tritonclient.http.InferenceServerException, match="SIGKILL"):
        ask(server, tritonclient.http, "caller", "dying")
    found = trace()
    assert found.tree == [("caller", ""), ("double", "caller")]
    found.check_times()


def test_a_call_that_a_batcher_s_death_interrupts_is_answered_and_not_in_the_trace(
    server: Server, trace: Any, repository: Path
) -> None:
    reached = os.open(repository.parent / "reached", os.O_RDWR)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, server, tritonclient.http, "caller", "of one that waits")
        assert select.select([reached], [], [], DEADLINE_S)[0]
        (batcher,) = [pid for pid in descendants(server.process.pid) if title(pid) == "shoal batcher"]
        os.kill(batcher, signal.SIGKILL)
        with Gate(repository.parent / "gate").opened():
            asking.result(DEADLINE_S)
    os.close(reached)
    assert trace().tree == [("caller", "")]


#: Of a request by its model and its id: its spans, each with that above it, in the order of the names.
SPANS = {
    ("whole_again", ""): [
        ("InferRequest", ""),
        ("compute", "double"),
        ("double", "whole"),
        ("whole", "whole_again"),
        ("whole_again", "InferRequest"),
    ],
    ("caller", "of an ensemble"): [
        ("InferRequest", ""),
        ("caller", "InferRequest"),
        ("compute", "caller"),
        ("compute", "double"),
        ("double", "whole"),
        ("whole", "caller"),
    ],
}


def test_spans(repository: Path) -> None:
    with receiving() as receiver:
        flags = "mode=opentelemetry", "level=TIMESTAMPS", "rate=1", f"opentelemetry,url={receiver.url}"
        config = [f"--trace-config={each}" for each in (*flags, "opentelemetry,bsp_schedule_delay=1")]
        with serving_to_the_end(repository, *config, *only("caller", "whole_again")) as server:
            num_earlier = 0
            for (model, request_id), expected in SPANS.items():
                ask(server, tritonclient.http, model, request_id)
                spans = receiver.spans(num_earlier + len(expected))[num_earlier:]
                num_earlier += len(spans)
                names = {span.span_id: span.name for span in spans}
                assert sorted([(span.name, names.get(span.parent_id, "")) for span in spans]) == expected
                assert len({span.trace_id for span in spans}) == 1
                numbers = {span.name: span.attributes.get("triton.trace_id") for span in spans}
                (double,) = [span for span in spans if span.name == "double"]
                assert double.attributes["triton.trace_parent_id"] == numbers["whole"]
