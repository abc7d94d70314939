"""`shoal tune`: a real search on a sample model with a tiny budget, and its change in the running server."""

import shutil
from pathlib import Path

import pytest

from shoal.cli import main
from shoal.cli.remote import RemoteServer
from tests.end_to_end.server import SAMPLES, only, serving


def test_a_change_is_found_written_and_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = tmp_path / "models"
    shutil.copytree(SAMPLES / "digits", repository / "digits")
    config = repository / "digits" / "config.pbtxt"
    # Two clients wait for 60 ms each time: without batches, the second trial, they do not.
    before = config.read_text().replace(
        "dynamic_batching { }", "dynamic_batching {\n  max_queue_delay_microseconds: 60000\n}"
    )
    config.write_text(before)
    picture = tmp_path / "tune.svg"
    with serving(repository, *only("digits")) as server:
        code = main(
            ["tune", "digits", f"--model-repository={repository}", "--goal=p50=200s", "--concurrency=2",
             "--trials=2", "--turns=1", "--budget=600", "--window=0.05", "--apply",
             f"--url={server.url}", f"--svg={picture}"]
        )  # fmt: skip
        printed = capsys.readouterr()
        assert code == 0, printed.err
        remote = RemoteServer(server.url, timeout_s=60, headers={})
        served = remote.model_config("digits")
        remote.close()
    assert "requests/s" in printed.err.splitlines()[0]
    assert "-  max_queue_delay_microseconds: 60000" in printed.out
    assert served.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0) != 60_000
    after = config.read_text()
    assert after != before
    assert after.startswith("# Name, backend and input")  # what is not tuned stays
    assert "Measured again in turns: " in printed.out
    assert picture.read_text().startswith("<svg")
    assert f"Written to {config}, and loaded by {server.url}." in printed.out


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["digits"], 1, "Which model, and which goal?"),
        (["whale", "--goal=p99=1s", f"--model-repository={SAMPLES}"], 1, "There is no model 'whale' in"),
        (["digits", "--goal=throughput=5"], 1, "a latency is wanted"),
    ],
)
def test_mistakes(arguments: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *arguments]) == code
    assert sentence in capsys.readouterr().err
