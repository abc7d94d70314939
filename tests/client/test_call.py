"""What a request over a connection comes to, once its reply is there."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.client.call import ClientCall, Responses
from shoal.client.connection import Connection, Waiter
from shoal.client.request_arguments import RequestArguments
from shoal.errors import ShoalError, TimedOutError, UnavailableError
from shoal.reasons import Reason
from shoal.shm.port import Reply


@pytest.mark.parametrize(("reason", "kind"), [(Reason.TIMED_OUT, TimedOutError), (Reason.TOO_LATE, UnavailableError)])
def test_who_left_the_queue_unanswered_was_late(make_entry: Any, reason: Reason, kind: type[ShoalError]) -> None:
    connection = cast(Connection, SimpleNamespace(request_timeout_s=300.0))
    waiter = Waiter(lambda: None, None)
    call = ClientCall(Responses(connection), RequestArguments("m", {}, timeout=1), make_entry("m", 0, []), waiter, 0)
    waiter.replies.append(Reply(1, 0, int(reason), None, None))
    with pytest.raises(UnavailableError) as refusal:
        call.result()
    assert type(refusal.value) is kind
