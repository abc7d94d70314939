"""gRPC on its lane, driven by the real tritonclient and by grpcio, in plain text and over TLS: a server for each, whose
ledger balances in the end."""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as client
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from shoal.frontend.grpc.messages import HealthCheckRequest, HealthCheckResponse, service
from tests.certificates import Certificates, make_certificates
from tests.end_to_end.grpc_inputs import countdown, open_channel, pair, tensor, tls_flags
from tests.end_to_end.repositories import add_model, config_text
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, imbalances, only, serving

IDENTITY = config_text("identity", "IN FP32 -1", "OUT FP32 -1")
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
Answers = "queue.SimpleQueue[tuple[client.InferResult | None, InferenceServerException | None]]"


@pytest.fixture(scope="module", params=["plain", "tls"])
def certificates(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Certificates | None:
    """Those of a server with TLS; None: clients speak plain text."""
    return make_certificates(tmp_path_factory.mktemp("tls")) if request.param == "tls" else None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates | None) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    add_model(models, "floats", IDENTITY)
    flags = ["--grpc-port=0", "--http-process-count=1", *only("floats", "simple", "simple_string", "repeat")]
    flags += [] if certificates is None else tls_flags(certificates)
    with serving([SAMPLES, models], *flags) as server:
        yield server
        server.ledger_once(lambda ledger: not imbalances(ledger))
        assert server.stop() == 0, server.log.decode()
        assert b"Traceback" not in server.log, server.log.decode()


@pytest.fixture
def triton(server: Server, certificates: Certificates | None) -> Iterator[Any]:  # its hints say None where it never is
    root = None if certificates is None else str(certificates.root)
    url = f"127.0.0.1:{server.grpc_port}"
    with client.InferenceServerClient(url, ssl=root is not None, root_certificates=root) as opened:
        yield opened


@pytest.fixture
def channel(server: Server, certificates: Certificates | None) -> Iterator[grpc.Channel]:
    with open_channel(server, certificates) as opened:
        yield opened


def is_final(result: Any) -> bool:
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


def floats_message(array: NDArray[np.float32]) -> bytes:
    request = service.ModelInferRequest(model_name="floats", id="raw")
    request.inputs.add(name="IN", datatype="FP32", shape=array.shape)
    request.raw_input_contents.append(array.tobytes())
    return bytes(request.SerializeToString())


@pytest.mark.parametrize("value", ["v ", " v", " ", ""], ids=repr)
def test_metadata_may_begin_and_end_with_blanks(triton: Any, value: str) -> None:
    for _ in range(2):  # the second time as a reference into the table of headers
        assert (
            triton.infer("simple", pair(3), request_id="seven", headers={"my-key": value}).get_response().id == "seven"
        )
    assert triton.is_server_live(headers={"my-key": value})


@pytest.mark.parametrize("count", [1, 1000, 12_288, 20_000, 150_528, 3_000_000, 12_000_000])
def test_tensors_of_every_size_come_back_as_they_went(triton: Any, count: int) -> None:
    """Joined; received in pieces; in a block; through segments of their own, on the road."""
    array = np.random.default_rng(count).random(count, dtype=np.float32)
    result = triton.infer("floats", [tensor("IN", array, "FP32")])
    assert np.array_equal(result.as_numpy("OUT"), array)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("count", [16, 200_000])
