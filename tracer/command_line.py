"""`--trace-config [MODE,]SETTING=VALUE` and the older flags for single settings, such as --trace-rate: their values,
checked and put together. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.errors import InvalidArgumentError
from shoal.tracer.settings import OFF, OPENTELEMETRY, TENSORS, TIMESTAMPS, TRITON, TraceSetting

SERVICE_NAME = "triton-inference-server"  # of the spans' resource, unless the command line names another; Triton's

# Triton's sentences.
_FORMAT = "--trace-config option format is '<trace mode>,<setting>=<value>' or '<setting>=<value>'. Got {}"
_MODES = 'invalid value for trace mode option: {}. Available options are "triton" and "opentelemetry"'
_LEVEL = "invalid value for trace level option: {}"

#: The settings of each mode; "" is for both.
SETTINGS = {
    "": ("rate", "level", "count", "mode"),
    TRITON: ("file", "log-frequency"),
    OPENTELEMETRY: ("url", "resource", "bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size"),
}
#: Settings of OpenTelemetry's batch span processor: spans that wait, ms between exports, spans per export. Each
#: with its environment variable and Triton's default.
_BATCHES = {
    "bsp_max_queue_size": ("OTEL_BSP_MAX_QUEUE_SIZE", "2048"),
    "bsp_schedule_delay": ("OTEL_BSP_SCHEDULE_DELAY", "5000"),
    "bsp_max_export_batch_size": ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "512"),
}
_LEVEL_WORDS = {
    "off": OFF, "false": OFF, "true": TIMESTAMPS, "on": TIMESTAMPS, "min": TIMESTAMPS, "max": TIMESTAMPS,
    "timestamps": TIMESTAMPS, "tensors": TENSORS,
}  # fmt: skip
#: By mode and setting, the field of TraceSetting and the function that reads it.
_FIELDS: dict[tuple[str, str], tuple[str, Callable[[str], Any]]] = {
    ("", "rate"): ("rate", int),
    ("", "count"): ("count", int),
    ("", "mode"): ("mode", str.lower),
    (TRITON, "file"): ("file", str),
    (TRITON, "log-frequency"): ("log_frequency", int),
}


class TraceFlagValue(NamedTuple):
    """One value of `--trace-config`."""

    mode: str  # "" for both modes
    setting: str
    value: str


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """All values of `--trace-config`, combined."""

    setting: TraceSetting
    options: Mapping[str, str]  # the exporter's options, as clients see them
    resource: Mapping[str, str]  # attributes of the spans' resource


def parse(text: str) -> TraceFlagValue:
    """Parse one value of `--trace-config`. Raises ValueError with a sentence."""
    head, equals, value = text.partition("=")
    mode, comma, setting = head.rpartition(",")
    if not (equals and setting and value) or (comma and not mode):
        raise ValueError(_FORMAT.format(text))
    return entry(mode.lower(), setting, value)


def entry(mode: str, setting: str, value: str) -> TraceFlagValue:
    """A value of a known setting, checked. Raises ValueError with a sentence."""
    if mode not in SETTINGS:
        raise ValueError(_MODES.format(mode))
    if setting not in SETTINGS[mode]:
        known = ", ".join(SETTINGS[mode])
        raise ValueError(f"unknown trace setting '{setting}'; expected one of {known}")
    if setting == "level" and value.lower() not in _LEVEL_WORDS:
        raise ValueError(_LEVEL.format(value))
    if setting == "mode" and value.lower() not in (TRITON, OPENTELEMETRY):
        raise ValueError(_MODES.format(value))
    if setting == "resource" and not value.partition("=")[2]:
        raise ValueError(f"expected resource=<key>=<value>, got resource={value}")
    if setting in ("rate", "count", "log-frequency", *_BATCHES):
        _check_number(setting, value, -1 if setting == "count" else 0)
    return TraceFlagValue(mode, setting, value)


def _check_number(setting: str, value: str, low: int) -> None:
    try:
        number = int(value)
    except ValueError:
        raise ValueError(f"expected an integer for {setting}, got '{value}'") from None
    if not low <= number < 2**31:
        raise ValueError(f"expected an integer from {low} to {2**31 - 1} for {setting}, got {value}")


def understand(entries: Sequence[tuple[str, str, str]], environ: Mapping[str, str]) -> TraceConfig:
    """The trace settings at the server's start: of several values the last counts; resources and levels add up, unless
    a level is OFF.

    Raises InvalidArgumentError where spans could not be exported with these settings.
    """
    last = {(mode, setting): value for mode, setting, value in entries}
    fields = {field: read(last[key]) for key, (field, read) in _FIELDS.items() if key in last}
    levels = {_LEVEL_WORDS[value.lower()] for _, setting, value in entries if setting == "level"}
    setting = TraceSetting(level=OFF if OFF in levels else sum(levels), **fields)
    resource = [value.partition("=") for _, setting, value in entries if setting == "resource"]
    options = {"url": last[OPENTELEMETRY, "url"]} if (OPENTELEMETRY, "url") in last else {}
    if resource:
        options["resource"] = ",".join(["".join(each) for each in resource])
    if setting.mode == OPENTELEMETRY:
        options |= _batches(last, environ)
    return TraceConfig(setting, options, {"service.name": SERVICE_NAME} | {key: value for key, _, value in resource})


def check_export(config: TraceConfig) -> None:
    """Raise InvalidArgumentError where spans are to be exported and OpenTelemetry's packages are missing."""
    if config.setting.mode != OPENTELEMETRY:
        return
    from importlib.metadata import PackageNotFoundError, version  # costs each start 14 ms

    try:
        for package in ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"):
            version(package)
    except PackageNotFoundError as missing:
        raise InvalidArgumentError(
            f"--trace-config mode=opentelemetry needs {missing.name}, which is not installed; "
            "install it with: pip install 'shoal[opentelemetry]'"
        ) from None


def _batches(last: Mapping[tuple[str, str], str], environ: Mapping[str, str]) -> dict[str, str]:
    batches = {}
    for name, (variable, default) in _BATCHES.items():
        batches[name] = last.get((OPENTELEMETRY, name)) or environ.get(variable) or default
        try:
            _check_number(name, batches[name], 1)
        except ValueError as error:
            raise InvalidArgumentError(f"--trace-config opentelemetry,{name} or ${variable}: {error}") from None
    if int(batches["bsp_max_export_batch_size"]) > int(batches["bsp_max_queue_size"]):
        raise InvalidArgumentError(
            f"--trace-config opentelemetry,bsp_max_export_batch_size={batches['bsp_max_export_batch_size']} exceeds "
            f"bsp_max_queue_size={batches['bsp_max_queue_size']}; spans beyond the latter would be lost"
        )
    return batches
