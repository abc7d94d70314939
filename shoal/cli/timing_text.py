"""The timing of a request as the verbs `infer` and `top` print it: its phases as a bar, and why it waited. Pure."""

from collections.abc import Mapping
from typing import Any

from shoal.timing import PHASES, Timing

#: The letters of a bar's phases, which also differ without colours.
LETTERS = {
    "receive": "r", "parse": "p", "queue": "·", "gather": "g", "compute": "#", "write": "w", "steps": "#", "send": "s",
}  # fmt: skip
_WIDTH = 40
_WAITS = {
    "busy": "for a busy instance",
    "forming": "while the batch was forming",
    "limit": "for the rate limiter",
    "sequence": "for its sequence",
    "wake": "for the worker to take it",
}


def timing_text(timing: Timing) -> str:
    """The phases of a request, one a line, and why it waited."""
    phases = [(name, timing.phases[name]) for name in PHASES if timing.phases.get(name)]
    lines = [f"{ms(timing.total_ns):>12}  in all"]
    lines += [f"{ms(time_ns):>12}  {name:8} {bar({name: time_ns}, timing.total_ns)}" for name, time_ns in phases]
    facts = [wait_text(timing._asdict()), batch_text(timing._asdict())]
    lines += [fact for fact in facts if fact]
    lines += [f"{ms(time_ns):>12}  step {name}" for name, time_ns in timing.steps]
    return "\n".join(lines)


def bar(phases: Mapping[str, int], total_ns: int, width: int = _WIDTH) -> str:
    """The phases as one bar, each as long as its part of the whole; if all are very short, the longest has a letter."""
    drawn, used_ns, used = "", 0, 0
    for name in PHASES:
        used_ns += phases.get(name, 0)
        end = round(width * used_ns / max(1, total_ns))
        drawn += LETTERS[name] * (end - used)
        used = end
    return drawn or (LETTERS.get(max(phases, key=lambda name: phases[name]), "?") if phases else "")


def wait_text(request: Mapping[str, Any]) -> str:
    """Why a request waited, the reason of the longest wait first; `request` has the fields of a Timing."""
    parts = sorted(request["queue"].items(), key=lambda each: -each[1])
    text = ", ".join(f"{ms(time_ns)} {_WAITS.get(name, name)}" for name, time_ns in parts)
    if request["ahead_requests"]:
        text += (
            f"; the batch ahead had {request['ahead_requests']} requests, {request['ahead_rows']} rows, and took "
            f"{ms(request['ahead_ns'])}"
        )
    if request["is_overtaken"]:
        text += "; later requests of a higher priority went first"
    return f"waited {text}" if text else ""


def batch_text(request: Mapping[str, Any]) -> str:
    """The batch and the instance of a request; empty if no instance has answered."""
    if not request["batch_requests"]:
        return ""
    return (
        f"batch of {request['batch_requests']} requests, {request['batch_rows']} rows, on {request['instance']} "
        f"(pid {request['pid']}), version {request['version']}"
    )


def ms(time_ns: int) -> str:
    """A time in ms, as text."""
    return f"{time_ns / 1e6:.3f} ms"
