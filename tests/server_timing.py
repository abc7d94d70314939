"""The header Server-Timing, read as a client reads it."""

import re

from shoal.timing import PHASES, QUEUE_PARTS, Timing

_METRIC = re.compile(r'([a-z-]+)(?:;desc="([^"]*)")?(?:;dur=([0-9.]+))?')
_COUNTS = re.compile(r"(\d+) requests, (\d+) rows")


def from_header(value: str) -> Timing:
    """The times in a header that `as_header` has made; others' metrics are ignored."""
    found = [(name, description, round(float(ms or 0) * 1e6)) for name, description, ms in _METRIC.findall(value)]
    texts = {name: description for name, description, _ in found if description}
    times = {name: time_ns for name, _, time_ns in found}
    batch, ahead = (_counts(texts.get(name, "")) for name in ("batch", "ahead"))
    return Timing(
        {name: times[name] for name in PHASES if name in times},
        {name: times[f"queue-{name}"] for name in QUEUE_PARTS if f"queue-{name}" in times},
        times.get("total", 0),
        *batch,
        *ahead,
        times.get("ahead", 0),
        "overtaken" in times,
        texts.get("instance", ""),
        int(texts.get("pid", 0)),
        texts.get("version", ""),
        tuple([(description, time_ns) for name, description, time_ns in found if name == "step"]),
    )


def _counts(text: str) -> tuple[int, int]:
    found = _COUNTS.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
