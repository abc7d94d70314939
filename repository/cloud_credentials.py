"""Credentials for cloud storage, from Triton's environment variables or its file, as fsspec's options.

Pure. Variables that the cloud's own library reads (AWS_ACCESS_KEY_ID, AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS, …)
are left to that library. Where $TRITON_CLOUD_CREDENTIAL_PATH names a file, only the file counts.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal.cloud_url import CloudUrl
from shoal.errors import InvalidArgumentError

FILE_VARIABLE = "TRITON_CLOUD_CREDENTIAL_PATH"
#: Scheme → the variables to check when the cloud refuses access.
_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or AWS_PROFILE, and AWS_DEFAULT_REGION",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "as": "AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY, or AZURE_STORAGE_AUTH_TYPE",
}
_S3_FIELDS = frozenset({"secret_key", "key_id", "region", "session_token", "profile"})
_AZURE_FIELDS = frozenset({"account_str", "account_key", "auth_type", "client_id"})
_AZURE_HOST = ".blob.core.windows.net"


class ManagedIdentity(NamedTuple):
    """Azure's managed identity of a machine. Stands for the credential, which only Azure's library can make."""

    client_id: str | None


def options(url: CloudUrl, environ: Mapping[str, str], file: str | None) -> dict[str, Any]:
    """fsspec's options for `url`, except time limits; `file` is the text of the credential file, None without one.

    Raises InvalidArgumentError for a file that Triton could not use either.
    """
    return _OPTIONS[url.scheme](url, environ if file is None else _entry(url, file), file is not None)


def remedy(url: CloudUrl, environ: Mapping[str, str]) -> str:
    """Advice on where to correct credentials."""
    if environ.get(FILE_VARIABLE):
        return f"check the entry for it in '{environ[FILE_VARIABLE]}' (${FILE_VARIABLE})"
    return f"check {_VARIABLES[url.scheme]} in the server's environment"


def _entry(url: CloudUrl, file: str) -> Any:
    """The entry of the credential file whose prefix matches most of the address."""
    try:
        document = json.loads(file)
    except ValueError as error:
        raise InvalidArgumentError(f"the file named by ${FILE_VARIABLE} is no JSON: {error}") from None
    entries = document.get(url.scheme, {}) if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        raise InvalidArgumentError(
            f"the file named by ${FILE_VARIABLE} must be an object of objects: "
            f'{{"{url.scheme}": {{"": <default>, "{url.scheme}://<prefix>": <another>}}}}'
        )
    matching = [prefix for prefix in entries if _text(url).startswith(prefix) or str(url).startswith(prefix)]
    if not matching:
        raise InvalidArgumentError(
            f"Cannot match credential for path {url}; "  # Triton's words
            f'add an entry "{url.scheme}": {{"": …}} to the file named by ${FILE_VARIABLE}'
        )
    return entries[max(matching, key=len)]


def _text(url: CloudUrl) -> str:
    """The address with the protocol of its endpoint written out."""
    return f"s3://{url.endpoint}/{url.path}" if url.endpoint else str(url)


def _fields(entry: Any, known: frozenset[str], scheme: str) -> dict[str, str]:
    """The entry's fields that are set. An empty field counts as absent, as in Triton."""
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise InvalidArgumentError(
            f'an entry of "{scheme}" in the file named by ${FILE_VARIABLE} must be an object of strings'
        )
    unknown = sorted(entry.keys() - known)
    if unknown:
        raise InvalidArgumentError(
            f"'{unknown[0]}' is no field of an entry of \"{scheme}\" in the file named by ${FILE_VARIABLE}; "
            f"there are {', '.join(sorted(known))}"
        )
    return {name: value for name, value in entry.items() if value}


def _s3(url: CloudUrl, source: Any, is_file: bool) -> dict[str, Any]:
    """Options for S3: botocore reads the environment itself. In a file, keys precede a profile, as in Triton."""
    found: dict[str, Any] = {}
    if url.endpoint:
        found["endpoint_url"] = url.endpoint
        # The bucket in the path, since a host like "bucket.localhost" does not resolve.
        found["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    if not is_file:
        return found
    fields = _fields(source, _S3_FIELDS, "s3")
    if "key_id" in fields and "secret_key" in fields:
        found |= {"key": fields["key_id"], "secret": fields["secret_key"], "token": fields.get("session_token")}
    elif "profile" in fields:
        found["profile"] = fields["profile"]
    if "region" in fields:
        found["client_kwargs"] = {"region_name": fields["region"]}
    return found


def _gs(url: CloudUrl, source: Any, is_file: bool) -> dict[str, Any]:
    """Options for Google: without a file, gcsfs looks for credentials as Google's libraries do."""
    if not is_file:
        return {}
    if not isinstance(source, str):
        raise InvalidArgumentError(
            f'an entry of "gs" in the file named by ${FILE_VARIABLE} must be the path of a key file'
        )
    return {"token": source} if source else {}


def _azure(url: CloudUrl, source: Any, is_file: bool) -> dict[str, Any]:
    """Options for Azure, from the file's entry, or from Triton's variables, which are not those that adlfs reads."""
    if is_file:
        fields = _fields(source, _AZURE_FIELDS, "as")
    else:
        named = {
            "account_str": "AZURE_STORAGE_ACCOUNT",
            "account_key": "AZURE_STORAGE_KEY",
            "auth_type": "AZURE_STORAGE_AUTH_TYPE",
            "client_id": "AZURE_STORAGE_CLIENT_ID",
        }
        fields = {name: source[variable] for name, variable in named.items() if source.get(variable)}
    account = fields.get("account_str", url.account)
    found: dict[str, Any] = {"account_name": account.partition(".")[0]}
    if "." in account and not account.endswith(_AZURE_HOST):
        found["account_host"] = account  # an account in another of Azure's clouds
    if fields.get("auth_type") == "managed_identity":
        return found | {"credential": ManagedIdentity(fields.get("client_id"))}
    if fields.get("auth_type") == "default":
        return found | {"anon": False}  # adlfs then uses DefaultAzureCredential
    if "account_key" in fields:
        return found | {"account_key": fields["account_key"]}
    return found | {"anon": True}


_OPTIONS = {"s3": _s3, "gs": _gs, "as": _azure}
