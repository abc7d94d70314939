"""How the answers of a batch lie in its block, and what a misbehaving model makes of them."""

import numpy as np
import pytest

from shoal.datatypes import FP32
from shoal.errors import InvalidArgumentError, UnsupportedError
from shoal.model_config.signature import Signature
from shoal.request import InferRequest, TensorRef, pack_request
from shoal.workers.answers import Answers
from shoal.workers.plans import OutputLayouts
from shoal.workers.requests import RequestReader
from shoal.workers.tensors import Array
from tests.workers.worker_harness import CONFIG, PAIR, STRINGS, Batcher, PerRequest, Returning, loop_of, rows, strings


def test_a_batch_shares_one_block_and_each_request_gets_its_rows(batcher: Batcher) -> None:
    loop = loop_of(batcher)
    batcher.send(*(batcher.request([("INPUT0", "FP32", rows(*values))]) for values in ((1,), (2, 3), (4,))))
    assert loop.step() == 1
    done = batcher.done()
    assert [one.key for one in done] == [1, 2, 3]
    assert len({one.ref for one in done}) == 1
    assert [one.outputs["OUTPUT0"][:, 0].tolist() for one in done] == [[1], [2, 3], [4]]
    assert [one.offsets["OUTPUT0"] for one in done] == [0, 16, 48]  # one contiguous array


def test_outputs_are_aligned_and_only_requested_ones_are_written(batcher: Batcher) -> None:
    loop = loop_of(batcher, PAIR)
    inputs = [("INPUT0", "FP32", rows(1)), ("INPUT1", "INT32", np.array([[5, 6]], np.int32))]
    batcher.send(
        batcher.request(inputs),
        batcher.request(inputs, outputs=["OUTPUT1"]),
        batcher.request(inputs, outputs=["OUTPUT0"]),
    )
    loop.step()
    both, second, first = batcher.done()
    assert list(both.outputs) == ["OUTPUT0", "OUTPUT1"]
    assert both.offsets == {"OUTPUT0": 0, "OUTPUT1": 64}
    assert (list(second.outputs), list(first.outputs)) == (["OUTPUT1"], ["OUTPUT0"])
    assert second.outputs["OUTPUT1"].tolist() == [[5, 6]]


def test_an_output_not_requested_takes_no_memory(batcher: Batcher) -> None:
    loop = loop_of(batcher, PAIR)
    inputs = [("INPUT0", "FP32", rows(1)), ("INPUT1", "INT32", np.array([[5, 6]], np.int32))]
    batcher.send(*(batcher.request(inputs, outputs=["OUTPUT1"]) for _ in range(2)))
    loop.step()
    assert [done.offsets for done in batcher.done()] == [{"OUTPUT1": 0}, {"OUTPUT1": 8}]


def test_strings_are_encoded_per_request(batcher: Batcher) -> None:
    loop = loop_of(batcher, STRINGS)
    batcher.send(
        batcher.request([("INPUT0", "BYTES", ((2, 1), strings(b"a", b"\xff\x00b")))]),
        batcher.request([("INPUT0", "BYTES", ((1, 1), strings(b"")))]),
    )
    loop.step()
    first, second = batcher.done()
    assert first.outputs["OUTPUT0"] == b"\x01\x00\x00\x00a\x03\x00\x00\x00\xff\x00b"
    assert second.outputs["OUTPUT0"] == b"\x00\x00\x00\x00"


def test_too_few_rows_fail_the_requests_past_the_end(batcher: Batcher) -> None:
    loop = loop_of(batcher, backend=Returning(lambda inputs: {"OUTPUT0": inputs["INPUT0"][:2]}))
    batcher.send(
        batcher.request([("INPUT0", "FP32", rows(1))]),
        batcher.request([("INPUT0", "FP32", rows(2, 3))], request_id="second"),
        batcher.request([("INPUT0", "FP32", rows(4))]),
    )
    loop.step()
    first, second, third = batcher.done()
    assert first.outputs["OUTPUT0"].tolist() == [[1, 1, 1, 1]]
    assert (second.status, second.sentence) == (
        6,
        "[request id: second] failed to split the output tensor 'OUTPUT0' in responses: expected batch size of at "
        "least 3 in model output, got 2",
    )
    assert (third.status, third.sentence) == (
        6,
        "[request id: <id_unknown>] failed to split the output tensor 'OUTPUT0' in responses: expected batch size of "
        "at least 4 in model output, got 2",
    )


def test_too_few_strings_and_a_scalar_are_too_few_rows(batcher: Batcher) -> None:
    loop = loop_of(batcher, STRINGS, Returning(lambda _inputs: {"OUTPUT0": np.array(b"a", object)}))
    batcher.send(batcher.request([("INPUT0", "BYTES", ((1, 1), strings(b"")))]))
    loop.step()
    assert batcher.done()[0].sentence.endswith("expected batch size of at least 1 in model output, got 0")


