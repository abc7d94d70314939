"""Load over gRPC: what is read of h2load's words and its log, and one call by grpcio against a real server of it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from bench.errors import BenchmarkError
from bench.grpc_load import H2load, parse
from bench.grpc_words import METHOD, grpc_answer, grpc_request
from bench.workloads import ADD_SUB, IDENTITY_16
from shoal.triton_messages import service

OUTPUT = """\
starting benchmark...
finished in 2.00s, 50.00 req/s, 337.58KB/s
requests: 100 total, 100 started, 100 done, {succeeded} succeeded, {failed} failed, {failed} errored, 0 timeout
status codes: 100 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 495.98KB (507880) total, 58.59KB (60000) headers (space savings 47.37%), 313.48KB ({data}) data
                     min         max         mean         sd        +/- sd
time for request:     1.27ms    113.24ms      7.49ms     13.20ms    95.40%
time for connect:      245us     10.06ms      8.38ms      3.17ms    87.50%
time to 1st byte:    29.58ms     33.65ms     32.63ms      1.16ms    87.50%
req/s           :     12.25       13.50       12.50        4.99    87.50%
"""
LOG = "".join(f"1795347972224531\t200\t{number}\n" for number in range(1, 102))


def test_the_words_of_h2load_are_read() -> None:
    seen = parse(OUTPUT.format(succeeded=100, failed=0, data=10700), LOG, 107, cpu_s=0.5)
    assert (seen.requests, seen.duration_s, seen.requests_per_s, seen.cpu_s, seen.errors) == (100, 2.0, 50.0, 0.5, 0)
    assert (seen.p50_us, seen.p99_us, seen.slowest_us) == (51, 100, 101)
    assert (seen.least_per_s, seen.most_per_s) == (12.25, 13.5)


def test_a_call_without_a_message_has_failed_whatever_its_status_in_http() -> None:
    seen = parse(OUTPUT.format(succeeded=90, failed=10, data=80 * 107 + 50), LOG, 107, cpu_s=0.5)
    assert (seen.requests, seen.errors) == (80, 20)


def test_bytes_of_calls_that_were_cut_off_are_no_answers() -> None:
    assert parse(OUTPUT.format(succeeded=90, failed=0, data=95 * 107), LOG, 107, cpu_s=0.5).requests == 90


def test_output_without_figures_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="h2load printed no figures: 'unable to connect'"):
        parse("unable to connect\n", LOG, 107, cpu_s=0.1)
    with pytest.raises(BenchmarkError, match=r"no request was answered \(100 errors\)"):
        parse(OUTPUT.format(succeeded=100, failed=0, data=0), LOG, 107, cpu_s=0.1)


def test_a_request_has_a_raw_tensor_per_input() -> None:
    request = grpc_request(ADD_SUB)
    assert request.body[:1] == b"\0"
    assert int.from_bytes(request.body[1:5], "big") == len(request.body) - 5
    message = service().ModelInferRequest.FromString(request.body[5:])
    assert [(each.name, each.datatype, list(each.shape)) for each in message.inputs] == [
        ("INPUT0", "FP32", [16]), ("INPUT1", "FP32", [16]),
    ]  # fmt: skip
    assert list(message.raw_input_contents) == [ADD_SUB.values.tobytes()] * 2


@pytest.fixture
def port() -> Iterator[int]:
    """A server that gives the first input back, unless the model is another one."""

    def infer(message: bytes, context: grpc.ServicerContext) -> bytes:
        request = service().ModelInferRequest.FromString(message)
        if request.model_name != IDENTITY_16.name:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
        raws = request.raw_input_contents[:1]
        answer: bytes = service().ModelInferResponse(raw_output_contents=raws).SerializeToString()
        return answer

    _, service_name, method = METHOD.split("/")
    server = grpc.server(ThreadPoolExecutor(1))
    handler: Any = grpc.unary_unary_rpc_method_handler(infer)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service_name, {method: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(None).wait()


def test_one_call_is_asked_by_grpcio(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")  # it is not run
    load = H2load()
    status, headers, body = load.ask(port, grpc_request(IDENTITY_16))
    assert status == 200
    assert grpc_answer(headers, body) == IDENTITY_16.values
    with pytest.raises(OSError, match="NOT_FOUND: no such model"):
        load.ask(port, grpc_request(ADD_SUB))


def test_without_h2load_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(BenchmarkError, match="apt install nghttp2-client"):
        H2load()
