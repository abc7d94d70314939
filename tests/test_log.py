"""The lines scripts and log shippers parse, byte by byte, and which of them goes where."""

import fcntl
import json
import logging
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal import log

#: 2024-05-20 20:03:25.829575 UTC
CREATED = 1716235405.829575


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The logger as it was, since it belongs to the whole process."""
    before = (log.logger.level, log.logger.propagate)
    yield
    for handler in tuple(log.logger.handlers):
        log.logger.removeHandler(handler)
    log.logger.setLevel(before[0])
    log.logger.propagate = before[1]


def record(level: int, message: object, *arguments: object) -> logging.LogRecord:
    made = logging.LogRecord("shoal", level, "/somewhere/lifecycle.py", 441, message, arguments, None)
    made.created, made.process = CREATED, 3355
    return made


@pytest.mark.parametrize(
    ("log_format", "level", "line"),
    [
        ("default", logging.INFO, 'I0520 20:03:25.829575 3355 lifecycle.py:441] "loading: simple:1"'),
        ("default", logging.WARNING, 'W0520 20:03:25.829575 3355 lifecycle.py:441] "loading: simple:1"'),
        ("default", logging.ERROR, 'E0520 20:03:25.829575 3355 lifecycle.py:441] "loading: simple:1"'),
        ("default", logging.CRITICAL, 'E0520 20:03:25.829575 3355 lifecycle.py:441] "loading: simple:1"'),
        ("default", logging.DEBUG, 'I0520 20:03:25.829575 3355 lifecycle.py:441] "loading: simple:1"'),
        ("ISO8601", logging.WARNING, '2024-05-20T20:03:25Z W 3355 lifecycle.py:441] "loading: simple:1"'),
    ],
)
def test_a_line(log_format: str, level: int, line: str) -> None:
    assert log.TritonFormatter(log_format).format(record(level, "loading: %s:%d", "simple", 1)) == line


@pytest.mark.parametrize(
    ("message", "printed"),
    [
        ('say "hi"', r'"say \"hi\""'),
        ("two\nlines", r'"two\nlines"'),
        ("a\\b\tc\x1b[2J", r'"a\\b\tc\u001b[2J"'),
        ("größe", '"größe"'),
        ("half \ud800", r'"half \ud800"'),
    ],
)
def test_a_message_is_one_json_string(message: str, printed: str) -> None:
    line = log.TritonFormatter("default").format(record(logging.INFO, message))
    assert line == f"I0520 20:03:25.829575 3355 lifecycle.py:441] {printed}"
    line.encode()


def test_no_line_has_the_password_of_a_url() -> None:
    made = record(logging.INFO, "asking %s", "http://user:secret@host:80/")
    assert log.TritonFormatter("default").format(made).endswith('"asking http://user:***@host:80/"')
    assert json.loads(log.JsonFormatter().format(made))["message"] == "asking http://user:***@host:80/"


def test_escaping_can_be_switched_off() -> None:
    line = log.TritonFormatter("default", escape=False).format(record(logging.INFO, 'say "hi"'))
    assert line == 'I0520 20:03:25.829575 3355 lifecycle.py:441] say "hi"'


def test_a_table_follows_its_heading() -> None:
    rows = [("simple", 1, "READY"), ("broken", "1", "UNAVAILABLE: Internal: no such file")]
    table = log.table(("Model", "Version", "Status"), rows)
    assert log.TritonFormatter("default").format(record(logging.INFO, table)) == (
        "I0520 20:03:25.829575 3355 lifecycle.py:441] \n"
        "+--------+---------+-------------------------------------+\n"
        "| Model  | Version | Status                              |\n"
        "+--------+---------+-------------------------------------+\n"
        "| simple | 1       | READY                               |\n"
        "| broken | 1       | UNAVAILABLE: Internal: no such file |\n"
        "+--------+---------+-------------------------------------+\n"
    )


def test_a_table_without_rows_has_two_rules() -> None:
    assert log.table(("Backend",), [], heading="Backends:") == (
        "Backends:\n+---------+\n| Backend |\n+---------+\n+---------+\n"
    )


def test_no_cell_can_draw_a_row() -> None:
    text = log.table(("Model", "Status"), [("m", "one\n| fake | READY |\x1b[2J"), ("", "")])
    assert text == (
        "\n"
        "+-------+-------------------------+\n"
        "| Model | Status                  |\n"
        "+-------+-------------------------+\n"
        "| m     | one                     |\n"
        "|       | | fake | READY |\\x1b[2J |\n"
        "|       |                         |\n"
        "+-------+-------------------------+\n"
    )


def test_a_long_cell_of_a_table_is_wrapped() -> None:
    reason = " ".join(["unable to load the model"] * 20)
    lines = log.table(("Model", "Status"), [("m", reason), ("other", "READY")]).splitlines()
    assert max(map(len, lines)) <= 120
    cells = [line.split("|")[2].strip() for line in lines if line.startswith(("| m ", "|    "))]
    assert " ".join(cells) == reason
    assert any(line.startswith("| other | READY ") for line in lines)


def test_a_traceback_is_indented() -> None:
    made = record(logging.ERROR, "failed")
    try:
        raise ValueError("first\nI0520 second")
    except ValueError:
        made.exc_info = sys.exc_info()
    head, *trace = log.TritonFormatter("default").format(made).split("\n")
    assert head.endswith('] "failed"')
    assert trace[0] == "    Traceback (most recent call last):"
    assert trace[-2:] == ["    ValueError: first", "    I0520 second"]
    assert all(line.startswith("    ") for line in trace)


def speak() -> None:
    log.logger.log(log.verbose(2), "verbose 2")
    log.logger.log(log.verbose(1), "verbose 1")
    log.logger.info("info")
    log.logger.warning("warning")
    log.logger.getChild("server").error("error")


@pytest.mark.parametrize(
    ("switches", "out", "err"),
    [
        ({}, ["info"], ["warning", "error"]),
        ({"log_verbose": 1}, ["verbose 1", "info"], ["warning", "error"]),
        ({"log_verbose": 2}, ["verbose 2", "verbose 1", "info"], ["warning", "error"]),
        ({"log_verbose": 99, "log_info": False}, ["verbose 2", "verbose 1"], ["warning", "error"]),
        ({"log_info": False}, [], ["warning", "error"]),
        ({"log_warning": False}, ["info"], ["error"]),
        ({"log_error": False}, ["info"], ["warning"]),
    ],
    ids=str,
)
def test_levels_and_streams(
    switches: dict[str, int], out: list[str], err: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure()
    log.configure(**switches)  # type: ignore[arg-type]  # the later call counts, and nothing is printed twice
    speak()
    printed = capsys.readouterr()
    assert [line.split('"')[1] for line in printed.out.splitlines()] == out
    assert [line.split('"')[1] for line in printed.err.splitlines()] == err


def test_configure_takes_the_format_and_triton_s_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_SERVER_ESCAPE_LOG_MESSAGES", "0")
    log.configure(log_format="ISO8601")
    log.logger.info("ready")
    line = capsys.readouterr().out
    assert line[10] == "T"
    assert line.endswith("] ready\n")
    assert " test_log.py:" in line


#: Says more than the pipe on its stderr takes, then waits until it is read, and says something more.
TALKER = """
import fcntl, sys
from shoal import log
fcntl.fcntl(2, fcntl.F_SETPIPE_SZ, 4096)
log.configure()
for number in range(500):
    log.logger.warning("%d", number)
