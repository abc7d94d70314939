"""Parsers of flags' values; an invalid text raises ValueError with a message for the user, to which serve.py adds the
flag's name. Booleans and integers are read as Triton reads them. Runs in the supervisor's process."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from shoal.cloud_url import CloudUrl, is_cloud
from shoal.errors import InvalidArgumentError
from shoal.options import MAX_PORT, RESTRICTED_APIS
from shoal.re2 import to_python
from shoal.tracer import command_line

_TRUE = frozenset({"true", "1", "on"})
_FALSE = frozenset({"false", "0", "off"})
_MAX_CORES = 65536  # more than any machine has
# A header's name (RFC 9110, 5.1) without underscores, which WSGI cannot tell from hyphens.
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^`|~0-9A-Za-z]+")
_METRICS_SWITCHES = ("counter_latencies", "histogram_latencies", "summary_latencies")


class ValueKind(NamedTuple):
    """A kind of value: its name in help, its parser, and the meaning of a flag without a value."""

    metavar: str  # "" where the flag takes no value
    parse: Callable[[str], Any]
    bare: str | None = None  # the text parsed where the flag is given without a value; None: the flag requires one


def _boolean(text: str) -> bool:
    word = text.lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(f"invalid value for bool option: {text}")  # Triton's words


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ValueError(f"expected an integer, got '{text}'")
    return int(text)


def _verbosity(text: str) -> int:
    word = text.lower()
    if word in _TRUE | _FALSE:
        return int(word in _TRUE)
    level = _integer(text)
    if level < 0:
        raise ValueError(f"expected 0 for no verbose messages, a level from 1 on, or a boolean, got {text}")
    return level


def _text(text: str) -> str:
    if not text:
        raise ValueError("expected a value, got nothing")
    return text


def _config_name(text: str) -> str:
    if not text:
        raise ValueError("Error: empty argument for --model-config-name")  # Triton's words
    return text


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"expected a number, got '{text}'")
    return number


def _repository(text: str) -> Path | CloudUrl:
    if not is_cloud(text):
        return Path(_text(text))
    try:
        return CloudUrl.parse(text)
    except InvalidArgumentError as error:
        raise ValueError(str(error)) from None


def _parts(form: str, flag: str, described: str, text: str) -> tuple[Any, ...]:
    """The groups of a regular expression in a flag's value. Raises ValueError, in Triton's words, for another value."""
    match = re.fullmatch(form, text, re.DOTALL)
    if match is None:
        raise ValueError(f"--{flag} option format is {described}. Got {text}")
    return match.groups("")


def _backend_setting(text: str) -> tuple[str, str, str]:
    """A backend's setting: `onnxruntime,intra_op_thread_count=2` → ("onnxruntime", "intra_op_thread_count", "2");
    a setting without a backend's name is one for all backends."""
    described = "'<backend name>,<setting>=<value>' or '<setting>=<value>'"
    backend, setting, value = _parts("(?:([^=]+),)?([^=,]+)=(.+)", "backend-config", described, text)
    return backend, setting, value


def _limit(text: str) -> tuple[str, int, int | None]:
    """A resource of the rate limiter: `R:4` → ("R", 4, None), for every device; `R:4:0` → ("R", 4, 0)."""
    described = "'<resource_name>:<count>:<device>' or '<resource_name>:<count>'"
    name, count, device = _parts(r"([^:]+):(\d+)(?::(\d+))?", "rate-limit-resource", described, text)
    return name, _integer(count), _integer(device) if device else None


def _gpu_limit(text: str) -> tuple[int, float]:
    """A limit of a GPU's memory: `0:0.8` → (0, 0.8)."""
    device, colon, share = text.partition(":")
    try:
        fraction = float(share)
    except ValueError:
        fraction = -1.0
    if not (device.isdecimal() and colon and 0 <= fraction <= 1):
        raise ValueError(
            f"--model-load-gpu-limit option format is '<device_id>:<fraction>', a fraction from 0 to 1. Got {text}"
        )
    return int(device), fraction


