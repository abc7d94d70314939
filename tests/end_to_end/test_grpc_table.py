"""HTTP's tables over gRPC: every case that has a form there, in plain text and over TLS, and in streams."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.certificates import Certificates, make_certificates
from tests.end_to_end.grpc_cases.form import Form, Refusal, forms_of
from tests.end_to_end.grpc_cases.http_only import ALLOWED, ENCODING, FRAMING, JSON, NO_FIELD, NO_RPC, HttpOnlyError
from tests.end_to_end.grpc_cases.sentences import LATE, SENTENCES
from tests.end_to_end.grpc_inputs import open_channel, tls_flags
from tests.end_to_end.http_cases import model_control
from tests.end_to_end.http_cases.case import Case
from tests.end_to_end.http_cases.models import FLAGS, write_models
from tests.end_to_end.http_cases.table import CASES
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, imbalances, serving_to_the_end

pb: Any = service_pb2
#: One front end each is enough for one client.
ONE_LANE = ["--grpc-port=0", "--http-process-count=1"]
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
#: The samples that the cases ask.
ASKED = ("mlp", "simple", "simple_identity")


def sorted_out(cases: list[Case]) -> tuple[list[Form], Counter[str]]:
    """The forms, and why how many cases have none."""
    forms: list[Form] = []
    reasons: Counter[str] = Counter()
    for case in cases:
        try:
            forms += forms_of(case)
        except HttpOnlyError as reason:
            reasons[str(reason)] += 1
    return forms, reasons


FORMS, REASONS = sorted_out(CASES)
CONTROL, CONTROL_REASONS = sorted_out(model_control.CASES)
INFERENCES = [form for form in FORMS if form.rpc == "ModelInfer"]


def ask(channel: grpc.Channel, form: Form) -> Any:
    """The answer, a message or a refusal."""
    response: Any = getattr(pb, f"{form.rpc}Response")
    call: Any = channel.unary_unary(form.path, response_deserializer=response.FromString)
    try:
        return call(form.request.SerializeToString(), timeout=DEADLINE_S, metadata=form.metadata)
    except grpc.RpcError as error:
        return Refusal(error.code(), error.details() or "")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Those of the server with TLS."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def with_tls(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Server]:
    """As `every_kind`, with TLS, and fewer samples."""
    models = write_models(tmp_path_factory.mktemp("models"))
    for name in ASKED:
        shutil.copytree(SAMPLES / name, models / name)
    with serving_to_the_end(models, *FLAGS, *ONE_LANE, *tls_flags(certificates)) as server:
        yield server


@pytest.fixture(scope="module", params=["plain", "tls"])
def channel(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[grpc.Channel]:
    """One for all the cases."""
    is_plain = request.param == "plain"
    server: Server = request.getfixturevalue("every_kind" if is_plain else "with_tls")
    with open_channel(server, None if is_plain else certificates) as opened:
        yield opened
    server.ledger_once(lambda ledger: not imbalances(ledger))


def test_so_many_cases_have_a_form() -> None:
    """The rest is told apart by why: what was lost by a mistake shows here."""
    assert REASONS == {NO_RPC: 154, JSON: 48, ENCODING: 27, FRAMING: 23, NO_FIELD: 52, ALLOWED: 3}
    assert (len(FORMS), len(INFERENCES)) == (348, 258)
    assert (len(CONTROL), CONTROL_REASONS) == (51, {NO_FIELD: 1})
    assert SENTENCES.keys() | LATE.keys() <= {case.id for case in [*CASES, *model_control.CASES]}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.id)
def test_answer(channel: grpc.Channel, form: Form) -> None:
    assert ask(channel, form) == form.answer
    assert ask(channel, form) == form.answer  # whoever answers may remember something of the first


def streamed(channel: grpc.Channel, *forms: Form, **metadata: str) -> Iterator[Any]:
    """The answers to these requests on one stream."""
    call: Any = channel.stream_stream(STREAM, response_deserializer=pb.ModelStreamInferResponse.FromString)
    requests = iter([form.request.SerializeToString() for form in forms])
    return cast("Iterator[Any]", call(requests, timeout=DEADLINE_S, metadata=tuple(metadata.items())))


def test_all_on_one_stream(channel: grpc.Channel) -> None:
    """What is refused is said in its place, and the stream goes on."""
    forms = INFERENCES * 2
    for form, answer in zip(forms, streamed(channel, *forms), strict=True):
        assert (form.id, answer) == (form.id, form.streamed)


def test_streams_that_end_at_what_is_refused(channel: grpc.Channel) -> None:
    for form in INFERENCES:
        if isinstance(form.answer, Refusal):
            with pytest.raises(grpc.RpcError) as ended:
                list(streamed(channel, form, triton_grpc_error="true"))
            assert (form.id, ended.value.code(), ended.value.details()) == (form.id, *form.answer)


@pytest.mark.parametrize("way", ["plain", "tls"])
def test_loading_and_unloading(tmp_path: Path, way: str, certificates: Certificates) -> None:
    """One after the other, from the first: what a model's name has been before shows in the sentences."""
    flags = [*model_control.FLAGS, *ONE_LANE, *(tls_flags(certificates) if way == "tls" else [])]
    with (
        serving_to_the_end(write_models(tmp_path), *flags) as server,
        open_channel(server, certificates if way == "tls" else None) as opened,
    ):
        for form in CONTROL:
            assert (form.id, ask(opened, form)) == (form.id, form.answer)
