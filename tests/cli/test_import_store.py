"""`shoal import`: what is served, what is ignored and why, and the repository that is written of it."""

from pathlib import Path

import pytest

from shoal.cli import main
from shoal.repository.poll import Repositories
from tests.repository.torchserve.archives import HANDLER, folder, mar


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a store."""
    (tmp_path / "store").mkdir()
    mar(tmp_path / "store" / "a.mar", {"c.yaml": "minWorkers: 2\nmaxWorkers: 2\nbatchSize: 4"}, configFile="c.yaml")
    mar(tmp_path / "store" / "b.mar", version="2.0")
    folder(tmp_path / "store" / "f", name="other")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    return tmp_path


LINES = [
    "echo 1.0: handler echo.py, 2 workers, batches of up to 4, 100 waiting requests, 120 s for a batch",
    "echo 2.0: handler echo.py, 3 workers, batches of up to 1, 100 waiting requests, 120 s for a batch",
    "other 1.0: handler echo.py, 3 workers, batches of up to 1, 100 waiting requests, 120 s for a batch",
]


def test_a_store_is_told_and_not_changed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(here.rglob("*"))
    assert main(["import", "store"]) == 0
    assert capsys.readouterr().out.splitlines() == LINES
    (here / "store" / "z.mar").write_bytes(b"PK")
    assert main(["import", "store"]) == 2
    assert capsys.readouterr().out.splitlines()[3].startswith("z: refused: Model name is not defined. Archive 'z.mar'")
    (here / "store" / "z.mar").unlink()
    assert sorted(here.rglob("*")) == before


def test_a_model_with_sequences_is_told_with_the_length_of_its_queue(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "minWorkers: 1\nmaxWorkers: 1\nsequenceBatching: true\njobQueueSize: 9"
    mar(here / "store" / "s.mar", {"c.yaml": text}, name="sequences", configFile="c.yaml")
    assert main(["import", "store"]) == 0
    line = "sequences 1.0: handler echo.py, 1 workers, batches of up to 1, 9 waiting requests, 120 s for a batch"
    assert capsys.readouterr().out.splitlines() == [*LINES, line]


def test_a_configuration_is_told_key_by_key(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "config.properties").write_text("model_store=store\njob_queue_size=7\nvmargs=-Xmx1g\nnetty=1\n")
    assert main(["import", "config.properties"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == [
        "model_store is honoured",
        "job_queue_size is honoured",
        "netty is ignored: TorchServe has no such key",
        "vmargs is ignored: there is no Java virtual machine",
    ]
    assert said[4:] == [line.replace("100 waiting", "7 waiting") for line in LINES]


def test_a_repository_is_written_that_the_server_reads(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "store", "--output", "models"]) == 0
    said = capsys.readouterr().out.splitlines()[3:]
    expected = "echo: version 2 has the configuration of version 1, since a model has one in Triton's layout"
    assert said == [expected, "Wrote models"]
    repositories = Repositories([here / "models"])
    for name, versions in (("echo", {1, 2}), ("other", {1})):
        found = repositories.look(name)
        assert found is not None
        assert (found.error, set(found.versions)) == (None, versions)
        assert (found.versions[1].directory / "echo.py").read_text() == HANDLER
    assert main(["import", "store", "--output", "models"]) == 1
    assert "exists already" in capsys.readouterr().err


def test_of_an_empty_store_nothing_is_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "empty").mkdir()
    assert main(["import", "empty", "--output", "models"]) == 0
    (said,) = capsys.readouterr().out.splitlines()
    assert said.startswith("no archive and no folder in 'empty'")
    assert not (here / "models").exists()


def test_the_store_of_a_configuration_may_be_given_beside_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "config.properties").write_text("vmargs=-Xmx1g\n")
    assert main(["import", "config.properties", "--model-store", "store"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == ["vmargs is ignored: there is no Java virtual machine", *LINES]
