"""The clients that may change the server (models, settings, regions): those on this machine, unless the operator admits
others too.

Pure; used on the road, where every request to change something is answered.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address

from shoal.frontend.state import ServerState

REFUSAL = (
    "models, log settings, trace settings and shared-memory regions are changed by callers on the server's own machine "
    "only. Start the server with '--allow-remote-admin=true' to let in others"
)
#: Headers of a request on another's behalf: a proxy sends them for its client.
_SPEAKS_FOR_OTHERS = ("forwarded", "x-forwarded-for", "via")
#: An origin that this server can have for a browser on its machine, and never a name from a foreign DNS server.
_LOCAL_ORIGIN = re.compile(r"https?://((?:localhost|127\.[0-9.]+|\[::1\])(?::[0-9]+)?)")


def may_administer(state: ServerState, address: str, headers: Mapping[str, str]) -> bool:
    """Whether the sender of this request may change the server. `address` and `headers` are as for `is_local`."""
    return state.allow_remote_admin or is_local(address, headers)


def is_local(address: str, headers: Mapping[str, str]) -> bool:
    """Whether a request comes from this machine. `address` is the peer's; the names in `headers` are in lower case."""
    try:
        peer = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(peer, "ipv4_mapped", None)  # ::ffff:127.0.0.1, on a socket for both protocols
    speaks_for_others = any(name in headers for name in _SPEAKS_FOR_OTHERS)
    return (mapped or peer).is_loopback and not speaks_for_others and _is_own_page(headers)


def _is_own_page(headers: Mapping[str, str]) -> bool:
    """Whether a request that a browser sends for a page is for this server's own (frontend/page): its origin is then
    the host that the request names. True without an origin, which browsers always send beside a change."""
    origin = headers.get("origin")
    if origin is None:
        return True
    found = _LOCAL_ORIGIN.fullmatch(origin)
    return found is not None and found[1] == headers.get("host")
