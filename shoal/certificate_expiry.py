"""The time at which a certificate expires, read from its file: Python's ssl has no function that tells a server when
its own certificate expires."""

import base64
import binascii
import calendar
import re
import time
from pathlib import Path

_FIRST = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)
#: Tags of DER: of the version, which may stand before the serial number, and of a time whose year has two digits
#: (RFC 5280, section 4.1).
_VERSION, _UTC_TIME = 0xA0, 0x17


def expires_s(path: str) -> int:
    """The time at which the first certificate of a PEM file expires, in seconds since 1970; a server's own certificate
    is the first of its chain. Raises ValueError for a file without a certificate, OSError for an unreadable one."""
    found = _FIRST.search(Path(path).read_bytes())
    if found is None:
        raise ValueError(f"'{path}' has no certificate in PEM format")
    try:
        return _expires_s(base64.b64decode(found[1]))
    except (IndexError, binascii.Error, ValueError) as error:
        raise ValueError(f"the first certificate of '{path}' cannot be read") from error


def _expires_s(der: bytes) -> int:
    _, start, _ = _read(der, 0)  # the certificate
    _, position, _ = _read(der, start)  # its signed part
    tag, _, end = _read(der, position)
    if tag == _VERSION:
        position = end
    for _ in range(3):  # skips serial number, signature and issuer
        _, _, position = _read(der, position)
    _, start, _ = _read(der, position)  # validity
    _, _, position = _read(der, start)  # skips "not before", the first of the two times
    tag, start, end = _read(der, position)
    text = der[start:end].decode("ascii")
    if tag == _UTC_TIME:  # the year has two digits
        text = ("19" if text[0] >= "5" else "20") + text
    return calendar.timegm(time.strptime(text, "%Y%m%d%H%M%SZ"))


def _read(der: bytes, position: int) -> tuple[int, int, int]:
    """The tag of an element, and where its contents begin and end."""
    tag, length, start = der[position], der[position + 1], position + 2
    if length & 0x80:
        num_bytes = length & 0x7F
        length = int.from_bytes(der[start : start + num_bytes], "big")
        start += num_bytes
    if start + length > len(der):
        raise ValueError("it is cut short")
    return tag, start, start + length
