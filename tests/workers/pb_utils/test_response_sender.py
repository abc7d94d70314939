"""response_sender.py: what may be sent, in Triton's words, and where it goes."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from triton_python_backend_utils import (
    TRITONSERVER_RESPONSE_COMPLETE_FINAL as FINAL,
)
from triton_python_backend_utils import (
    InferenceResponse,
    InferenceResponseSender,
    Tensor,
    TritonError,
    TritonModelException,
)
from triton_python_backend_utils.response_sender import Output

from shoal.errors import InternalError, InvalidArgumentError, ShoalError, UnavailableError


class Collected:
    """A channel whose other end is a list."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.refuse: ShoalError | None = None
        self.is_cancelled = False
        self.is_open = True

    def send(self, outputs: Sequence[Output], parameters: Any = None, *, final: bool) -> None:
        if self.refuse is not None:
            raise self.refuse
        self._send_response([array.tolist() for _, _, array in outputs], parameters, final=final)

    def fail(self, error: ShoalError, *, final: bool = True) -> None:
        self._send_response(type(error), str(error), final=final)

    def fail_later(self, error: ShoalError) -> None:
        self._send_response("later", type(error), str(error), final=True)

    def finish(self) -> None:
        self._send_response(final=True)

    def _send_response(self, *words: Any, final: bool) -> None:
        assert self.is_open
        self.said.append((*words, final))
        self.is_open = not final


def response(value: int = 1, **options: Any) -> InferenceResponse:
    return InferenceResponse([Tensor("Y", np.array([value]))], **options)


def test_a_decoupled_model_sends_any_number() -> None:
    channel = Collected()
    sender = InferenceResponseSender(channel, is_decoupled=True)
    sender.send(response(1))
    sender.send(response(2, parameters={"n": 2}))
    sender.send(InferenceResponse([], TritonError("no", TritonError.INVALID_ARG)))
    sender.send(flags=FINAL)
    assert channel.said == [
        ([[1]], None, False), ([[2]], {"n": 2}, False), (InvalidArgumentError, "no", False), (True,),
    ]  # fmt: skip


def test_the_last_response_may_bear_the_flag() -> None:
    channel = Collected()
    InferenceResponseSender(channel, is_decoupled=True).send(response(), FINAL)
    assert channel.said == [([[1]], None, True)]


@pytest.mark.parametrize("flag", [True, np.int64(1), np.uint8(1), np.array(1)])
def test_the_flag_may_be_numpys(flag: Any) -> None:
    """The compiled build takes Python's bool alone where a function is annotated with bool."""
    channel = Collected()
    InferenceResponseSender(channel, is_decoupled=True).send(response(), flag)
    assert channel.said[0][-1] is True
    channel = Collected()
    sender = InferenceResponseSender(channel, is_decoupled=True)
    sender.send(response(), flag - flag)
    assert channel.said[0][-1] is False
    sender.send(flags=flag)


def test_a_model_that_is_not_decoupled_sends_one_and_may_end_it_later() -> None:
    channel = Collected()
    sender = InferenceResponseSender(channel, is_decoupled=False)
    sender.send(response())
    sender.send(flags=FINAL)
    assert channel.said == [([[1]], None, True)]


@pytest.mark.parametrize(
    ("is_decoupled", "calls", "sentence"),
    [
        (True, [(response(), 2)], "Unable to send response. Unsupported flag provided."),
        (
            True,
            [(None, 0)],
            "Inference Response object must be provided when the response flags is set to zero.",
        ),
        (True, [(None, FINAL), (response(), 0)], "Unable to send response. Response sender has been closed."),
        (
            False,
            [(response(), 0), (response(), 0)],
            "Unable to send response. Non-decoupled model cannot send more than one response.",
        ),
        (
            False,
            [(None, FINAL)],
            "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
        ),
        (False, [(response(), FINAL), (None, FINAL)], "Unable to send response. Response sender has been closed."),
    ],
)
def test_wrong_uses_have_tritons_sentences(is_decoupled: bool, calls: Any, sentence: str) -> None:
    channel = Collected()
    sender = InferenceResponseSender(channel, is_decoupled)
    for call in calls[:-1]:
        sender.send(*call)
    said = list(channel.said)
    with pytest.raises(TritonModelException) as caught:
        sender.send(*calls[-1])
    assert str(caught.value) == sentence
    assert channel.said == said


@pytest.mark.parametrize("is_decoupled", [False, True])
def test_anything_but_a_response_is_refused_and_does_not_count(is_decoupled: bool) -> None:
    channel = Collected()
    sender = InferenceResponseSender(channel, is_decoupled)
    with pytest.raises(TypeError, match="'response' must be an InferenceResponse, found type <class 'int'>"):
        sender.send(cast(Any, 5), FINAL)
    assert channel.said == []
    sender.send(response(), FINAL)
    assert channel.said == [([[1]], None, True)]


def test_what_cannot_be_delivered_is_the_models_to_know() -> None:
    channel = Collected()
    channel.refuse = UnavailableError("no memory")
    with pytest.raises(TritonModelException, match="no memory"):
        InferenceResponseSender(channel, is_decoupled=True).send(response())


def test_a_sender_that_is_dropped_without_an_answer_fails_its_request() -> None:
    channel = Collected()
    sender = InferenceResponseSender(channel, is_decoupled=True)
    sender.send(response())
    del sender
    sentence = "The model dropped the response sender of a request without an answer."
    assert channel.said[1:] == [("later", InternalError, sentence, True)]


def test_cancellation_is_seen() -> None:
    channel = Collected()
    sender = InferenceResponseSender(channel, is_decoupled=True)
    assert not sender.is_cancelled()
    channel.is_cancelled = True
    assert sender.is_cancelled()
