"""`--cache-config`: the server's response cache and its settings. Pure; error sentences are mostly Triton's."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple

from shoal.errors import InvalidArgumentError

#: The name of a cache → its settings, as text; {} without a cache.
CacheConfig = Mapping[str, Mapping[str, str]]

#: The smallest response cache is about as small as Triton's; the largest one and the blocks of ensembles fill a
#: segment.
MIN_CACHE_BYTES, MAX_CACHE_BYTES = 1000, (1 << 32) - (17 << 20)
#: The most bytes of answers in Redis of which a server also keeps copies, where `size` is not given (ours: Triton keeps
#: no copies).
REDIS_CACHE_BYTES = 64 << 20
#: Redis's timeouts: for replies, for which requests wait, and for a connection, for which no request waits. Triton's
#: default for both is no limit; Triton waits 100 ms for a free connection of its pool.
DEFAULT_SOCKET_TIMEOUT_MS, DEFAULT_CONNECT_TIMEOUT_MS = 100, 1000
REDIS_PORT = 6379  # Redis's own; Triton has no default

_NUMBERS = {  # setting → its least and its most value
    "port": (1, 65535),
    "db": (0, 1 << 16),
    "connect_timeout": (0, 600_000),
    "socket_timeout": (0, 600_000),
    "size": (MIN_CACHE_BYTES, MAX_CACHE_BYTES),
    # Triton's settings for its pool of connections. Shoal needs one connection only, since no thread waits on it.
    "pool_size": (0, 1 << 16),
    "wait_timeout": (0, 600_000),
}
_TLS_FILES = ("cert", "key", "cacert", "cacert_dir")
_REDIS_SETTINGS = (*_NUMBERS, "host", "user", "password", "tls_enabled", "sni", *_TLS_FILES)


class RedisSettings(NamedTuple):
    """The address, login and timeouts for Redis. Texts are empty where the setting was not given."""

    host: str
    port: int
    user: str
    password: str
    db: int
    connect_timeout_s: float
    socket_timeout_s: float
    is_tls: bool
    cert: str  # the client's own certificate and key
    key: str
    cacert: str  # this file, or cacert_dir, has the certificates of authorities; both "": the system's are used
    cacert_dir: str
    sni: str  # the name in the server's certificate; "": the host


def check_cache(config: CacheConfig, cache_directory: str) -> None:
    """Raise InvalidArgumentError for settings of a cache that the server cannot have."""
    if len(config) > 1:
        raise InvalidArgumentError(
            "found multiple cache configurations, but only a single cache is currently supported"
        )
    for name, settings in config.items():
        if name == "local":
            _check_local(settings)
        elif name == "redis":
            _check_redis(settings)
            if find_spec("hiredis") is None:
                raise InvalidArgumentError(
                    "--cache-config redis needs hiredis, which is not installed; install it with: "
                    "pip install 'shoal[redis]'"
                )
        else:
            raise InvalidArgumentError(
                f"unable to find 'libtritoncache_{name}.so' for cache. Searched: {cache_directory}"
            )


def cache_bytes(config: CacheConfig) -> int:
    """The most bytes of cached answers that the server keeps itself; 0: there is no cache."""
    if "local" in config:
        return int(config["local"]["size"])
    return int(config["redis"].get("size", REDIS_CACHE_BYTES)) if "redis" in config else 0


def redis_settings(config: CacheConfig, environ: Mapping[str, str]) -> RedisSettings | None:
    """The settings of Redis; None if Redis is not the cache. Of `environ`, only Triton's two variables are read."""
    if "redis" not in config:
        return None
    said = {
        "user": environ.get("TRITONCACHE_REDIS_USERNAME", ""),
        "password": environ.get("TRITONCACHE_REDIS_PASSWORD", ""),
        **config["redis"],
    }
    text = {name: said.get(name, "") for name in ("cert", "key", "cacert", "cacert_dir", "sni")}
    return RedisSettings(
        host=said["host"],
        port=int(said.get("port", REDIS_PORT)),
        user=said["user"],
        password=said["password"],
        db=int(said.get("db", "0")),
        # A connect_timeout of 0, Triton's default, means DEFAULT_CONNECT_TIMEOUT_MS here.
        connect_timeout_s=(int(said.get("connect_timeout", "0")) or DEFAULT_CONNECT_TIMEOUT_MS) / 1000,
        socket_timeout_s=(int(said.get("socket_timeout", "0")) or DEFAULT_SOCKET_TIMEOUT_MS) / 1000,
        is_tls=said.get("tls_enabled", "true" if any(text.values()) else "false") == "true",
        **text,
    )


def _check_local(settings: Mapping[str, str]) -> None:
    failed, size = "Failed to initialize LocalCache:", settings.get("size", "")
    if not re.fullmatch(r"[0-9]{1,18}", size):
        raise InvalidArgumentError(f"{failed} config didn't contain a valid 'size' field.")
    if not MIN_CACHE_BYTES <= int(size) <= MAX_CACHE_BYTES:
        raise InvalidArgumentError(
            f"{failed} 'size' is {size} bytes; a cache has from {MIN_CACHE_BYTES} to {MAX_CACHE_BYTES}"
        )


def _check_redis(settings: Mapping[str, str]) -> None:
    failed = "Failed to initialize RedisCache"
    if "host" not in settings:
        raise InvalidArgumentError(
            f"{failed}, didn't specify address. Must at a minimum specify 'host' and 'port' in the configuration - "
            "e.g. tritonserver --cache-config redis,host=redis --cache-config redis,port=6379 "
            "--model-repository=/models ..."
        )
    for name, value in settings.items():
        if name not in _REDIS_SETTINGS:
            known = ", ".join(sorted(_REDIS_SETTINGS))
            raise InvalidArgumentError(f"{failed}: there is no setting '{name}'; there are {known}")
        if name in _NUMBERS:
            least, most = _NUMBERS[name]
            if not re.fullmatch(r"[0-9]{1,18}", value) or not least <= int(value) <= most:
                raise InvalidArgumentError(f"{failed}: '{name}' is a number from {least} to {most}, got '{value}'")
        if name == "tls_enabled" and value not in ("true", "false"):
            raise InvalidArgumentError(f"{failed}: 'tls_enabled' is true or false, got '{value}'")
    if "key" in settings and "cert" not in settings:
        raise InvalidArgumentError(f"{failed}: 'key' belongs to a 'cert', a file in PEM format")
