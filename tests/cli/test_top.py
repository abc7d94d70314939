"""`shoal top`: the figures between two samples at a server's statistics, and how they are shown."""

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import Any

import pytest

from shoal.cli.top import Figures, StatisticsSample, as_text, compare, fitted, top
from shoal.cli.top_requests import as_text as requests_text
from tests.cli.answering import Answering

STATS = "GET /v2/models/stats"
PARTS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


def row(name: str, rows: int = 0, batches: int = 0, **parts: tuple[int, int]) -> dict[str, Any]:
    """A model's statistics; parts are counts and times in ms."""
    stats = {part: {"count": 0, "ns": 0} for part in PARTS}
    stats |= {part: {"count": number, "ns": ms * 1_000_000} for part, (number, ms) in parts.items()}
    return {"name": name, "version": "1", "inference_count": rows, "execution_count": batches, "inference_stats": stats}


def sample(time_s: float, *rows: dict[str, Any]) -> StatisticsSample:
    return StatisticsSample(time_s, {(each["name"], each["version"]): each for each in rows})


BUSY = row(
    "digits", 100, 10,
    success=(50, 200), fail=(1, 1), queue=(50, 100), compute_input=(50, 5),
    compute_infer=(50, 80), compute_output=(50, 5),
)  # fmt: skip
LATER = row(
    "digits", 180, 20,
    success=(90, 400), fail=(5, 9), queue=(90, 180), compute_input=(90, 9),
    compute_infer=(90, 152), compute_output=(90, 9),
)  # fmt: skip


def test_the_figures_are_those_of_the_interval() -> None:
    (figures,) = compare(sample(10, BUSY), sample(12, LATER))
    assert figures == Figures("digits", "1", 20.0, 2.0, 8.0, 2.0, 2.0, 5.0, None)


def test_a_silent_interval_has_rates_and_no_means() -> None:
    assert compare(sample(10, BUSY), sample(11, BUSY)) == [Figures("digits", "1", 0, 0, None, None, None, None, None)]


@pytest.mark.parametrize("before", [[], [row("digits", 900, 90, success=(900, 900))]], ids=["new", "loaded anew"])
def test_a_version_that_came_in_between_counts_from_zero(before: list[dict[str, Any]]) -> None:
    (figures,) = compare(sample(0, *before), sample(1, BUSY))
    assert (figures.requests_per_s, figures.rows_per_batch, figures.total_ms) == (50, 10, 4)


def test_the_busiest_comes_first_and_a_cache_shows() -> None:
    cached = row("cached", success=(100, 10), cache_hit=(75, 1), cache_miss=(25, 9))
    figures = compare(sample(0), sample(1, BUSY, row("idle"), cached))
    assert [each.model for each in figures] == ["cached", "digits", "idle"]
    assert [each.cached_share for each in figures] == [0.75, None, None]


def test_figures_are_a_table() -> None:
    later = sample(12, LATER, row("idle"))
    memory = {"memory_bytes": 300 << 20, "gpu_memory_bytes": {"GPU 0": 5 << 30, "GPU 1": 1 << 30}}
    shown = as_text(compare(sample(10, BUSY, row("idle")), later._replace(memory={("digits", "1"): memory})))
    assert [" ".join(line.split()) for line in shown.splitlines()] == [
        "MODEL VERSION REQUESTS/S FAILED/S ROWS/BATCH QUEUE COMPUTE TOTAL CACHED MEMORY GPUS",
        "digits 1 20.0 2.0 8.0 2.00 ms 2.00 ms 5.00 ms - 300 MiB 6144 MiB",
        "idle 1 0.0 0.0 - - - - - - -",
    ]
    assert as_text([]) == "The server has no models that are ready."


