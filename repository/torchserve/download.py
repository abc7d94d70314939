"""Archives from `http(s)://` and `file://` URLs, copied into the model store under their base name. In the poller.

Every URL, that of a redirection too, must match `allowed_urls` (config.properties): a client of the management API must
not make the server connect to hosts that the operator has not allowed.
"""

import os
import re
import stat
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException, HTTPResponse
from io import BufferedReader
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from shoal.passwords import shown_url
from shoal.repository.identifier import is_model_name
from shoal.torchserve_errors import torchserve_error

#: The most seconds that a connection may bring no byte (ours).
STALL_S = 30.0
#: The most seconds that a download may take (ours); the supervisor's limit for an order of the poller may be shorter.
WHOLE_S = 1800.0
#: Bytes that stay free on the store's disk (ours).
_RESERVE_BYTES = 256 << 20
_CHUNK = 1 << 20
_SCHEMES = ("http", "https", "file")


def is_url(text: str) -> bool:
    """Whether a model's address is a URL, and not a name in the store or a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text) is not None


def is_allowed(url: str, patterns: Sequence[str]) -> bool:
    """Whether one of the regular expressions matches the whole URL, in any case."""
    return any(re.fullmatch(pattern, url, re.IGNORECASE) for pattern in patterns)


def base_name(url: str) -> str:
    """The file's name that a URL ends with; "" where that cannot be a file's name."""
    try:
        name = unquote(urlsplit(url).path.rpartition("/")[2])
    except ValueError:  # for a host that is not valid in a URL, such as "[::1"
        return ""
    return name if is_model_name(name) and name[0] != "." else ""


def download(url: str, store: Path, patterns: Sequence[str]) -> Path:
    """Copy the archive at `url` into the store; returns its path there.

    Raises TorchServe's errors: 404 for a URL that is not allowed, 500 where the store has a file of that name, 400 for
    a download that fails. An error leaves the store as it was.
    """
    name = base_name(url)
    if not is_allowed(url, patterns):
        raise torchserve_error(
            404, "ModelNotFoundException", f"Given URL {shown_url(url)} does not match any allowed URL(s)"
        )
    if not name or urlsplit(url).scheme.lower() not in _SCHEMES:
        raise _failed(url, "it is no http, https or file URL that ends with the name of a file")
    if "@" in urlsplit(url).netloc:
        # urllib would take user and password for a part of the host, and name them in its error.
        raise _failed(url, "no user's name and password are sent; have its host answer without")
    target = store / name
    if os.path.lexists(target):
        raise torchserve_error(500, "InternalServerException", f"Model file already exists {name}")
    try:
        with (
            _opened(url, patterns) as source,
            tempfile.NamedTemporaryFile(dir=store, prefix=".", suffix=".part") as part,
        ):
            _copy(source, part, store)
            part.flush()
            os.link(part.name, target)  # publishes: a whole archive, and never over another file
    except FileExistsError:
        raise torchserve_error(500, "InternalServerException", f"Model file already exists {name}") from None
    except urllib.error.HTTPError as error:
        error.close()
        raise _failed(url, f"status {error.code}") from error
    except (OSError, ValueError, HTTPException) as error:  # urllib's errors are OSErrors
        raise _failed(url, getattr(error, "reason", None) or str(error)) from error
    os.chmod(target, 0o644)
    return target


def _failed(url: str, reason: object) -> Exception:
    return torchserve_error(
        400, "DownloadArchiveException", f"Failed to download archive from: {shown_url(url)} ({reason})"
    )


def _copy(source: BufferedReader | HTTPResponse, target: IO[bytes], store: Path) -> None:
    """Copy a whole archive. Raises ValueError for one that takes too long, is too large, or is cut short."""
    end_s = time.monotonic() + WHOLE_S
    while chunk := source.read1(_CHUNK):  # a single receive: a host that drips bytes must not outlast WHOLE_S
        free = os.statvfs(store)  # each time: other downloads fill the disk, too
        if free.f_bavail * free.f_frsize - len(chunk) < _RESERVE_BYTES:
            raise ValueError("the disk of the model store is full")
        if time.monotonic() > end_s:
            raise ValueError(f"it took longer than {WHOLE_S:g} s")
        target.write(chunk)
    if isinstance(source, HTTPResponse) and source.length:
        raise ValueError(f"the connection ended {source.length} bytes before the archive's end")


def _opened(url: str, patterns: Sequence[str]) -> BufferedReader | HTTPResponse:
    parts = urlsplit(url)
    if parts.scheme.lower() != "file":
        opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(),
            urllib.request.HTTPErrorProcessor(), urllib.request.HTTPDefaultErrorHandler(), _Redirects(patterns),
        ):  # fmt: skip
            opener.add_handler(handler)
        opened: HTTPResponse = opener.open(url, timeout=STALL_S)
        return opened
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"the file is on another host, '{parts.netloc}'")
    file = open(os.open(unquote(parts.path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("it is no regular file")
    return file


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections to allowed URLs only."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = patterns

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """The request for the new URL. Raises ValueError where that is not allowed."""
        if not is_allowed(newurl, self._patterns) or urlsplit(newurl).scheme.lower() == "file":
            fp.close()
            raise ValueError(f"it redirects to {newurl}, which does not match any allowed URL")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
