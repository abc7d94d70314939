"""recorder/comparing_function.py: a model's own comparison, whatever its code does."""

import faulthandler
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.recorder import comparing_function
from shoal.recorder.comparing_function import ComparingFunction

ONE, OTHER = {"Y": np.array([1.0, 2.0])}, {"Y": np.array([2.0, 1.0])}


def function(tmp_path: Path, source: str) -> ComparingFunction:
    (tmp_path / "compare.py").write_text(source)
    return ComparingFunction(tmp_path / "compare.py")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return None", ""),
        ("return True", ""),
        ("return ''", ""),
        ("return sorted(primary['Y']) == sorted(shadow['Y'])", ""),
        ("return (primary['Y'] < 3).all()", ""),
        ("return False", "compare.py says that the answers differ"),
        ("return f'{inputs}: the order differs'", "compare.py: {}: the order differs"),
        ("return 3", "compare.py returned int, expected None, a bool or a sentence"),
        ("return primary['Z']", "compare.py failed: KeyError: 'Z'"),
        ("import sys; sys.exit(3)", "compare.py failed: SystemExit: 3"),
    ],
)
def test_what_a_function_says(tmp_path: Path, body: str, sentence: str) -> None:
    compare = function(tmp_path, f"def compare(primary, shadow, inputs):\n    {body}\n")
    assert compare.difference(ONE, OTHER, {}) == sentence


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def compare(:", "compare.py failed: SyntaxError: "),
        ("x = 1", "compare.py failed: AttributeError: "),
        ("raise SystemExit", "compare.py failed: SystemExit: "),
        ("def compare(primary):\n    return None\n", "compare.py failed: TypeError: "),
        ("#" * (1 << 21), "compare.py failed: ValueError: it has more than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_function_has_not_shown_that_answers_agree(
    tmp_path: Path, source: str, sentence: str
) -> None:
    assert function(tmp_path, source).difference(ONE, ONE, {}).startswith(sentence)


def test_a_file_that_changes_is_read_again_and_one_that_goes_is_missed(tmp_path: Path) -> None:
    compare = function(tmp_path, "def compare(primary, shadow, inputs):\n    return True\n")
    assert compare.difference(ONE, OTHER, {}) == ""
    (tmp_path / "compare.py").write_text("def compare(primary, shadow, inputs):\n    return 'now they differ'\n")
    assert compare.difference(ONE, OTHER, {}) == "compare.py: now they differ"
    assert [each.name for each in tmp_path.iterdir()] == ["compare.py"], "nothing is written beside it"
    (tmp_path / "compare.py").unlink()
    assert compare.difference(ONE, OTHER, {}).startswith("compare.py failed: FileNotFoundError")


def test_a_function_that_takes_too_long_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing_function, "LIMIT_S", 0.01)
    before = signal.getsignal(signal.SIGALRM)
    compare = function(tmp_path, "def compare(primary, shadow, inputs):\n    while True:\n        pass\n")
    assert compare.difference(ONE, ONE, {}) == "compare.py took longer than 0.01 s"
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_alarm_that_comes_as_the_function_returns_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setitimer = signal.setitimer

    def late(which: int, seconds: float) -> None:
        setitimer(which, 0)
        if not seconds:
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(signal, "setitimer", late)
    cancelled = list[bool]()
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: cancelled.append(True))
    before = signal.getsignal(signal.SIGALRM)
    compare = function(tmp_path, "def compare(primary, shadow, inputs):\n    return True\n")
    try:
        assert compare.difference(ONE, ONE, {}) == "compare.py took longer than 1 s"
        assert cancelled == [True]
        assert signal.getsignal(signal.SIGALRM) is before
    finally:
        monkeypatch.undo()
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def test_one_that_cannot_be_left_ends_the_process(tmp_path: Path) -> None:
    lines = (
        "signal.signal(signal.SIGALRM, signal.SIG_IGN)  # as native code, which heeds none",
        "while True:",
        "  pass",
    )
    function(tmp_path, "\n".join(["import signal", "def compare(*answers):", *[f"  {line}" for line in lines]]))
    source = (
        "from pathlib import Path\n"
        "from shoal.recorder import comparing_function as it\n"
        "it.LIMIT_S, it.HARD_LIMIT_S = 60.0, 1.0\n"  # the first is over for no process that is merely slow
        f"it.ComparingFunction(Path({str(tmp_path / 'compare.py')!r})).difference({{}}, {{}}, {{}})\n"
    )
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert b"compare.py" in ended.stderr, "the log has the place"