def test_the_command_looks_as_often_as_it_is_told(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    for each in (BUSY, BUSY, LATER):
        server.answer(STATS, {"model_stats": [each]})
    times, slept = iter([0.0, 2.0, 4.0]), list[float]()
    flags = ["--count=2", "--interval=2", "--json", f"--url={server.url}"]
    assert top(flags, environ={}, clock=lambda: next(times), sleep=slept.append) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert slept == [2.0, 2.0]
    assert (first[0]["requests_per_s"], second[0]["requests_per_s"]) == (0, 20)
    assert first[0]["memory_mib"] is None  # of a server that knows nothing of instances, as Triton


def test_the_memory_of_each_model_is_asked_for(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer(STATS, {"model_stats": [BUSY]})
    version = {"version": "1", "memory_bytes": 3 << 20, "gpu_memory_bytes": {}}
    server.answer("GET /v2/repository/models/digits/instances", {"model": "digits", "versions": [version]})
    assert top(["--count=1", "--json", f"--url={server.url}"], environ={}, sleep=lambda _: None) == 0
    (figures,) = json.loads(capsys.readouterr().out)
    assert (figures["memory_mib"], figures["gpu_memory_mib"]) == (3, None)


def test_a_model_that_is_not_there_is_refused(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer(STATS, {"model_stats": [BUSY]})
    assert top(["nope", "--count=1", f"--url={server.url}"], environ={}, sleep=lambda _: None) == 2
    assert capsys.readouterr() == ("", "No version of model 'nope' is ready. 'shoal models' says why.\n")


def test_a_model_that_is_loaded_again_is_watched_on(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    for rows in ([BUSY], [], [BUSY]):
        server.answer(STATS, {"model_stats": rows})
    arguments = ["digits", "--count=2", f"--url={server.url}", "--json"]
    assert top(arguments, environ={}, sleep=lambda _: None) == 0
    unloaded, loaded = map(json.loads, capsys.readouterr().out.splitlines())
    assert (unloaded, [each["model"] for each in loaded]) == ([], ["digits"])


def request(model: str, **more: Any) -> dict[str, Any]:
    """A request as GET /v2/debug/requests lists it."""
    return {
        "model": model, "version": "1", "id": "", "finished": "2026-11-29T01:02:03.456+00:00", "error": None,
        "phases": {"parse": 100_000, "queue": 800_000, "compute": 100_000}, "queue": {"wake": 800_000},
        "total_ns": 1_000_000, "batch_requests": 1, "batch_rows": 1, "ahead_requests": 0, "ahead_rows": 0,
        "ahead_ns": 0, "is_overtaken": False, "instance": "m_0_0", "pid": 4711, "steps": [], **more,
    }  # fmt: skip


def test_single_requests_are_shown_with_where_their_time_went(
    server: Answering, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = request(
        "digits", id="a7", batch_requests=3, queue={"busy": 700_000, "wake": 100_000}, ahead_requests=2, ahead_rows=8,
        ahead_ns=650_000, is_overtaken=True,
    )  # fmt: skip
    failed = request("mlp", id="\x1b[2J", error="it is\nwrong")
    told = {"slowest": [slow, request("mlp")], "failed": [failed], "num_others_failed": 5}
    server.answer("GET /v2/debug/requests?model=digits&limit=15", told)
    flags = ["--requests", "--model=digits", "--count=1", f"--url={server.url}"]
    assert top(flags, environ={}, sleep=lambda _: None) == 0
    shown = capsys.readouterr().out
    assert "p" * 3 + "·" * 24 + "#" * 3 in shown
    assert (
        "waited 0.700 ms for a busy instance, 0.100 ms for the worker to take it; the batch ahead had 2 requests, "
        "8 rows, and took 0.650 ms; later requests of a higher priority went first; batch of 3"
    ) in shown
    assert "p parse, · queue, # compute" in shown
    assert shown.splitlines()[-3].split() == ["mlp", "1", "\\x1b[2J", "01:02:03", "1.000", "ms", "it", "is", "wrong"]
    assert shown.splitlines()[-1] == "5 more have failed."


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_single_requests_fit_a_terminal(columns: int) -> None:
    slow = request(
        "digits_of_a_long_name", id="01234567-89ab-cdef-0123-456789abcdef", queue={"busy": 700_000}, total_ns=3 * 10**9
    )
    failed = request("digits_of_a_long_name", id="01234567-89ab-cdef-0123-456789abcdef", error="it is \x1b wrong " * 9)
    lines = requests_text({"slowest": [slow] * 2, "failed": [failed], "num_others_failed": 0}, columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert sum("waited 0.700 ms for a busy instance" in line for line in lines) == 2
    assert " ".join(" ".join(lines).split()).count("it is \\x1b wrong") == 7  # of the first hundred characters
    head = {60: "MODEL VER ID TIME WHERE", 200: "MODEL VERSION ID TIME WHERE IT WENT WHY"}
    assert " ".join(lines[0].split()) == head.get(columns, " ".join(lines[0].split()))


def test_single_requests_are_looked_at_again(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = {"slowest": [], "failed": [], "num_others_failed": 0}
    for told in (nothing, {**nothing, "slowest": [request("mlp")]}):
        server.answer("GET /v2/debug/requests?model=&limit=15", told)
    slept = list[float]()
    flags = ["--requests", "--count=2", f"--url={server.url}"]
    assert top(flags, environ={}, sleep=slept.append) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "No request has ended in the last five minutes."
    assert any(line.startswith("mlp") for line in others)
    assert slept == [1.0]


@pytest.mark.parametrize(
    ("columns", "rows", "shown"),
    [
        (80, 5, "MODEL  VERSION\na      1\nb      1\nc      1"),
        (80, 4, "MODEL  VERSION\na      1\n… and 2 lines more"),
        (9, 3, "MODEL  VE\n… and 3 l"),
        (80, 1, "MODEL  VERSION\na      1\nb      1\nc      1"),
    ],
)
def test_a_table_is_cut_to_the_terminal(columns: int, rows: int, shown: str) -> None:
    assert fitted("MODEL  VERSION\na      1\nb      1\nc      1", columns, rows) == shown


def test_a_line_is_cut_by_cells() -> None:
    assert fitted("魚の群れ  1", 5, 5) == "魚の"


NARROW = [
    Figures("digits", "1", 1234.5, 0.0, 7.5, 0.72, 12.09, 13.1, None, 512.0),
    Figures("text_classification_multilingual_large", "12", 0.0, 1.5, None, None, None, None, None, 7.0),
]


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (
            80,
            """\
MODEL                VER  REQ/S   FAIL/S  ROWS  QUEUE   COMPUTE  TOTAL    MEMORY
digits               1    1234.5  0.0     7.5   0.72ms  12.09ms  13.10ms  512MiB
text_clas…ual_large  12   0.0     1.5     -     -       -        -        7MiB""",
        ),
        (
            60,
            """\
MODEL             VER  REQ/S   FAIL/S  ROWS  QUEUE   TOTAL
digits            1    1234.5  0.0     7.5   0.72ms  13.10ms
text_cla…l_large  12   0.0     1.5     -     -       -""",
        ),
        (
            40,
            """\
MODEL               VER  REQ/S   TOTAL
digits              1    1234.5  13.10ms
text_clas…al_large  12   0.0     -""",
        ),
    ],
)
def test_a_narrow_terminal_is_shown_what_it_has_room_for(columns: int, shown: str) -> None:
    text = as_text(NARROW, columns)
    assert text == shown
    assert max(map(len, text.splitlines())) <= columns


def test_the_head_has_room_beside_a_short_name() -> None:
    shown = [Figures("m", "1", 1234.5, 0.5, 8.0, 12.25, 100.5, 113.25, 0.5, 1500.0, 20000.0)]
    for columns in range(40, 130):
        assert max(map(len, as_text(shown, columns).splitlines())) <= columns


def test_a_wide_terminal_is_shown_everything() -> None:
    assert as_text(NARROW, 200) == as_text(NARROW)
    assert max(map(len, as_text(NARROW, 10).splitlines())) < 40


def test_a_small_terminal_is_not_scrolled(server: Answering) -> None:
    server.answer(STATS, {"model_stats": [row(f"m{number}") for number in range(30)]})
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 40, 0, 0))
    script = "import sys; from shoal.cli import main; raise SystemExit(main(sys.argv[1:]))"
    flags = ["top", "--interval=0.01", "--count=2", f"--url={server.url}"]
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen([sys.executable, "-c", script, *flags], stdout=terminal, env=environ) as watched:
        os.close(terminal)
        told = b""
        with contextlib.suppress(OSError):  # EIO: the terminal's last user has gone
            while data := os.read(reader, 4096):
                told += data
    os.close(reader)
    assert watched.returncode == 0
    names = sorted(f"m{number}" for number in range(30))
    first = told.decode().partition("\x1b[H\x1b[J")[2].splitlines()[:9]
    assert first[0] == "MODEL  VER  REQ/S  FAIL/S  QUEUE  TOTAL"
    assert [line.split() for line in first[1:8]] == [[name, "1", "0.0", "0.0", "-", "-"] for name in names[:7]]
    assert first[8] == "… and 23 lines more"


def test_ctrl_c_is_the_end(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer(STATS, {"model_stats": []})

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    assert top([f"--url={server.url}"], environ={}, sleep=interrupt) == 0
    assert capsys.readouterr() == ("", "")


def test_what_is_no_model_server(server: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer(STATS, {"something": "else"})
    assert top(["--count=1", f"--url={server.url}"], environ={}, sleep=lambda _: None) == 3
    assert "is not a model server" in capsys.readouterr().err
