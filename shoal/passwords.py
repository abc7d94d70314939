"""Texts for people, programs and logs without the passwords of URLs. Pure; imports nothing of Shoal.

A user without a password is left out, too: many services take a token there.
"""

import re

#: The beginning of a URL up to the "@" before its host: a user, a colon and a password, or a user alone. A password may
#: have a "/", which people type though URLs forbid it; digits before a "/" are a port instead. A password ends before a
#: quotation mark, at which a line of JSON goes on.
_USER = re.compile(r'://(?!\[)(?:([^/?#\s:"]*):(?:[^/?#\s"]*@|(?!\d+[/?#])[^\s"]*@)|[^/?#\s:"]+@)')
#: What may be a URL with a user, and what follows it without a blank or a quotation mark.
_PIECE = re.compile(r'://[^\s"]+')
#: The same as _USER, in a text that is one URL: blanks and quotation marks in it belong to the password.
_USER_OF_URL = re.compile(r"://(?!\[)(?:([^/?#:]*):(?:[^/?#]*@|(?!\d+[/?#]).*@)|[^/?#:]+@)", re.DOTALL)
_MARK = "://"


def without_passwords(text: str) -> str:
    """A text whose URLs have *** in place of passwords. Takes time in proportion to its length, since clients may have
    sent it."""
    return _PIECE.sub(_hidden, text) if "@" in text else text


def _hidden(piece: re.Match[str]) -> str:
    # Behind the last "@" no password ends: there the pattern would search to the end of the piece in vain.
    head, mark, tail = piece[0].rpartition("@")
    return _USER.sub(_starred, head + mark) + tail


def _starred(found: re.Match[str]) -> str:
    user = found[1]  # with an "@" it may be a token and a host
    return "://***@" if user is None or "@" in user else f"://{user}:***@"


def shown_url(url: str) -> str:
    """A URL, or a host and port alone, as it may be shown: with *** in place of a password."""
    has_scheme = _MARK in url
    shown = _USER_OF_URL.sub(_starred, url if has_scheme else _MARK + url)
    return shown if has_scheme else shown.removeprefix(_MARK)
