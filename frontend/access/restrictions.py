"""Restricted APIs: groups of paths that need a header with a secret value. Pure; front-end processes.

A restriction is for a group of paths (`--http-restricted-api`), and is checked before anything else of a request, its
method included. The metrics port has none.
"""

from collections.abc import Mapping, Sequence
from hmac import compare_digest

#: Group → the name of the header and the value it must have.
Restrictions = Mapping[str, Sequence[str]]


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
