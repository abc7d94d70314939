"""Addresses of model repositories in cloud storage, in the forms that Triton takes.

    s3://bucket/path    s3://host:port/bucket/path    s3://https://host:port/bucket/path
    gs://bucket/path    as://account/container/path

Pure. Read from the command line; repository/cloud.py reads the repositories.
"""

import re
from dataclasses import dataclass

from shoal.errors import InvalidArgumentError
from shoal.passwords import shown_url, without_passwords

#: Scheme → how its addresses are written.
_FORMS = {
    "s3": "s3://bucket/path, s3://host:port/bucket/path or s3://https://host:port/bucket/path",
    "gs": "gs://bucket/path",
    "as": "as://account/container/path",
}
_S3_ENDPOINT = re.compile(r"(https?://)?([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/")
_HTTP_AND_PORT = re.compile(r"http://.*:[0-9]+")
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{0,221}")
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,254}")
#: The most bytes of a key, in all three clouds.
_MAX_KEY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class CloudUrl:
    """The address of a repository in cloud storage."""

    scheme: str  # "s3", "gs" or "as"
    bucket: str  # Azure: the container
    prefix: str  # the path in the bucket, without slashes at its ends; "": all of the bucket
    endpoint: str = ""  # S3: "http://host:port"; "": Amazon's
    account: str = ""  # Azure: the storage account, or its host

    def __str__(self) -> str:
        # Host and port, as Triton's users write them; without a port a host would be taken for a bucket.
        endpoint = self.endpoint.removeprefix("http://") if _HTTP_AND_PORT.fullmatch(self.endpoint) else self.endpoint
        return f"{self.scheme}://" + "/".join(filter(None, (endpoint, self.account, self.bucket, self.prefix)))

    @property
    def path(self) -> str:
        """Bucket and prefix, as fsspec takes them."""
        return f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket

    @classmethod
    def parse(cls, text: str) -> "CloudUrl":
        """Read an address for which `is_cloud` is True; superfluous slashes are left out, as by Triton.

        Raises InvalidArgumentError for a malformed one.
        """
        scheme, _, rest = text.partition("://")
        endpoint = ""
        found = _S3_ENDPOINT.match(rest) if scheme == "s3" else None
        if found and (found[1] or found[3]):  # without a protocol only a port distinguishes a host from a bucket
            endpoint = f"{found[1] or 'http://'}{found[2]}{found[3] or ''}"
            rest = rest[found.end() :]
        parts = [part for part in rest.split("/") if part]
        account = parts.pop(0) if scheme == "as" and parts else ""
        url = cls(scheme, parts[0] if parts else "", "/".join(parts[1:]), endpoint, account)
        fault = _fault(url)
        if fault:
            raise InvalidArgumentError(
                f"'{without_passwords(text)}' is no address of a model repository: {fault}; write {_FORMS[scheme]}"
            )
        return url


def is_cloud(text: str) -> bool:
    """Whether `text` is an address of cloud storage and not a directory."""
    return text.partition("://")[0] in _FORMS and "://" in text


def _fault(url: CloudUrl) -> str:
    """The fault of an address, in words; "" if there is none."""
    port = url.endpoint.rpartition(":")[2]
    if port.isdecimal() and not 0 < int(port) < 65536:
        return f"port {port} is not in 1 to 65535"
    if url.scheme == "as" and not _ACCOUNT.fullmatch(url.account):
        return f"{shown_url(url.account)!r} is no storage account" if url.account else "it names no storage account"
    if not url.bucket:
        return "it names no container" if url.scheme == "as" else "it names no bucket"
    if not _BUCKET.fullmatch(url.bucket):
        return f"{shown_url(url.bucket)!r} is no name of a {'container' if url.scheme == 'as' else 'bucket'}"
    parts = url.prefix.split("/")
    if "." in parts or ".." in parts:
        return "its path goes through '.' or '..'"
    if not all(character.isprintable() and character not in "\\?#" for character in url.prefix):
        return "its path has a character that no path of a repository needs: a control character, '\\', '?' or '#'"
    if len(url.prefix.encode()) > _MAX_KEY_BYTES:
        return f"its path is longer than {_MAX_KEY_BYTES} bytes"
    return ""
