"""`shoal serve` and `tritonserver`: how they differ, what they start, what they print."""

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from shoal.cli import main, tritonserver
from shoal.cli.environment import VARIABLES
from shoal.cli.serve import CommandLineError, parse
from shoal.options import ServerOptions

DEFAULTS = ServerOptions(http_address="10.0.0.1")


def test_a_repository_must_be_given() -> None:
    with pytest.raises(CommandLineError, match=r"^--model-repository must be specified$"):
        parse([], prog="tritonserver", defaults=DEFAULTS, environ={})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServerOptions]:
    """What the supervisor was started with; it ends at once with exit code 7."""
    calls: list[ServerOptions] = []

    def run(options: ServerOptions) -> int:
        calls.append(options)
        return 7

    supervisor = ModuleType("shoal.supervisor.main")
    supervisor.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, "shoal.supervisor.main", supervisor)
    for name in ("AIP_MODE", "AIP_STORAGE_URI", "AIP_HTTP_PORT", "SAGEMAKER_MULTI_MODEL", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_the_two_commands_differ_in_who_is_let_in_and_in_what_is_installed(
    started: list[ServerOptions], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--model-repository=models"]) == 7
    assert tritonserver(["--model-repository=models", "--cuda-virtual-address-size=0:64"]) == 7
    shoal, triton = started
    assert (shoal.http_address, shoal.metrics_address) == ("127.0.0.1", "127.0.0.1")
    assert not shoal.allow_remote_admin
    addresses = ("http_address", "grpc_address", "metrics_address", "sagemaker_address", "vertex_ai_address")
    everywhere: dict[str, Any] = dict.fromkeys(addresses, "0.0.0.0")
    assert shoal.install_requirements  # Triton takes no notice of the file
    assert shoal.model_execution_timeout_secs == 60  # Triton lets a batch execute for ever
    assert triton == replace(
        shoal,
        **everywhere,
        allow_remote_admin=True,
        ui=False,
        install_requirements=False,
        model_execution_timeout_secs=0,
    )
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (
        "",
        "Warning: --cuda-virtual-address-size is ignored: Shoal keeps no such memory pool\n",
    )


def test_reload_is_polling_every_second(started: list[ServerOptions], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", ".", "--reload"]) == 7
    assert main(["serve", ".", "--reload", "--model-control-mode=poll"]) == 7
    assert [(each.model_control_mode, each.repository_poll_secs) for each in started] == [("poll", 1)] * 2
    assert main(["serve", ".", "--reload", "--model-control-mode=explicit"]) == 1
    assert "--reload looks for changes itself: leave out --model-control-mode" in capsys.readouterr().err


def test_a_wrong_command_line_starts_nothing_and_exits_with_1(
    started: list[ServerOptions], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tritonserver(["--nonsense"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "unrecognized option '--nonsense'\nUsage: tritonserver [options]\n'tritonserver --help' explains them.\n"
    )
    assert main(["serve"]) == 1
    assert capsys.readouterr().err.startswith("What is to be served? Name a repository")
    for empty in (["serve", ""], ["serve", "no_such.onnx", "", "--http-port=0"]):  # a variable that is not set
        assert main(empty) == 1
        assert capsys.readouterr().err.startswith("What is to be served? Name a repository")
    monkeypatch.setenv("SHOAL_LOG_FORMAT", "json")  # the image has it
    assert main(["serve"]) == 1
    assert capsys.readouterr().err.startswith("What is to be served? Name a repository")
    assert main(["serve", "--http-port=0"]) == 1
    assert capsys.readouterr().err.startswith("--model-repository must be specified\nUsage: shoal serve [<path> …")
    assert main(["serve", "no_such.onnx"]) == 1
    assert capsys.readouterr().err.startswith(
        "There is no file or directory 'no_such.onnx'.\nUsage: shoal serve [<path>"
    )
    assert tritonserver(["."]) == 1
    assert capsys.readouterr().err.startswith("Unexpected argument: .\n")  # Triton's words
    assert started == []


def test_help_tells_defaults_and_ends_with_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for arguments, address in ((["serve", "--help"], "127.0.0.1"), (["serve", "-h"], "127.0.0.1")):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 0
        text = " ".join(capsys.readouterr().out.split())
        socket = "unix:/path for a socket in the file system"
        assert f"address to listen on; 0.0.0.0 for all, {socket} (default: {address})" in text
        assert "MiB of requests per front-end process (default: 64)" in text
        assert "exit with code 1 where a model fails to load at start (default: true)" in text
        assert "so that a model whose files change is loaded again --load-model" in text  # no default of another flag
        assert "--trace-rate <integer> deprecated: use --trace-config" in text
        assert "(default: the HTTP address)" in text