def test_more_rows_than_asked_for_are_cut_off(batcher: Batcher) -> None:
    loop = loop_of(batcher, backend=Returning(lambda _inputs: {"OUTPUT0": rows(1, 2, 3)}))
    batcher.send(batcher.request([("INPUT0", "FP32", rows(0))]))
    loop.step()
    assert batcher.done()[0].outputs["OUTPUT0"].tolist() == [[1, 1, 1, 1]]


def test_an_exception_fails_every_request_with_one_sentence(batcher: Batcher, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_inputs: dict[str, Array]) -> dict[str, Array]:
        raise KeyError("no\nsuch\x00key")

    loop = loop_of(batcher, backend=Returning(fail))
    batcher.send(*(batcher.request([("INPUT0", "FP32", rows(1))]) for _ in range(3)))
    loop.step()
    done = batcher.done()
    expected = "model 'm', instance 'm_0_0' failed: KeyError: 'no\\nsuch\\x00key'"
    assert [(one.status, one.sentence) for one in done] == [(2, expected)] * 3
    assert "Traceback" in caplog.text
    batcher.free(done[0].ref)
    assert loop.step() == 0


def test_a_sentence_has_lines_and_tabs_no_other_control_characters_and_at_most_4096_bytes(batcher: Batcher) -> None:
    def fail(_inputs: dict[str, Array]) -> dict[str, Array]:
        raise InvalidArgumentError("a\n\t\x7f" + "é" * 5000)

    loop = loop_of(batcher, backend=Returning(fail))
    batcher.send(batcher.request([("INPUT0", "FP32", rows(1))]))
    loop.step()
    (done,) = batcher.done()
    assert done.status == 4
    assert done.sentence.startswith("a\n\t\\x7fé")
    assert len(done.sentence.encode()) in (4095, 4096)


def test_wrong_datatypes_of_outputs_are_told(batcher: Batcher) -> None:
    loop = loop_of(batcher, backend=Returning(lambda _inputs: {"OUTPUT0": np.zeros((1, 4))}))
    batcher.send(batcher.request([("INPUT0", "FP32", rows(1))]))
    loop.step()
    assert batcher.done()[0].sentence == "model 'm' returned output 'OUTPUT0' as float64, expected FP32"


def test_text_that_utf_8_cannot_tell_is_told(batcher: Batcher) -> None:
    loop = loop_of(batcher, STRINGS, Returning(lambda _inputs: {"OUTPUT0": np.array([["\ud800"]], object)}))
    batcher.send(batcher.request([("INPUT0", "BYTES", ((1, 1), strings(b"")))]))
    loop.step()
    assert batcher.done()[0].sentence == (
        "model 'm' returned output 'OUTPUT0' that is no BYTES tensor: "
        "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed"
    )


def test_a_batch_larger_than_the_model_takes(batcher: Batcher) -> None:
    loop = loop_of(batcher, {**CONFIG, "max_batch_size": 2})
    batcher.send(*(batcher.request([("INPUT0", "FP32", rows(1, 2))]) for _ in range(2)))
    loop.step()
    assert {(done.status, done.sentence) for done in batcher.done()} == {
        (2, "batch size 4 for 'm_0_0', max allowed is 2")
    }


def test_a_backend_may_answer_request_by_request(batcher: Batcher) -> None:
    loop = loop_of(batcher, backend=PerRequest(lambda inputs: {"OUTPUT0": inputs["INPUT0"] * 2}))
    batcher.send(
        *(batcher.request([("INPUT0", "FP32", rows(2))], request_id=request_id) for request_id in ("a", "bad", "c"))
    )
    loop.step()
    first, bad, last = batcher.done()
    assert (first.parameters, last.parameters) == ({"was": "a"}, {"was": "c"})
    assert (bad.status, bad.sentence) == (4, "this one is bad")
    assert last.outputs["OUTPUT0"].tolist() == [[4, 4, 4, 4]]
    assert len({first.ref, bad.ref, last.ref}) == 1


def test_what_is_not_written_is_checked_all_the_same() -> None:
    """As in a warm-up: no memory is at hand."""
    body = memoryview(rows(1).tobytes())
    header = pack_request(InferRequest("", (TensorRef("INPUT0", FP32.wire, (1, 4), 0, 16),), (), {}))
    signature = Signature.from_config(CONFIG)
    requests = [RequestReader(signature).open(position, body, header) for position in range(2)]
    answers = Answers(2, OutputLayouts(signature))
    assert answers.place(requests, {"OUTPUT0": (2, 4)})["OUTPUT0"].shape == (2, 4)
    answers.add_batch(requests, {"OUTPUT0": rows(1, 2)})
    assert not answers.errors
    answers.add_batch(requests, {"OUTPUT0": rows(1)})
    assert [type(error) for error in answers.errors] == [UnsupportedError]
    answers.fail_all(InvalidArgumentError("all"))
    assert [str(error)[-3:] for error in answers.errors] == ["t 1", "all"]
