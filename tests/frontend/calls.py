"""A request as its handler gets it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from shoal.frontend.call import HandlerCall
from shoal.frontend.state import ServerState


def call_of(
    state: ServerState, ask: Callable[..., Any] | None = None, name: str = "", version: str | None = None,
    body: bytes | memoryview = b"", query: str = "",
) -> HandlerCall:  # fmt: skip
    """`ask` is the supervisor."""
    transport: Any = SimpleNamespace(ask=ask)
    return HandlerCall(state, transport, {}, memoryview(body), name, version, query)
