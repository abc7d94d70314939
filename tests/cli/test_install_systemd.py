"""The verb `install-systemd`: a unit with this machine's paths, and sentences where there can be none."""

import os
import pwd
import re
import shlex
import sys
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.cli.install_systemd import _is_in_a_home, install, quote

ME = pwd.getpwuid(os.getuid()).pw_name


def run(*arguments: str, **environ: str) -> int:
    return install(arguments, environ=environ)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, **environ: str) -> str:
    """The first line of what it says on stderr."""
    assert run(*arguments, **environ) == 1
    printed = capsys.readouterr()
    sentence, usage, _ = printed.err.split("\n", 2)
    assert (printed.out, usage) == (
        "",
        "Usage: shoal install-systemd --model-repository <directory or URL> [options] [-- serve flags]",
    )
    return sentence


def settings(unit: str) -> dict[str, str]:
    lines = [line for line in unit.splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_the_unit_has_the_paths_the_user_and_the_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more models").mkdir()
    monkeypatch.chdir(tmp_path)
    arguments = ["--model-repository", ".", "--model-repository=more models", "--user", ME, "--output", "-"]
    assert main(["install-systemd", *arguments, "--", "--exit-timeout-secs=7", "--http-port", "9000"]) == 0
    unit = settings(capsys.readouterr().out)
    assert unit["Environment"] == "SHOAL_LOG_FORMAT=json"
    shoal = Path(sys.executable).with_name("shoal")
    assert unit["ExecStart"] == (
        f'{shoal} serve --model-repository={tmp_path} "--model-repository={tmp_path}/more models" '
        "--exit-timeout-secs=7 --http-port 9000"
    )
    assert (unit["User"], unit["TimeoutStopSec"]) == (ME, "22")
    assert not [value for value in unit.values() if re.search("@[A-Z_]+@", value)]


def test_a_repository_in_cloud_storage_keeps_its_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model-repository", "s3://minio:9000/bucket/models", "--user", ME, "--output", "-") == 0
    unit = settings(capsys.readouterr().out)
    assert unit["ExecStart"].endswith("serve --model-repository=s3://minio:9000/bucket/models")
    assert run("--model-repository", "s3://", "--user", ME, "--output", "-") == 1
    assert "it names no bucket" in capsys.readouterr().err


def test_what_follows_from_how_the_server_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--model-repository", str(tmp_path), "--user", ME, "--output", "-")
    unit = settings(capsys.readouterr().out)
    expected = {
        "Type": "notify", "NotifyAccess": "main", "KillMode": "mixed", "OOMPolicy": "continue", "LimitCORE": "0",
        "Restart": "on-failure", "TimeoutStopSec": "45", "CacheDirectory": "shoal",
    }  # fmt: skip
    assert expected.items() <= unit.items()
    # gunicorn replaces a front end that hangs after 30 s: systemd must not end the server before.
    assert int(unit["WatchdogSec"]) > 30
    assert int(unit["LimitNOFILE"]) > 10_000


def test_the_addresses_of_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model-repository", str(tmp_path), "--user", ME, "--output", "-"]
    assert run(*given) == 0
    assert "IPAddressDeny" not in settings(capsys.readouterr().out)
    assert run(*given, "--clients=localhost, 10.0.0.0/8,fd00::1") == 0
    unit = settings(capsys.readouterr().out)
    assert (unit["IPAddressDeny"], unit["IPAddressAllow"]) == ("any", "localhost 10.0.0.0/8 fd00::1")
    sentence = refusal(capsys, *given, "--clients=10.0.0.1/8")
    named = "any, link-local, localhost, multicast"
    assert sentence == f"--clients: 10.0.0.1/8 has host bits set; give addresses, networks, or one of {named}"


@pytest.mark.parametrize(
    ("home", "flags", "expected"),
    [
        ("/nonexistent", [], "yes"),
        ("/home/me", [], "read-only"),
        ("/nonexistent", ["--log-file=/home/me/log"], "read-only"),
        ("/nonexistent", ["--log-file", "/root/log"], "read-only"),
        ("/nonexistent", ["--log-file=/homes/log"], "yes"),
    ],
)
def test_homes_are_hidden_where_nothing_of_the_service_lies_in_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    home: str,
    flags: list[str],
    expected: str,
) -> None:
    user = pwd.getpwnam(ME)
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: pwd.struct_passwd((*user[:5], home, user[6])))
    for name in ("prefix", "base_prefix"):  # this checkout may lie in a home
        monkeypatch.setattr(sys, name, "/usr")
    repository = Path("/usr") if tmp_path.is_relative_to("/home") else tmp_path
    assert run("--model-repository", str(repository), "--user", ME, "--output", "-", "--", *flags) == 0
    assert settings(capsys.readouterr().out)["ProtectHome"] == expected


