"""The decision whether a request may use a route, rpc or verb (a door, doors.py): by the request's API key if the
server has keys, else by the address that the request comes from.

Lanes and the road ask before they read a body. A model that only the body names is checked once the body is parsed
(`check_model`). Pure; front-end processes.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address

from shoal.api_keys import ApiKey
from shoal.errors import PermissionDeniedError, UnauthenticatedError
from shoal.frontend.access.doors import Scope
from shoal.frontend.prepared import RoadOnlyError
from shoal.frontend.state import ServerState

REFUSAL = (
    "models, log settings, trace settings and shared-memory regions are changed by callers on the server's own machine "
    "only. Start the server with '--allow-remote-admin=true' to let in others"
)
#: Headers of a request on another's behalf: a proxy sends them for its client.
_SPEAKS_FOR_OTHERS = ("forwarded", "x-forwarded-for", "via")
#: An origin that names this machine without DNS, whose answers another party may choose (DNS rebinding).
_LOCAL_ORIGIN = re.compile(r"https?://((?:localhost|127\.[0-9.]+|\[::1\])(?::[0-9]+)?)")

_BEARER = "bearer "
_UNKNOWN_KEY = "this API key is not known, or not any more"
#: The header fields that may hold a request's API key, in lower case.
CREDENTIALS = frozenset({"authorization", "x-api-key"})
#: Scope of a door → the scopes of the keys that open the door.
_OPENED_BY: Mapping[Scope, frozenset[str]] = {
    Scope.KNOWN: frozenset({"infer", "admin", "metrics"}),
    Scope.READ: frozenset({"infer", "admin"}),
    Scope.SETTINGS: frozenset({"infer", "admin"}),
    Scope.INFER: frozenset({"infer"}),
    Scope.METRICS: frozenset({"metrics"}),
    Scope.ADMIN: frozenset({"admin"}),
}


def authorise(
    state: ServerState, scope: Scope, headers: Mapping[str, str], address: str, model: str | None
) -> ApiKey | None:
    """Let a request pass through a door of this scope; returns the request's key, or None if the door needs none.
    Raises UnauthenticatedError or PermissionDeniedError.

    `headers` have names in lower case, `address` is the peer's; `model` is the model that the request is for, "" for
    all models, None where only the body names it.
    """
    if scope is Scope.OPEN:
        return None
    if state.api_keys is None:
        if scope is Scope.ADMIN and not may_administer(state, address, headers):
            raise PermissionDeniedError(REFUSAL)
        return None
    text = credential(headers)
    if not text:
        raise UnauthenticatedError("this needs an API key: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'")
    key = state.api_keys.find(text)
    if key is None:
        raise UnauthenticatedError(_UNKNOWN_KEY)
    check_scope(key, scope)
    if model is not None and scope is not Scope.KNOWN:
        check_model(key, model)
    return key


def check_scope(key: ApiKey, scope: Scope) -> None:
    """Raise PermissionDeniedError where a key does not open doors of this scope."""
    needed = _OPENED_BY[scope]
    if needed.isdisjoint(key.scopes):
        raise PermissionDeniedError(
            f"API key '{key.name}' has the scope {', '.join(key.scopes)}; this needs {' or '.join(sorted(needed))}"
        )


def check_model(key: ApiKey | None, model: str) -> None:
    """Raise PermissionDeniedError where a key is not for this model; "" is all models."""
    if key is None or key.covers_all:
        return
    if not model:
        raise PermissionDeniedError(f"API key '{key.name}' is for some models, and this is about all of them")
    if not key.covers(model):
        raise PermissionDeniedError(f"API key '{key.name}' is not for model '{model}'")


def check_named_model(state: ServerState, headers: Mapping[str, str], model: str) -> None:
    """Check the model that the body of an authorised request names. Raises PermissionDeniedError where the request's
    key is not for that model, UnauthenticatedError where the key has been removed since the request was authorised."""
    if state.api_keys is None:
        return
    key = state.api_keys.find(credential(headers))
    if key is None:
        raise UnauthenticatedError(_UNKNOWN_KEY)
    check_model(key, model)


def is_authorised(
    state: ServerState, scope: Scope, headers: Mapping[str, str], address: str, model: str | None
) -> bool:
    """Whether `authorise` lets a request pass."""
    try:
        authorise(state, scope, headers, address, model)
    except (UnauthenticatedError, PermissionDeniedError):
        return False
    return True


def is_for_lane(state: ServerState, scope: Scope, headers: Mapping[str, str], model: str | None) -> bool:
    """Whether a lane may answer a request: the request is authorised, and is no inference by a key with limits, since
    only the road counts requests against limits (key_limits.py)."""
    try:
        key = authorise(state, scope, headers, "", model)
    except (UnauthenticatedError, PermissionDeniedError):
        return False
    return key is None or scope is not Scope.INFER or not key.is_limited


def check_lane(key: ApiKey, *, is_stream: bool) -> None:
    """Raise RoadOnlyError for a call by a key with limits, since only the road counts requests against limits. A
    request in a stream passes: the road has counted it when it asked to begin (frontend/grpc/admissions.py)."""
    if key.is_limited and not is_stream:
        raise RoadOnlyError(f"API key '{key.name}' has limits")


def credential(headers: Mapping[str, str]) -> str:
    """The key that a request has sent; "" for none. Raises UnauthenticatedError for two that differ.

    The values of a field that was sent twice are joined by a comma, which no key contains. An Authorization of another
    scheme than Bearer is ignored.
    """
    sent, authorization = headers.get("x-api-key", "").strip(), headers.get("authorization", "")
    bearer = authorization[len(_BEARER) :].strip() if authorization[: len(_BEARER)].lower() == _BEARER else ""
    if sent and bearer and sent != bearer:
        raise UnauthenticatedError("Authorization and X-API-Key have different keys: send one")
    return sent or bearer


def may_administer(state: ServerState, address: str, headers: Mapping[str, str]) -> bool:
    """Whether the sender of this request may change the server. `address` and `headers` are as for `is_local`."""
    return state.allow_remote_admin or is_local(address, headers)


def is_local(address: str, headers: Mapping[str, str]) -> bool:
    """Whether a request comes from this machine: neither for another, by a proxy, nor from a page of another machine.
    `address` is the peer's; the names in `headers` are in lower case."""
    try:
        peer = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(peer, "ipv4_mapped", None)  # ::ffff:127.0.0.1, on a socket for both protocols
    speaks_for_others = any(name in headers for name in _SPEAKS_FOR_OTHERS)
    return (mapped or peer).is_loopback and not speaks_for_others and _is_own_page(headers)


def _is_own_page(headers: Mapping[str, str]) -> bool:
    """Whether a request comes from this server's own page (frontend/page) or from no page. A browser sends a page's
    origin with every request that may change the server; that of this server's page is the host that the request
    names."""
    origin = headers.get("origin")
    if origin is None:
        return True
    found = _LOCAL_ORIGIN.fullmatch(origin)
    return found is not None and found[1] == headers.get("host")
