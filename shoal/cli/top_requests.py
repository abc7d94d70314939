"""`shoal top --requests`: the slowest and the failed requests of a server's last minutes, each with its time as a bar.
Pure."""

import sys
from textwrap import wrap

from shoal.cli.cells import width as width_of
from shoal.cli.colour import printable
from shoal.cli.models import LEAST_NAME, cut, table
from shoal.cli.remote import Row
from shoal.cli.timing_text import LETTERS, bar, ms, wait_text

#: The most slow requests, and the most failed ones, that are shown (ours: as many as a screen holds).
NUM_SHOWN = 15
_HEAD = ["MODEL", "VERSION", "ID"]
_BAR_WIDTH, _LEAST_BAR = 30, 8
_LEAST_ID = 12
#: The most characters that are shown of an error.
_MAX_WORDS = 100


def as_text(told: Row, columns: int = sys.maxsize) -> str:
    """A text about the requests in an answer to GET /v2/debug/requests. In a table that would be wider than `columns`,
    the words of the last column are on lines of their own, bars are shorter, and names and ids are cut if need be."""
    parts = []
    if slowest := told["slowest"]:
        rows = [[*_names(each), ms(each["total_ns"])] for each in slowest]
        words = [_why(each) for each in slowest]
        full = [[*row, _bar(each, _BAR_WIDTH), why] for row, each, why in zip(rows, slowest, words, strict=True)]
        text = table([*_HEAD, "TIME", "WHERE IT WENT", "WHY"], full)
        if not _fits(text, columns):
            head, rows = _narrow([*_HEAD, "TIME"], rows, columns - _LEAST_BAR - 2)
            width = min(_BAR_WIDTH, max(_LEAST_BAR, columns - _width(table(head, rows)) - 2))
            rows = [[*row, _bar(each, width)] for row, each in zip(rows, slowest, strict=True)]
            text = _with_words([*head, "WHERE"], rows, words, columns)
        shown = {name for each in slowest for name in each["phases"]}
        legend = ", ".join(f"{letter} {name}" for name, letter in LETTERS.items() if name in shown)
        parts.append(f"{text}\n\n{legend}")
    if failed := told["failed"]:
        rows = [[*_names(each), _clock(each), ms(each["total_ns"])] for each in failed]
        words = [_words(each["error"]) for each in failed]
        head = [*_HEAD, "FAILED AT", "TIME"]
        text = table([*head, "ERROR"], [[*row, error] for row, error in zip(rows, words, strict=True)])
        if not _fits(text, columns):
            text = _with_words(*_narrow(head, rows, columns), words, columns)
        parts.append(text)
        if others := told["num_others_failed"]:
            parts.append(f"{others} more have failed.")
    return "\n\n".join(parts) or "No request has ended in the last five minutes."


def _fits(text: str, columns: int) -> bool:
    return _width(text) <= columns


def _width(text: str) -> int:
    return max(map(width_of, text.splitlines()))


def _narrow(head: list[str], rows: list[list[str]], columns: int) -> tuple[list[str], list[list[str]]]:
    """A table's head and rows, with names and ids cut if the table is wider than `columns`."""
    if _fits(table(head, rows), columns):
        return head, rows
    short = [[cut(printable(model), LEAST_NAME), version, cut(printable(number), _LEAST_ID), *more]
             for model, version, number, *more in rows]  # fmt: skip
    return ["MODEL", "VER", *head[2:]], short


def _with_words(head: list[str], rows: list[list[str]], words: list[str], columns: int) -> str:
    """A table as text, with a row's words on the lines below the row."""
    first, *lines = table(head, rows).splitlines()
    shown = [first]
    for line, text in zip(lines, words, strict=True):
        shown.append(line)
        if text != "-":
            shown += wrap(printable(text), columns, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(shown)


def _names(request: Row) -> list[str]:
    return [request["model"], request["version"], request["id"] or "-"]


def _bar(request: Row, width: int) -> str:
    return bar(request["phases"], request["total_ns"], width)


def _why(request: Row) -> str:
    batch = f"batch of {request['batch_requests']}" if request["batch_requests"] > 1 else ""
    return "; ".join([each for each in (wait_text(request), batch) if each]) or "-"


def _clock(request: Row) -> str:
    return str(request["finished"])[11:19]


def _words(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_WORDS else f"{line[:_MAX_WORDS]}…"
