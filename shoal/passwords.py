"""Texts for people, programs and logs without the passwords of URLs. Pure; imports nothing of Shoal."""

import re

#: The beginning of a URL with its user, and what follows up to the "@" before its host. A "/" in a password is no
#: syntax of URLs, and is typed all the same; only a number is a port there. At a quotation mark a line of JSON goes on.
_PASSWORD = re.compile(r'(://(?!\[)[^/?#\s@:"]*:)(?:[^/?#\s"]*@|(?!\d+[/?#])[^\s"]*@)')
_MARK = "://"


def without_passwords(text: str) -> str:
    """A text whose URLs have *** in place of passwords."""
    return _PASSWORD.sub(r"\1***@", text) if "@" in text else text


def shown_url(url: str) -> str:
    """A URL, or a host and port alone, as it may be shown: with *** in place of a password."""
    return without_passwords(url) if _MARK in url else without_passwords(_MARK + url).removeprefix(_MARK)
