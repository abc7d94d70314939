"""The clients that may change the server (models, settings, regions): those on this machine, unless the operator admits
others too.

Pure; used on the road, where every request to change something is answered.
"""

from collections.abc import Mapping
from ipaddress import ip_address

from shoal.frontend.state import ServerState

REFUSAL = (
    "models, log settings, trace settings and shared-memory regions are changed by callers on the server's own machine "
    "only. Start the server with '--allow-remote-admin=true' to let in others"
)
#: Headers of a request on another's behalf: a proxy sends them for its client, a browser for a page from anywhere.
_SPEAKS_FOR_OTHERS = ("forwarded", "x-forwarded-for", "via", "origin")


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
    return (mapped or peer).is_loopback and not any(name in headers for name in _SPEAKS_FOR_OTHERS)