def test_compressed_requests(triton: Any, algorithm: str, count: int) -> None:
    array = np.arange(count, dtype=np.float32)
    result = triton.infer("floats", [tensor("IN", array, "FP32")], compression_algorithm=algorithm)
    assert np.array_equal(result.as_numpy("OUT"), array)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_a_short_compressed_message_may_be_larger_when_decompressed(
    triton: Any, channel: grpc.Channel, algorithm: str
) -> None:
    """The road decompresses it, a lane would be busy for too long: up to --max-expansion times its size."""
    noise = np.random.default_rng(7).bytes(40_000)
    array = np.frombuffer(noise + bytes(2_960_000), np.float32)
    result = triton.infer("floats", [tensor("IN", array, "FP32")], compression_algorithm=algorithm)
    assert result.as_numpy("OUT").tobytes() == array.tobytes()
    compression = {"gzip": grpc.Compression.Gzip, "deflate": grpc.Compression.Deflate}[algorithm]
    call: Any = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
    unknown_field = b"\x7a\x80\x80\x80\x01" + noise + bytes((1 << 21) - len(noise))
    assert call(unknown_field, timeout=DEADLINE_S, compression=compression) == b"\x08\x01"
    with pytest.raises(grpc.RpcError) as refusal:
        call(b"\x7a\x80\x80\x80\x01" + bytes(1 << 21), timeout=DEADLINE_S, compression=compression)
    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    zeros = tensor("IN", np.zeros(3_000_000, np.float32), "FP32")
    with pytest.raises(InferenceServerException, match="raise --max-expansion"):
        triton.infer("floats", [zeros], compression_algorithm=algorithm)


def test_many_at_once_each_get_their_own_answer(triton: Any) -> None:
    def ask(number: int) -> None:
        array = np.full(1 + number % 7 * 4001, number, np.float32)
        result = triton.infer("floats", [tensor("IN", array, "FP32")], request_id=str(number))
        assert np.array_equal(result.as_numpy("OUT"), array)
        assert result.get_response().id == str(number)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(ask, range(400)))


def test_what_is_no_call_of_ours(channel: grpc.Channel) -> None:
    for path, message, code in (
        ("/inference.GRPCInferenceService/Nope", b"", grpc.StatusCode.UNIMPLEMENTED),
        (INFER, b"\xff\xff\xff", grpc.StatusCode.INTERNAL),
        ("/inference.GRPCInferenceService/ModelConfig", b"\xff\xff\xff", grpc.StatusCode.INTERNAL),
    ):
        call: Any = channel.unary_unary(path)  # messages as bytes
        with pytest.raises(grpc.RpcError) as raised:
            call(message, timeout=DEADLINE_S)
        assert raised.value.code() is code, raised.value


def test_health_and_reflection_for_clients_of_theirs(channel: Any) -> None:
    check = channel.unary_unary("/grpc.health.v1.Health/Check", None, HealthCheckResponse.FromString)
    request = HealthCheckRequest(service="simple").SerializeToString()
    assert check(request, timeout=DEADLINE_S).status == HealthCheckResponse.SERVING
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "inference.GRPCInferenceService" in database.get_services()
    file = database.FindFileContainingSymbol("inference.GRPCInferenceService")
    assert len(file.service[0].method) == 20


def test_a_deadline(server: Server, channel: grpc.Channel) -> None:
    """The client and the server both watch it; whoever is first, the request is dropped."""
    request = service.ModelInferRequest(model_name="repeat", id="late")
    for each in countdown(*[50] * 10_000):
        request.inputs.append(each._get_tensor())
        request.raw_input_contents.append(each._get_content())
    stream: Any = channel.stream_stream(STREAM)  # messages as bytes
    answers = stream(iter([request.SerializeToString()]), timeout=0.3)
    with pytest.raises(grpc.RpcError) as raised:
        list(answers)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    server.ledger_once(lambda ledger: not [each for each in imbalances(ledger) if each[1] != "connections_open"])


class Stream:
    """A stream of tritonclient's."""

    def __init__(self, triton: Any, **options: Any) -> None:
        self.triton = triton
        self.answers: Any = queue.SimpleQueue()
        triton.start_stream(lambda result, error: self.answers.put((result, error)), **options)

    def ask(self, model: str, inputs: list[client.InferInput], **options: Any) -> None:
        self.triton.async_stream_infer(model, inputs, **options)

    def next(self) -> Any:
        result, error = self.answers.get(timeout=DEADLINE_S)
        assert error is None, error
        return result

    def error(self) -> InferenceServerException:
        result, error = self.answers.get(timeout=DEADLINE_S)
        assert result is None
        assert isinstance(error, InferenceServerException)
        return error


