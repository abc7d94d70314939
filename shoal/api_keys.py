"""API keys: who may ask which models, administer, or read metrics. The file of --api-keys, and the keys in it.

    {"deploy": {"sha256": "9f86d0…", "scopes": ["admin"]},
     "shop":   {"sha256": "60303a…", "scopes": ["infer"], "models": ["resnet*", "bert"],
                "requests_per_second": 50, "burst": 100, "max_in_flight": 20}}

The file has a key's SHA-256 alone. A key is 256 random bits, so its digest needs no salt and no slow hash: neither a
dictionary nor a table helps to find it. Pure but for `new_key`.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from hashlib import sha256
from hmac import compare_digest
from types import MappingProxyType
from typing import Any, NamedTuple

from shoal.errors import InvalidArgumentError

#: The scopes that a key may have. `infer` and `admin` include reading about the key's models.
SCOPES = ("infer", "admin", "metrics")
#: The most keys and bytes of a file, and the most patterns of models of one key (ours).
MAX_KEYS, MAX_FILE_BYTES, MAX_PATTERNS = 4096, 4 << 20, 64
#: The beginning of each key, by which scanners for leaked secrets recognise a key.
PREFIX = "shoal_"
_KEY_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PATTERN = re.compile(r"[!-~]{1,256}")
#: Members of a key's entry that limit its requests, see KeyLimits.
LIMITS = ("requests_per_second", "burst", "max_in_flight")
_MEMBERS = frozenset({"sha256", "scopes", "models", *LIMITS})
#: The greatest value of a key's limit (ours).
_MAX_LIMIT = 1_000_000


class KeyLimits(NamedTuple):
    """The limits of a key's requests for inference; 0, but for `burst`, means no limit."""

    requests_per_second: float = 0
    burst: int = 0  # requests that may come at once; 0: as many as in a second, at least one
    max_in_flight: int = 0

    @property
    def requests_at_once(self) -> int:
        """The number of requests that may come at once after a silence."""
        return self.burst or max(1, int(self.requests_per_second))


NO_LIMITS = KeyLimits()


class ApiKey(NamedTuple):
    """A key: its name in the log, the SHA-256 of its text, its scopes, and the models that it covers."""

    name: str
    digest: bytes
    scopes: tuple[str, ...]
    models: tuple[str, ...] = ("*",)  # shell patterns, case-sensitive
    limits: KeyLimits = NO_LIMITS

    @property
    def covers_all(self) -> bool:
        """Whether the key is for every model there is and will be."""
        return "*" in self.models

    @property
    def is_plain(self) -> bool:
        """Whether the key is for every model, without limits."""
        return self.limits == NO_LIMITS and "*" in self.models

    @property
    def is_limited(self) -> bool:
        """Whether the key has a limit, for which its requests must be counted."""
        return self.limits != NO_LIMITS

    def covers(self, model: str) -> bool:
        """Whether the key is for a model of this name."""
        return self.covers_all or any(fnmatchcase(model, pattern) for pattern in self.models)


class KeyRing:
    """The keys that a server admits."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = {key.digest: key for key in keys}

    @property
    def names(self) -> set[str]:
        """The names of all keys."""
        return {key.name for key in self._keys.values()}

    def find(self, text: str) -> ApiKey | None:
        """The key with this text; None if there is none. The time that this takes depends on the text's digest alone,
        and so tells an attacker nothing about a key."""
        digest = digest_of(text)
        key = self._keys.get(digest)
        return key if key is not None and compare_digest(key.digest, digest) else None


def digest_of(text: str) -> bytes:
    """The SHA-256 of a key's text."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def new_key() -> str:
    """A fresh key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def entry_of(
    text: str, scopes: Iterable[str], models: Iterable[str], limits: Mapping[str, float] = MappingProxyType({})
) -> dict[str, Any]:
    """The entry for a key in the file; `limits` are members of KeyLimits."""
    return {"sha256": digest_of(text).hex(), "scopes": list(scopes), "models": list(models), **limits}


def parse_keys(data: bytes) -> tuple[ApiKey, ...]:
    """The keys in a file. Raises InvalidArgumentError that names the key and the member that is wrong."""
    if len(data) > MAX_FILE_BYTES:
        raise InvalidArgumentError(f"it has {len(data)} bytes, at most {MAX_FILE_BYTES} are allowed")
    try:
        document = json.loads(data, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"it is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidArgumentError('it is no JSON object; expected {"NAME": {"sha256": …, "scopes": […]}}')
    if len(document) > MAX_KEYS:
        raise InvalidArgumentError(f"it has {len(document)} keys, at most {MAX_KEYS} are allowed")
    keys = tuple([_key(name, entry) for name, entry in document.items()])
    by_digest: dict[bytes, str] = {}
    for key in keys:
        if key.digest in by_digest:
            raise InvalidArgumentError(f"keys '{by_digest[key.digest]}' and '{key.name}' are one key")
        by_digest[key.digest] = key.name
    return keys


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' is there twice")
    return found


def _key(name: str, entry: Any) -> ApiKey:
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(f"'{name[:64]}' is no name for a key: 1 to 64 letters, digits and ._@- are")
    if not isinstance(entry, dict):
        raise InvalidArgumentError(f"key '{name}' is no JSON object")
    if unknown := sorted(entry.keys() - _MEMBERS):
        raise InvalidArgumentError(f"key '{name}' has '{unknown[0][:64]}'; there are {', '.join(sorted(_MEMBERS))}")
    digest = entry.get("sha256")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise InvalidArgumentError(f"sha256 of key '{name}' is not the 64 hexadecimal digits that `shoal key` prints")
    scopes = _texts(name, "scopes", entry.get("scopes"))
    if not scopes or not set(scopes) <= set(SCOPES):
        raise InvalidArgumentError(f"scopes of key '{name}' must be some of {', '.join(SCOPES)}")
    models = _texts(name, "models", entry.get("models", ["*"]))
    if len(models) > MAX_PATTERNS or not all(_PATTERN.fullmatch(each) for each in models):
        raise InvalidArgumentError(f"models of key '{name}' must be at most {MAX_PATTERNS} names or patterns")
    return ApiKey(name, bytes.fromhex(digest), scopes, models, _limits(name, entry))


def _limits(name: str, entry: dict[str, Any]) -> KeyLimits:
    for member in LIMITS:
        value = entry.get(member, 1)
        kinds = (int, float) if member == "requests_per_second" else (int,)
        if type(value) not in kinds or not 0 < value <= _MAX_LIMIT:
            raise InvalidArgumentError(f"{member} of key '{name}' must be a number above 0, and at most {_MAX_LIMIT}")
    if "burst" in entry and "requests_per_second" not in entry:
        raise InvalidArgumentError(f"key '{name}' has a burst and no requests_per_second")
    return KeyLimits(**{member: entry[member] for member in LIMITS if member in entry})


def _texts(name: str, member: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidArgumentError(f"{member} of key '{name}' must be a list of texts")
    return tuple(value)
