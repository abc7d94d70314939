"""Texts for people, programs and logs without the passwords of URLs. Pure; imports nothing of Shoal."""

import re

#: The beginning of a URL up to the colon behind its user, then the password and the "@" before its host. A password
#: may have a "/", which people type though URLs forbid it; digits before a "/" are a port instead. A password ends
#: before a quotation mark, at which a line of JSON goes on.
_PASSWORD = re.compile(r'(://(?!\[)[^/?#\s@:"]*:)(?:[^/?#\s"]*@|(?!\d+[/?#])[^\s"]*@)')
#: What may be a URL with a password, and what follows it without a blank or a quotation mark.
_PIECE = re.compile(r'://[^\s"]+')
#: The same as _PASSWORD, in a text that is one URL: blanks and quotation marks in it belong to the password.
_PASSWORD_OF_URL = re.compile(r"(://(?!\[)[^/?#@:]*:)(?:[^/?#]*@|(?!\d+[/?#]).*@)", re.DOTALL)
_MARK = "://"


def without_passwords(text: str) -> str:
    """A text whose URLs have *** in place of passwords. Takes time in proportion to its length, since clients may have
    sent it."""
    return _PIECE.sub(_hidden, text) if "@" in text else text


def _hidden(piece: re.Match[str]) -> str:
    # Behind the last "@" no password ends: there the pattern would search to the end of the piece in vain.
    head, mark, tail = piece[0].rpartition("@")
    return _PASSWORD.sub(r"\1***@", head + mark) + tail


def shown_url(url: str) -> str:
    """A URL, or a host and port alone, as it may be shown: with *** in place of a password."""
    has_scheme = _MARK in url
    shown = _PASSWORD_OF_URL.sub(r"\1***@", url if has_scheme else _MARK + url)
    return shown if has_scheme else shown.removeprefix(_MARK)
