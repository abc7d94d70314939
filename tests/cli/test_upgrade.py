"""The verb `upgrade`: which server is meant, and sentences where none is. Real upgrades: end_to_end/test_upgrade.py."""

from pathlib import Path

import pytest

from shoal.cli import upgrade

TABLE = """Num       RefCount Protocol Flags    Type St Inode Path
ffff: 00000002 00000000 00010000 0005 01 1234 @shoal-4711-{0}
ffff: 00000002 00000000 00010000 0005 01 1235 @shoal-42-{0}
ffff: 00000003 00000000 00000000 0005 03 1236 @shoal-42-{0}
ffff: 00000003 00000000 00000000 0005 03 1237 @shoal-x-{0}
ffff: 00000003 00000000 00000000 0005 03 1238 /run/shoal-7-{0}
ffff: 00000003 00000000 00000000 0001 03 1239
""".format("0123456789abcdef" * 2)
ADDRESS = "@shoal-{}-" + "0123456789abcdef" * 2


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, table: str, *arguments: str) -> str:
    """What it says on stderr; it exits with 1."""
    monkeypatch.setattr(Path, "read_text", lambda path, **_how: table if str(path) == "/proc/net/unix" else "no number")
    assert upgrade.upgrade(arguments, environ={}) == 1
    return capsys.readouterr().err


def test_servers_are_found_by_their_sockets() -> None:
    assert upgrade.servers(TABLE) == {4711: ADDRESS.format(4711), 42: ADDRESS.format(42)}


@pytest.mark.parametrize(
    ("table", "arguments", "sentence"),
    [
        ("", [], "no Shoal server runs here; start one"),
        (TABLE, [], "several servers run here; say which one by --pid:\n  42"),
        (TABLE, ["--pid=7"], "process 7 is no Shoal server of this version or later"),
        (TABLE, ["--pid-file=/x/pid"], "--pid-file: '/x/pid' has no pid.\n"),
        (TABLE, ["--pid=42", "--pid-file=/x/pid"], "not allowed with"),
        (TABLE, ["--nonsense"], "unrecognized option"),
        (TABLE, ["--pid=42"], "process 42 cannot be asked: Connection refused"),
    ],
)
def test_what_cannot_be_asked(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    table: str,
    arguments: list[str],
    sentence: str,
) -> None:
    said = run(capsys, monkeypatch, table, *arguments)
    assert sentence in said
    assert said.endswith("'shoal upgrade --help' explains it.\n")
