"""bench/workloads.py: what is asked of a model of several tensors, and when an answer is right."""

import json
from array import array

import pytest

from bench.errors import BenchmarkError
from bench.workloads import (
    ADD_SUB,
    IDENTITY_IMAGE,
    PLACE_OF_ID,
    expected,
    identified,
    plain_request,
    v2_answer,
    v2_request,
    verify,
)


def test_every_input_is_sent_and_every_output_asked() -> None:
    request = v2_request(ADD_SUB, "binary")
    length = int(request.headers["Inference-Header-Content-Length"])
    head = json.loads(request.body[:length])
    assert [tensor["name"] for tensor in head["inputs"]] == ["INPUT0", "INPUT1"]
    assert [output["name"] for output in head["outputs"]] == ["OUTPUT0", "OUTPUT1"]
    assert len(request.body) == length + 2 * 64


@pytest.mark.parametrize("encoding", ["json", "binary"])
def test_all_outputs_are_compared(encoding: str) -> None:
    sums, differences = [2 * value for value in ADD_SUB.values], [0.0] * 16
    if encoding == "json":
        body = json.dumps({"outputs": [{"data": sums}, {"data": differences}]}).encode()
        answer = v2_answer({}, body)
    else:
        answer = v2_answer({"inference-header-content-length": "2"}, b"{}" + array("f", sums + differences).tobytes())
    verify(ADD_SUB, answer, expected(ADD_SUB))
    answer[-1] = 1.0
    with pytest.raises(BenchmarkError, match="wrong answer"):
        verify(ADD_SUB, answer, expected(ADD_SUB))


def test_a_request_with_regions_names_both_and_carries_no_tensor() -> None:
    asked = json.loads(v2_request(IDENTITY_IMAGE, "regions").body)
    (source,), (target,) = asked["inputs"], asked["outputs"]
    assert "data" not in source
    sizes = [each["parameters"]["shared_memory_byte_size"] for each in (source, target)]
    assert sizes == [4 * len(IDENTITY_IMAGE.values)] * 2
    assert source["parameters"]["shared_memory_region"] != target["parameters"]["shared_memory_region"]


@pytest.mark.parametrize("encoding", ["json", "binary", "regions"])
def test_a_request_with_an_id_is_otherwise_the_same(encoding: str) -> None:
    request = v2_request(ADD_SUB, encoding)
    with_id = identified(request)
    length, length_with_id = [
        int(each.headers.get("Inference-Header-Content-Length", len(each.body))) for each in (request, with_id)
    ]
    assert json.loads(with_id.body[:length_with_id]) == {"id": PLACE_OF_ID, **json.loads(request.body[:length])}
    assert with_id.body[length_with_id:] == request.body[length:]
    assert (with_id.path, with_id.headers.keys()) == (request.path, request.headers.keys())


def test_a_protocol_without_ids_is_left_alone() -> None:
    request = plain_request(ADD_SUB, "binary")
    assert identified(request) is request