log.logger.warning(log.LaidOutText("long\\n" * 2000))
log.print_line("unread")
sys.stdin.read(1)
log.logger.warning("heard")
"""


def test_no_process_waits_for_a_log_that_is_not_read() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TALKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as talker:
        assert talker.stdin is not None
        assert talker.stdout is not None
        assert talker.stderr is not None
        assert talker.stdout.readline() == b"unread\n"  # it has said all, though not a byte of its log was read
        lines = b""
        while b"500\n" not in lines and select.select([talker.stderr], [], [], 0)[0]:
            lines += os.read(talker.stderr.fileno(), 4096)
        talker.stdin.write(b".")
        talker.stdin.close()
        lines += talker.stderr.read()
        assert talker.wait() == 0
    *said, lost, last = [line.split('"')[1] for line in lines.decode().splitlines() if line]
    assert said == [str(number) for number in range(len(said))]
    assert lost == f"{501 - len(said)} messages are lost here: the log was not read"
    assert last == "heard"


def test_a_cut_message_ends_where_the_account_begins() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as stream:
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        handler = log.PatientHandler(stream)
        handler.emit(record(logging.INFO, log.LaidOutText("x" * 9000)))
        cut = reader.read1()
        handler.emit(record(logging.INFO, "after"))
        rest = reader.read1().decode().splitlines()
    assert len(cut) == 4096
    assert rest[0] == ""
    assert "1 messages are lost here" in rest[1]
    assert rest[2:] == ["after"]


def test_a_reader_who_has_gone_costs_nothing_but_the_lines() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        assert not log.put(stream, "unheard\n")


#: Writes by every way there is: the log, print, a child, and a descriptor.
WRITER = """
import os, subprocess, sys
from shoal import log
log.to_file(sys.argv[1])
log.configure()
log.logger.info("info")
log.logger.error("error")
print("printed", flush=True)
subprocess.run([sys.executable, "-c", "import sys; print('child'); print('child', file=sys.stderr)"])
if len(sys.argv) > 2:
    os.truncate(sys.argv[1], 0)  # as logrotate's copytruncate
