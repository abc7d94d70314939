"""refusal.py: what a reply says is told with the names its model has for it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from shoal.errors import InternalError, ShoalError, UnavailableError
from shoal.reasons import QueueFullError, WorkerDiedError
from shoal.shm.port import Reply
from shoal.star.models import ModelEntry
from shoal.star.refusal import refusal

#: pid 4242, instance 1 of the first group, signal 9.
DETAIL = 4242 << 42 | 1 << 26 | 0xFFF7


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (
            Reply(1, 2, 5, None, None, DETAIL),
            WorkerDiedError,
            "Stub process 'simple_0_1' is not healthy. The worker of",
        ),
        (Reply(1, 5, 1, None, None), QueueFullError, "[request id: r7] Exceeds maximum queue size"),
        (Reply(1, 5, 0, None, None), UnavailableError, "have no shared memory left"),
        (Reply(1, 0, 0, None, None), InternalError, "sent an answer that cannot be read"),
    ],
    ids=["died", "queue full", "no memory", "damaged"],
)
def test_each_reply_without_an_answer(
    make_entry: Callable[..., ModelEntry], reply: Reply, kind: type[ShoalError], words: str
) -> None:
    entry = replace(make_entry("simple", 0, []), groups=("simple_0",))
    error = refusal(entry, "r7", reply)
    assert type(error) is kind
    assert words in str(error)
