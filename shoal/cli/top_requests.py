"""`shoal top --requests`: the slowest and the failed requests of a server's last minutes, each with its time as a bar.
Pure."""

from shoal.cli.models import table
from shoal.cli.remote import Row
from shoal.cli.timing_text import LETTERS, bar, ms, wait_text

#: Requests of either kind (ours: a screen's worth).
NUM_SHOWN = 15
_BAR_WIDTH = 30
#: Characters of a model's words.
_MAX_WORDS = 100


def as_text(told: Row) -> str:
    """The requests of an answer to GET /v2/debug/requests."""
    parts = []
    if slowest := told["slowest"]:
        rows = [
            [*_names(each), ms(each["total_ns"]), bar(each["phases"], each["total_ns"], _BAR_WIDTH), _why(each)]
            for each in slowest
        ]
        shown = {name for each in slowest for name in each["phases"]}
        legend = ", ".join(f"{letter} {name}" for name, letter in LETTERS.items() if name in shown)
        parts.append(table(["MODEL", "VERSION", "ID", "TIME", "WHERE IT WENT", "WHY"], rows) + f"\n\n{legend}")
    if failed := told["failed"]:
        rows = [[*_names(each), _clock(each), ms(each["total_ns"]), _words(each["error"])] for each in failed]
        parts.append(table(["MODEL", "VERSION", "ID", "FAILED AT", "TIME", "ERROR"], rows))
        if others := told["num_others_failed"]:
            parts.append(f"{others} more have failed.")
    return "\n\n".join(parts) or "No request has ended in the last five minutes."


def _names(request: Row) -> list[str]:
    return [request["model"], request["version"], request["id"] or "-"]


def _why(request: Row) -> str:
    batch = f"batch of {request['batch_requests']}" if request["batch_requests"] > 1 else ""
    return "; ".join([each for each in (wait_text(request), batch) if each]) or "-"


def _clock(request: Row) -> str:
    return str(request["finished"])[11:19]


def _words(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_WORDS else f"{line[:_MAX_WORDS]}…"
