"""`shoal fleet haproxy`: the configuration that it prints, and every mistake said."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.cli.fleet import FleetServer, servers


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["fleet", "haproxy", *arguments]) == 0
    return capsys.readouterr().out


def test_servers_are_named_by_their_hosts_and_ports() -> None:
    assert servers(["gpu-1", "gpu-1:9000", "10.0.0.2:9000:9001", "[::1]:8000"]) == [
        FleetServer("gpu-1", "gpu-1", 8000, 8001),
        FleetServer("gpu-1-9000", "gpu-1", 9000, 8001),
        FleetServer("10.0.0.2-9000", "10.0.0.2", 9000, 9001),
        FleetServer("--1-8000", "[::1]", 8000, 8001),
    ]


def test_each_server_has_a_row_for_each_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--server", "a", "--server", "b:1:2", "--bind", ":80", "--grpc-bind", "10.0.0.1:81")
    rows = re.findall(r"^    server (.*)$", text, re.MULTILINE)
    assert rows == [
        "a a:8000",
        "b-1 b:1",
        "a a:8001 proto h2 check-proto h1 port 8000",
        "b-1 b:2 proto h2 check-proto h1 port 1",
    ]
    assert re.findall(r"^    bind (.*)$", text, re.MULTILINE) == [":80", "10.0.0.1:81 proto h2"]
    assert "{" not in text.replace("{ var(txn.sequence) -m", "").replace("!{ var(txn.sequence) -m", "")


@pytest.mark.skipif(
    shutil.which("haproxy") is None,
    reason="NOT CHECKED: the configuration by HAProxy, since it is not installed (Debian's package haproxy)",
)
def test_haproxy_accepts_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--server", "127.0.0.1", "--server", "[::1]:9000", "--admin-socket", f"{tmp_path}/h.sock")
    (tmp_path / "haproxy.cfg").write_text(text)
    checked = subprocess.run(
        ["haproxy", "-c", "-f", str(tmp_path / "haproxy.cfg")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
