"""refusal.py: what a reply says is told with the names its model has for it."""

from typing import Any

import pytest

from shoal.errors import InternalError, ShoalError, UnavailableError
from shoal.frontend.refusal import refusal
from shoal.frontend.state import ServerState
from shoal.frontend.v2.infer import PreparedRequest
from shoal.shm.port import Reply
from tests.frontend.conftest import SIMPLE, model_message

#: pid 4242, instance 1 of the first group, signal 9.
DETAIL = 0x00001092_00_01_FFF7


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (Reply(1, 2, 5, None, None, DETAIL), InternalError, "instance 'simple_0_1' (pid 4242) was killed by signal 9"),
        (Reply(1, 5, 1, None, None), UnavailableError, "[request id: r7] Exceeds maximum queue size"),
        (Reply(1, 5, 0, None, None), UnavailableError, "have no shared memory left"),
        (Reply(1, 0, 0, None, None), InternalError, "sent an answer that cannot be read"),
    ],
    ids=["died", "queue full", "no memory", "damaged"],
)
def test_each_reply_without_an_answer(state: ServerState, reply: Reply, kind: type[ShoalError], words: str) -> None:
    config: dict[str, Any] = {**SIMPLE, "instance_group": [{"name": "simple_0"}]}
    state.models.apply(model_message("simple", 9, 10, config))
    entry = state.models.lookup("simple", "9")
    error = refusal(PreparedRequest(entry, "r7", (), (), True, {}, 0, 1, 0, 0), reply)
    assert type(error) is kind
    assert words in str(error)
