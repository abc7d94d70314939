"""Commands and clients that fail with a URL that has a password: no output and no error has the password."""

from pathlib import Path

import pytest

from shoal import AsyncClient, Client
from shoal.cli import main
from shoal.errors import ShoalError
from shoal.recorder.segment_file import file_head, pack_frame
from tests.recorder.entries import made

#: URLs of a port at which no server listens, and of a scheme that no server has.
URLS = [f"{scheme}user:secret@127.0.0.1:1" for scheme in ("http://", "grpc://", "")] + ["foo://user:secret@host"]
COMMANDS = (
    "infer m",
    "bench m",
    "bench m --protocol grpc",
    "models",
    "top",
    "logs",
    "load m",
    "replay",
    "tune m --apply",
)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("json", [[], ["--json"]], ids=["text", "json"])
def test_no_command_prints_it(
    command: str, url: str, json: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.shoalrec").write_bytes(file_head() + pack_frame([made()]))
    place = [str(tmp_path), "--against", url] if command == "replay" else ["--url", url]
    assert main([*command.split(), *place, *json]) != 0
    said = "".join(capsys.readouterr())
    assert said
    assert "secret" not in said


@pytest.mark.parametrize("url", URLS)
def test_no_error_of_a_client_says_it(url: str) -> None:
    with pytest.raises(ShoalError) as refusal, Client(url) as client:
        client.server_metadata()
    assert "secret" not in str(refusal.value)


def test_no_error_of_an_asynchronous_client_says_it() -> None:
    with pytest.raises(ShoalError) as refusal:
        AsyncClient(URLS[0])
    assert "secret" not in str(refusal.value)
