"""shoal/cli/records.py: a recording in other programs' forms."""

import json
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.cli import main, records
from shoal.cli.records import described
from shoal.recorder.entry import Outcome
from shoal.recorder.recorded import RecordedTensor, Recording
from shoal.recorder.segment_file import file_head, pack_frame
from tests.recorder.entries import made, values


def test_a_recording_becomes_a_table(tmp_path: Path) -> None:
    parquet = pytest.importorskip(
        "pyarrow.parquet", reason="NOT CHECKED: --export parquet, since pyarrow is not installed (shoal[parquet])"
    )
    entries = [
        made(key=1, id_="first", parameters={"top_k": 3}), made(key=2, outcome=Outcome.FAILED, status=2),
        made(key=3, outcome=Outcome.PART), made(key=3, start_ns=5, end_ns=9),
    ]  # fmt: skip
    (tmp_path / "all.shoalrec").write_bytes(file_head() + pack_frame(entries))
    table = tmp_path / "all.parquet"
    assert main(["records", str(tmp_path / "all.shoalrec"), "--export", "parquet", "--output", str(table)]) == 0
    first, failed, stream = parquet.read_table(table).to_pylist()
    assert (first["number"], first["model"], first["version"], first["id"]) == (1, "m", 1, "first")
    assert json.loads(first["parameters"]) == {"top_k": 3}
    assert first["inputs"] == [{"name": "IN", "datatype": "FP32", "shape": [1, 2], "data": values(1, 2)}]
    assert first["responses"] == [[{"name": "OUT", "datatype": "FP32", "shape": [1, 2], "data": values(3, 4)}]]
    assert (failed["outcome"], failed["responses"]) == ("failed", [])
    assert failed["error"] is not None
    assert (len(stream["responses"]), stream["total_ns"]) == (2, 4)


def test_bf16_is_exported_in_numbers(tmp_path: Path) -> None:
    (tmp_path / "one.shoalrec").write_bytes(file_head() + pack_frame([made()]))
    (request,) = Recording(tmp_path)
    tensor = RecordedTensor("X", "BF16", (1, 2), struct.pack("<2H", 0x3FC0, 0xC000))
    assert described(replace(request, inputs=(tensor,)), with_values=True)["inputs"][0]["data"] == [1.5, -2]


def test_what_clients_have_sent_does_not_reach_the_terminal_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = made(id_="\x1b[2Jr7\n2", parameters={"\x1b[3J": 1})
    (tmp_path / "one.shoalrec").write_bytes(file_head() + pack_frame([sent]))
    for number in ("", "#1"):
        assert main(["records", f"{tmp_path}/one.shoalrec{number}"]) == 0
        printed = capsys.readouterr().out
        assert "\\x1b[2Jr7\\n2" in printed
        assert "\x1b" not in printed
        assert ("parameter   \\x1b[3J = 1" in printed) is (number == "#1")


def test_names_do_not_reach_the_terminal_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording may have come from another server, or have been made by hand."""
    sent = made(model="m\x1b[2J", tensor="IN\x1b]0;title\x07")
    (tmp_path / "one.shoalrec").write_bytes(file_head() + pack_frame([sent]))
    for number in ("", "#1"):
        assert main(["records", f"{tmp_path}/one.shoalrec{number}"]) == 0
        printed = capsys.readouterr().out
        assert "\x1b" not in printed
        assert "m\\x1b[2J" in printed
        assert ("IN\\x1b]0;title\\x07  FP32" in printed) is (number == "#1")
    (request,) = Recording(tmp_path)
    assert "header      a\\x1b: b" in records._shown(replace(request, headers={"a\x1b": "b"}))


def test_without_a_library_the_command_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "all.shoalrec").write_bytes(file_head() + pack_frame([made()]))
    assert main(["records", str(tmp_path), "--export", "parquet", "--output", str(tmp_path / "table")]) == 1
    assert "pip install 'shoal[parquet]'" in capsys.readouterr().err