def _gpu_pool(text: str) -> tuple[int, int]:
    """The size of a pool on a GPU: `0:67108864` → (0, 67108864)."""
    described = "'<device_id>:<pool byte size>', two whole numbers"
    device, nbytes = _parts(r"(\d+):(\d+)", "cuda-memory-pool-byte-size", described, text)
    return int(device), int(nbytes)


def _record_setting(text: str) -> tuple[str, str]:
    """A setting of the recorder: `sample=0.1` → ("sample", "0.1")."""
    name, value = _parts("([^=]+)=(.+)", "record-config", "'<setting>=<value>'", text)
    return name, value


def _cache_setting(text: str) -> tuple[str, str, str]:
    """A setting of a cache: `local,size=1048576` → ("local", "size", "1048576"); error sentences are Triton's."""
    name, comma, setting = text.partition(",")
    key, equals, value = setting.partition("=")
    form = "--cache-config option format is"
    if not (name and comma):
        raise ValueError(f"No cache specified. {form} <cache name>,<setting>=<value>. Got {text}")
    if not (key and equals and value):
        raise ValueError(f"{form} '<cache name>,<setting>=<value>'. Got {text}")
    return name, key, value


def _host_policy(text: str) -> tuple[str, str, Any]:
    """A setting of a host policy: `gpu_0,cpu-cores=0-3,8-11` → ("gpu_0", "cpu_cores", (0, 1, 2, 3, 8, …))."""
    form = "([^,]+),([^=]+)=(.+)"
    policy, setting, value = _parts(form, "host-policy", "'<policy name>,<setting>=<value>'", text)
    if setting == "numa-node":
        if not value.isdecimal():
            raise ValueError(f"Parsing 'numa-node' value: Can't parse '{value}' to integer")
        return policy, "numa_node", int(value)
    if setting != "cpu-cores":
        raise ValueError(f"there is no host policy setting '{setting}'; there are numa-node and cpu-cores")
    cores: list[int] = []
    for part in value.split(","):
        low, dash, high = part.partition("-")
        if not (dash and low.isdecimal() and high.isdecimal() and int(low) <= int(high) < _MAX_CORES):
            raise ValueError(
                f"host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got {part}"
            )
        cores += range(int(low), int(high) + 1)
    return policy, "cpu_cores", tuple(cores)


def _port_range(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal() and int(low) <= int(high) <= MAX_PORT):
        raise ValueError(f"expected two ports as <first>-<last>, got '{text}'")
    return int(low), int(high)


def _pattern(text: str) -> str:
    pattern = to_python(text)
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"'{text}' is no regular expression: {error}") from None
    return pattern


def _metrics_setting(text: str) -> tuple[str, Any]:
    """A setting of metrics: `summary_latencies=true` → ("summary_latencies", True)."""
    described = "'<setting>=<value>' or '<metric type>,<setting>=<value>'"
    setting, value = _parts("([^=]+)=(.+)", "metrics-config", described, text)
    if setting == "summary_quantiles":
        return setting, tuple(_quantile(pair) for pair in value.strip("'\"").split(","))
    if setting not in _METRICS_SWITCHES:
        raise ValueError(
            f"there is no setting '{setting}'; there are summary_quantiles, {', '.join(_METRICS_SWITCHES)}"
        )
    return setting, _boolean(value)


def _quantile(pair: str) -> tuple[float, float]:
    quantile, colon, error = pair.partition(":")
    if not colon:  # Triton's words
        raise ValueError(f"Invalid option: [{pair}]. No ':' delimiter found. Expected format is <quantile>:<error>")
    numbers = _number(quantile), _number(error)
    if not all(0 <= number <= 1 for number in numbers):
        raise ValueError(f"a quantile and its error lie between 0 and 1, got '{pair}'")
    return numbers


