"""shoal key: the key is printed once, its digest goes into the file."""

import json
import stat
from pathlib import Path

import pytest

from shoal.api_keys import KeyLimits, KeyRing, parse_keys
from shoal.cli import main


def test_a_key_and_its_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "shop", "--scope=infer", "--scope=metrics", "--model=res*"]) == 0
    printed = capsys.readouterr()
    found = KeyRing(parse_keys(printed.err.encode())).find(printed.out.strip())
    assert found is not None
    assert (found.name, found.scopes, found.models) == ("shop", ("infer", "metrics"), ("res*",))


def test_limits_are_members_of_the_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "trial", "--rate=2.5", "--burst=10", "--max-in-flight=3"]) == 0
    printed = capsys.readouterr()
    found = KeyRing(parse_keys(printed.err.encode())).find(printed.out.strip())
    assert found is not None
    assert found.limits == KeyLimits(2.5, 10, 3)
    assert (found.limits.requests_at_once, KeyLimits(0.5).requests_at_once, KeyLimits(7.9).requests_at_once) == (
        10,
        1,
        7,
    )
    assert found.is_limited
    assert not found.is_plain


def test_a_file_gets_more_and_more_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.json"
    for name in ("one", "two"):
        assert main(["key", name, f"--file={path}"]) == 0
        assert KeyRing(parse_keys(path.read_bytes())).find(capsys.readouterr().out.strip()) is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(json.loads(path.read_bytes())) == ["one", "two"]
    before = path.read_bytes()
    assert main(["key", "two", f"--file={path}"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"'{path}' is not changed: it has a key 'two' already\n")
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    assert main(["key", "two", f"--file={loop}"]) == 2
    assert capsys.readouterr().err == f"'{loop}' is not changed: Too many levels of symbolic links\n"
    loop.unlink()
    assert path.read_bytes() == before
    path.write_bytes(b"{")
    assert main(["key", "three", f"--file={path}"]) == 2
    assert path.read_bytes() == b"{"
    assert [each.name for each in tmp_path.iterdir()] == ["keys.json"]