def test_a_stream_keeps_the_order_of_ordinary_requests(triton: Any) -> None:
    stream = Stream(triton)
    for number in range(600):  # more than one stream may have open at once
        stream.ask(
            "floats", [tensor("IN", np.full(1 + number % 5 * 9000, number, np.float32), "FP32")], request_id=str(number)
        )
    for number in range(600):
        result = stream.next()
        assert result.get_response().id == str(number)
        assert is_final(result)
        assert result.as_numpy("OUT")[-1] == number
    triton.stop_stream()


def test_decoupled_answers_come_as_they_are_made_and_their_end_is_told_on_request(
    triton: Any,
) -> None:
    stream = Stream(triton)
    stream.ask("repeat", countdown(0, 1, 1), request_id="a", enable_empty_final_response=True)
    found = [stream.next() for _ in range(4)]
    assert [result.as_numpy("OUT")[0] for result in found[:3]] == [0, 1, 1]
    assert [is_final(result) for result in found] == [False, False, False, True]
    assert len(found[3].get_response().outputs) == 0
    stream.ask("repeat", countdown(0), request_id="b")
    stream.ask("simple", pair(), request_id="c")
    assert {stream.next().get_response().id for _ in range(2)} == {"b", "c"}  # and no empty one of b's
    triton.stop_stream()
    assert stream.answers.empty()


def test_a_stream_that_is_left_stops_its_models(server: Server, triton: Any) -> None:
    stream = Stream(triton)
    for _ in range(4):
        stream.ask("repeat", countdown(0, *[20] * 5000))
    for _ in range(8):
        stream.next()
    triton.stop_stream(cancel_requests=True)
    # The model looks at is_cancelled before each answer, so that it ends in far less than the 100 s it would take.
    server.ledger_once(lambda ledger: not [each for each in imbalances(ledger) if each[1] != "connections_open"])


def test_a_client_that_reads_nothing_holds_up_only_itself(server: Server, channel: grpc.Channel, triton: Any) -> None:
    """64 answers of 4 MB: more than windows, sockets and the worker's memory take."""
    message = floats_message(np.zeros(1_000_000, np.float32))
    left = threading.Event()

    def requests() -> Iterator[bytes]:
        for _ in range(64):
            yield message
        left.wait(DEADLINE_S)

    stream: Any = channel.stream_stream(STREAM)  # messages as bytes
    answers = stream(requests())
    assert len(next(answers)) > 4_000_000
    for number in range(50):
        result = triton.infer("floats", [tensor("IN", np.full(16, number, np.float32), "FP32")])
        assert result.as_numpy("OUT")[0] == number
    left.set()
    answers.cancel()
    server.ledger_once(lambda ledger: not [each for each in imbalances(ledger) if each[1] != "connections_open"])


def test_a_client_that_goes_away_in_the_middle_leaves_nothing(
    server: Server, certificates: Certificates | None
) -> None:
    message = floats_message(np.zeros(150_000, np.float32))
    for _ in range(20):
        with open_channel(server, certificates) as channel:
            infer: Any = channel.unary_unary(INFER)  # messages as bytes
            calls = [infer.future(message) for _ in range(4)]
            calls[0].result(timeout=DEADLINE_S)
    server.ledger_once(lambda ledger: not imbalances(ledger))


def test_a_configuration_and_files_of_some_size_are_loaded_over_grpc(triton: Any, tmp_path: Path) -> None:
    """More than the lane collects, so it is passed on to the road as it comes."""
    config = '{"backend": "identity", "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}], '
    config += '"output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}]}'
    triton.load_model("floats", config=config, files={"file:1/filler": bytes(3_000_000)})
    with pytest.raises(InferenceServerException, match="unexpected shape"):
        triton.infer("floats", [tensor("IN", np.zeros(2, np.float32), "FP32")])
    triton.load_model("floats")
    triton.infer("floats", [tensor("IN", np.zeros(2, np.float32), "FP32")])