def restriction(flag: str, word: str, prefix: str = "") -> ValueKind:
    """A kind of value for a restriction: which parts of the API require which header; `prefix` is put before the
    header's name.

    `trace,logging:admin-key=secret` → (("trace", "logging"), "admin-key", "secret")
    """

    def parse(text: str) -> tuple[tuple[str, ...], str, str]:
        form = "([^:]+):([^=]+)=(.+)"
        names, key, value = _parts(form, flag, "'<config name>:<setting>=<value>'", text)
        apis = tuple(names.split(","))
        for api in apis:
            if api not in RESTRICTED_APIS:  # Triton's words, with the parts that exist
                raise ValueError(f"unknown restricted {word} '{api}'; there are {', '.join(RESTRICTED_APIS)}")
        if not _HEADER_NAME.fullmatch(key):
            raise ValueError(f"'{key}' cannot be a header's name: letters, digits and hyphens are, underscores are not")
        if not value.isprintable() or value != value.strip():
            raise ValueError(f"the value of header '{key}' must be printable and not begin or end with a space")
        return apis, prefix + key, value

    return ValueKind(f"<{word}>[,<{word}>]:<header>=<value>", parse)


def trace_setting(mode: str, setting: str, metavar: str) -> ValueKind:
    """A kind of value for a flag that sets one setting of --trace-config (e.g. --trace-file)."""
    return ValueKind(metavar, lambda text: command_line.entry(mode, setting, text))


def integer(low: int, high: int | None = None) -> ValueKind:
    """A kind of value for integers within bounds, both included."""
    bounds = f"of {low} or more" if high is None else f"from {low} to {high}"

    def parse(text: str) -> int:
        value = _integer(text)
        if value < low or (high is not None and value > high):
            raise ValueError(f"expected an integer {bounds}, got {text}")
        return value

    return ValueKind("<integer>", parse)


def choice(*words: str) -> ValueKind:
    """A kind of value for one of some words, in upper or lower case, as Triton takes them."""
    known = {word.lower(): word for word in words}

    def parse(text: str) -> str:
        if text.lower() not in known:
            raise ValueError(f"expected one of {', '.join(words)}, got '{text}'")
        return known[text.lower()]

    return ValueKind("{" + ",".join(words) + "}", parse)


BOOLEAN = ValueKind("<boolean>", _boolean, bare="true")
RELOAD = ValueKind("", lambda _: 1, bare="true")  # a switch; its value is the seconds between two checks of files
SWITCH = ValueKind("", _boolean, bare="true")
INTEGER = ValueKind("<integer>", _integer)
NUMBER = ValueKind("<number>", _number)
TEXT = ValueKind("<string>", _text)
ANY_TEXT = ValueKind("<string>", str)  # may be empty, which is often Triton's default
CONFIG_NAME = ValueKind("<string>", _config_name)
VERBOSITY = ValueKind("<integer>", _verbosity, bare="1")
REPOSITORY = ValueKind("<directory or URL>", _repository)
BACKEND_SETTING = ValueKind("[<backend>,]<key>=<value>", _backend_setting)
RECORD_SETTING = ValueKind("<setting>=<value>", _record_setting)
CACHE_SETTING = ValueKind("<cache>,<setting>=<value>", _cache_setting)
CACHE_BYTES = ValueKind("<integer>", lambda text: ("local", "size", str(_integer(text))))
HOST_POLICY = ValueKind("<policy>,<setting>=<value>", _host_policy)
GPU_POOL = ValueKind("<device>:<bytes>", _gpu_pool)
GPU_LIMIT = ValueKind("<device>:<fraction>", _gpu_limit)
LIMIT = ValueKind("<name>:<count>[:<device>]", _limit)
PATTERN = ValueKind("<regex>", _pattern)  # may be empty: matches nothing
METRICS_SETTING = ValueKind("<setting>=<value>", _metrics_setting)
TRACE_CONFIG = ValueKind("[<mode>,]<setting>=<value>", command_line.parse)
PORT_RANGE = ValueKind("<integer>-<integer>", _port_range)
