"""supervisor/upgrade/launch.py: the command that starts what is installed now, and who cannot be replaced."""

import sys
from pathlib import Path

import pytest

from shoal.supervisor.upgrade.launch import Launch, why_not_replaceable


def script(path: Path, first_line: str = "#!/usr/bin/python3", mode: int = 0o755) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{first_line}\n")
    path.chmod(mode)
    return path


def command(*arguments: str) -> list[str]:
    return Launch.of("/old/bin/python", ["python", *arguments], {}).command


def test_a_script_is_run_by_its_own_first_line(tmp_path: Path) -> None:
    """By that of the file which is there at the time of the upgrade."""
    shoal = tmp_path / "current" / "bin"
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    (tmp_path / "current").symlink_to(tmp_path / "1")
    launch = Launch.of("/old/bin/python", ["python", str(shoal / "shoal"), "serve", "--x=1"], {})
    script(tmp_path / "1" / "bin" / "shoal")
    assert launch.command == [str(shoal / "shoal"), "serve", "--x=1"]
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to(tmp_path / "2")
    script(tmp_path / "2" / "bin" / "shoal")
    assert Path(launch.command[0]).resolve() == tmp_path / "2" / "bin" / "shoal"


def test_a_relative_script_is_found_from_where_the_server_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script(tmp_path / "bin" / "shoal")
    assert command("bin/shoal", "serve") == [str(tmp_path / "bin" / "shoal"), "serve"]


def test_anything_else_is_run_by_the_same_interpreter(tmp_path: Path) -> None:
    plain = script(tmp_path / "plain.py", "import shoal")
    not_executable = script(tmp_path / "shoal", mode=0o644)
    for arguments in (["-c", "code"], ["-m", "shoal"], [str(plain)], [str(not_executable)], [str(tmp_path / "none")]):
        assert command(*arguments, "serve") == ["/old/bin/python", *arguments, "serve"]
    assert Launch.of(sys.executable, ["python"], {}).command == [sys.executable]


def test_the_environment_is_that_of_the_start_without_what_is_meant_for_one_process() -> None:
    environment = {"A": "1", "NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "7", "PATH": "/bin"}
    of_one = {"LISTEN_FDS": "2", "LISTEN_PID": "3", "LISTEN_FDNAMES": "http", "WATCHDOG_PID": "3"}
    given = {**environment, **of_one, "SHOAL_UPGRADE": "{}", "SHOAL_UPGRADE_FDS": "3"}
    launch = Launch.of("python", ["python"], given)
    given["A"] = "2"  # a later change of this process's environment
    assert launch.inherited == environment


@pytest.mark.parametrize(
    ("pid", "parent", "name", "sentence"),
    [
        (1, 0, "shoal supervisor", "this server is process 1 of its container"),
        (7, 1, "tini", "'tini', process 1 of this container, ends with the process that it has started"),
        (7, 1, "docker-init", "'docker-init', process 1"),
        (7, 1, "systemd", ""),
        (7, 1, "sleep", ""),  # a server that was upgraded before, or whose shell has ended
        (7, 6, "tini", ""),
    ],
)
def test_a_server_whose_end_is_the_container_s_cannot_be_replaced(
    pid: int, parent: int, name: str, sentence: str
) -> None:
    reason = why_not_replaceable(pid, parent, name)
    assert reason.startswith(sentence)
    assert bool(reason) is bool(sentence)