os.write(2, b"last\\n")
"""


def write(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", WRITER, *arguments], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_log_file_takes_everything_behind_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    write(str(path))
    lines = [line.split('"')[1] if '"' in line else line for line in path.read_text().splitlines()]
    assert lines == ["before", "info", "error", "printed", "child", "child", "last"]


def test_a_log_file_that_is_truncated_has_no_hole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(str(path), "truncate")
    assert path.read_bytes() == b"last\n"
    assert path.stat().st_mode & 0o137 == 0


def test_a_log_file_that_cannot_be_opened(tmp_path: Path) -> None:
    for path, error in ((tmp_path / "none" / "log", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error):
            log.to_file(str(path))


def test_a_block_quotes_lines_below_its_heading_and_nothing_in_them_moves_the_cursor() -> None:
    assert log.block("it wrote:", "one\n  two\x1b[2J\n") == "it wrote:\n    one\n      two\\x1b[2J"


def json_of(**more: object) -> dict[str, object]:
    made = record(logging.WARNING, "said \x1b[2J %s", "\ud800")
    for name, value in more.items():
        setattr(made, name, value)
    line = log.JsonFormatter().format(made)
    assert line.isascii()
    assert "\x1b" not in line
    assert line.encode().startswith(log.JSON_START)
    parsed: dict[str, object] = json.loads(line)
    return parsed


def test_a_line_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_context", {})
    log.describe("worker", model="simple", version="1", instance="simple_0_0")
    assert json_of(request_id="r7") == {
        "time": "2024-05-20T20:03:25.829575Z", "level": "warning", "pid": 3355, "process": "worker",
        "model": "simple", "version": "1", "instance": "simple_0_0", "request_id": "r7",
        "place": "lifecycle.py:441", "message": "said \x1b[2J \ud800",
    }  # fmt: skip
    log.describe("supervisor")
    assert json_of()["process"] == "supervisor"


def test_a_traceback_is_a_member_of_its_line() -> None:
    made = record(logging.ERROR, "failed")
    try:
        raise ValueError("no")
    except ValueError:
        made.exc_info = sys.exc_info()
    parsed = json.loads(log.JsonFormatter().format(made))
    assert parsed["message"] == "failed"
    assert parsed["exception"].endswith("ValueError: no")


#: Every way in which a process may write while its log is JSON: a table, an uncaught exception, gunicorn's line.
JSON_TALKER = """
import logging
from shoal import log
log.describe("road")
log.configure(log_format="json")
gunicorn = logging.getLogger("gunicorn.error")
gunicorn.propagate = False
gunicorn.addHandler(log.ForwardingHandler())
log.logger.info(log.table(("Model",), [("simple",)]))
log.print_line("Signal (15) received.")
gunicorn.warning("Invalid request from ip=%s", "192.0.2.1")
raise SystemError("at the end")
"""


def test_all_lines_of_a_process_are_json() -> None:
    done = subprocess.run([sys.executable, "-c", JSON_TALKER], capture_output=True, check=False)
    lines = [json.loads(line) for line in (done.stdout + done.stderr).splitlines()]
    assert [(each["level"], each["process"]) for each in lines] == [
        ("info", "road"), ("info", "road"), ("warning", "road"), ("error", "road"),
    ]  # fmt: skip
    assert lines[0]["message"].splitlines()[2] == "| Model  |"
    assert [each["message"] for each in lines[1:]] == [
        "Signal (15) received.", "Invalid request from ip=192.0.2.1", "the process ends: at the end",
    ]  # fmt: skip


def test_a_process_without_streams_logs_nothing_and_goes_on() -> None:
    source = "from shoal import log; log.configure(); log.logger.error('x'); log.print_line('y')"
    done = subprocess.run(["sh", "-c", f'exec "$0" -c "{source}" >&- 2>&-', sys.executable], check=False)
    assert done.returncode == 0