def test_a_repository_in_a_home_is_readable(tmp_path: Path) -> None:
    link = tmp_path / "models"
    link.symlink_to("/root")
    for path, is_hidden in ((str(link), True), ("/home/me/models", True), ("/srv/home/models", False)):
        assert _is_in_a_home(path) is is_hidden, path


def test_it_writes_once_and_says_what_to_type_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = tmp_path / "fish.service"
    arguments = ["--model-repository", str(tmp_path), "--user", ME, "--output", str(unit)]
    assert run(*arguments) == 0
    assert capsys.readouterr().out == (
        f"Wrote {unit}. Next:\n\n  systemctl daemon-reload\n  systemctl enable --now fish.service\n"
    )
    unit.write_text("mine")
    assert refusal(capsys, *arguments) == f"{unit} is there already; --force overwrites it"
    assert unit.read_text() == "mine"
    assert run(*arguments, "--force") == 0
    assert settings(unit.read_text())["User"] == ME


def test_the_user_is_who_typed_it_but_never_root_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model-repository", str(tmp_path), "--output", "-"]
    assert run(*arguments, SUDO_USER="daemon") == 0
    assert settings(capsys.readouterr().out)["User"] == "daemon"
    monkeypatch.setattr(os, "getuid", lambda: 0)
    sentence = "who should the service run as? Say --user <name>; a model server needs no root"
    assert refusal(capsys, *arguments) == sentence
    assert refusal(capsys, *arguments, SUDO_USER="root") == sentence
    assert run(*arguments, "--user", "root") == 0
    assert settings(capsys.readouterr().out)["User"] == "root"
    monkeypatch.setattr(os, "getuid", lambda: 54_321)  # of no account, as in a container
    sentence = "user 54321 has no name; who should the service run as? Say --user <name>"
    assert refusal(capsys, *arguments) == sentence


def test_without_rights_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o555)
    is_root = os.getuid() == 0  # whom no mode keeps out
    if is_root:
        os.seteuid(pwd.getpwnam("daemon").pw_uid)
    try:
        sentence = refusal(capsys, "--model-repository=/", "--user=daemon", f"--output={tmp_path}/shoal.service")
    finally:
        if is_root:
            os.seteuid(0)
    assert sentence == (
        f"cannot write {tmp_path}/shoal.service: Permission denied. Run it with sudo, or print the unit with --output -"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["--id=a", "a b", "", "it's", 'say "x"', "100%", "$HOME", "back\\slash", "two\nlines"])
def test_words_are_quoted_as_systemd_reads_them(word: str) -> None:
    quoted = quote(word)
    assert "\n" not in quoted
    # systemd doubles two signs that a shell does not, and knows C's \n; the rest of the rules is the same here.
    (read,) = shlex.split(quoted.replace("$$", "$").replace("%%", "%"))
    assert read.replace("\\n", "\n") == word


def test_it_writes_a_socket_and_a_drop_in_beside_the_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = tmp_path / "fish.service"
    arguments = ["--model-repository", str(tmp_path), "--user", ME, "--output", str(unit), "--socket", "--gpu"]
    assert run(*arguments, "--", "--http-port=9000", "--grpc-address=::1", "--allow-metrics=false") == 0
    socket, drop_in = tmp_path / "fish.socket", tmp_path / "fish.service.d" / "gpu.conf"
    assert capsys.readouterr().out.endswith("systemctl enable --now fish.socket fish.service\n")
    listening = [line for line in socket.read_text().splitlines() if line.startswith("ListenStream=")]
    assert listening == ["ListenStream=127.0.0.1:9000", "ListenStream=[::1]:8001"]
    assert settings(socket.read_text())["Service"] == "fish.service"
    assert settings(drop_in.read_text())["PrivateDevices"] == "no"


def test_a_template_takes_the_flags_of_each_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model-repository", str(tmp_path), "--user", ME, "--instances", "--output"]
    assert run(*arguments, str(tmp_path / "shoal@.service")) == 0
    unit = settings((tmp_path / "shoal@.service").read_text())
    assert unit["EnvironmentFile"] == "-/etc/shoal/%i.env"
    assert unit["ExecStart"].endswith(" $SHOAL_FLAGS")
    assert "systemctl enable --now shoal@NAME.service" in capsys.readouterr().out
    assert "each instance has ports of its own" in refusal(capsys, *arguments, "-", "--socket")


def test_the_service_is_confined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What systemd makes of it is asked in tests/end_to_end/test_systemd.py, where systemd is installed."""
    run("--model-repository", str(tmp_path), "--user", ME, "--output", "-")
    expected = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": "", "PrivateTmp": "yes"}
    assert expected.items() <= settings(capsys.readouterr().out).items()
