"""Restricted APIs: groups of paths that need a header with a secret value. Pure; front-end processes.

A restriction is for a group of paths (`--http-restricted-api`), and is checked before anything else of a request, its
method included. The metrics port has none.
"""

from collections.abc import Mapping, Sequence
from hmac import compare_digest

from shoal.frontend.response import Response, error_json

#: Group → the name of the header and the value it must have.
Restrictions = Mapping[str, Sequence[str]]


def refusal(restrictions: Restrictions, group: str, headers: Mapping[str, str]) -> Response | None:
    """A 403 if the group is restricted and its header is missing, or has another value; else None."""
    name = missing(restrictions, group, headers)
    return error_json(403, f"This API is restricted, expecting header '{name}'") if name else None


def missing(restrictions: Restrictions, group: str, headers: Mapping[str, str]) -> str:
    """The name of the header that the group needs, if the request lacks it or has another value in it; else "".

    `headers` have names in lower case. The time this takes does not depend on the value sent, except on its length.
    """
    restriction = restrictions.get(group)
    if restriction is None:
        return ""
    name, value = restriction
    sent = headers.get(name.lower())
    # Servers decode header values as latin-1, so this gives back the bytes that were sent.
    if sent is not None and compare_digest(sent.encode("latin-1", "replace"), value.encode()):
        return ""
    return name
