"""Failure domains: the parts of the server that contain errors. An unexpected exception in the supervisor ends one
part.

Each callback of the event loop works for something: an instance, a version's load, a question, a connection, a child
process, or the server itself. An exception in a callback ends that one thing, with its traceback in the log under the
thing's name, and the loop goes on. A callback or flow belongs to the domain in which it was registered: `contained`
enters a domain, `bound` makes a callback that enters the present domain whenever it is called. Expected errors
(ShoalError, a refused fork) are handled where they arise. Runs in the supervisor, in its only thread. Outside every
domain, as in most tests, exceptions propagate.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, Token
from typing import ParamSpec, Protocol

from shoal.errors import InternalError, ShoalError

_log = logging.getLogger(__name__)

P = ParamSpec("P")


class FailureDomain(Protocol):
    """A part of the server that can be ended by itself, while the server goes on."""

    @property
    def title(self) -> str:
        """The name of this domain in the log, as in "instance 'simple_0_0' of model 'simple'"."""
        ...

    def contain(self, error: Exception, /) -> None:
        """End what this domain stands for, or start it again, after an error in one of its callbacks."""
        ...


_CURRENT: ContextVar[FailureDomain | None] = ContextVar("failure_domain", default=None)


@contextmanager
def contained(domain: FailureDomain) -> Iterator[None]:
    """Run the body of the `with`, awaiting included, on behalf of a domain, which contains what the body raises.

    An error in `FailureDomain.contain` is passed to the domain around this one. A cancellation passes.
    """
    token: Token[FailureDomain | None] | None = _CURRENT.set(domain)
    try:
        yield
    except GeneratorExit:  # an unfinished flow that ends with the process ends outside its own context
        token = None
        raise
    except Exception as error:  # noqa: BLE001 - a fault of ours costs one domain, not the server
        _log_own(domain, error)
        domain.contain(error)
    finally:
        if token is not None:
            _CURRENT.reset(token)


def report(domain: FailureDomain, error: Exception) -> ShoalError:
    """The error for those who wait for a domain that an exception has ended; an unexpected exception is logged with its
    traceback."""
    if not isinstance(error, ShoalError):
        _log_own(domain, error)
    return own_error(error)


def _log_own(domain: FailureDomain, error: Exception) -> None:
    _log.error("%s has met an error of the server's own", domain.title, exc_info=error)


def own_error(error: Exception) -> ShoalError:
    """An exception as a ShoalError: unchanged if it is one, else described in an InternalError's sentence."""
    if isinstance(error, ShoalError):
        return error
    return InternalError(f"an error of the server's own, {type(error).__name__}: {error}")


def bound(callback: Callable[P, object]) -> Callable[P, None]:
    """A callback that runs in the failure domain of the caller of `bound`, wherever the callback is called later."""
    domain = _CURRENT.get()

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        with nullcontext() if domain is None else contained(domain):
            callback(*args, **kwargs)

    return call
