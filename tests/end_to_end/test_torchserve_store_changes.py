"""A store whose archives change while it is served with --model-control-mode=poll."""

import os
from pathlib import Path

from tests.end_to_end.server import wait_until
from tests.end_to_end.torchserve_listeners import torchserve
from tests.repository.torchserve.archives import mar

HANDLER = "def handle(data, context):\n    return data and [b'{word}' for _ in data]\n"


def write(store: Path, word: str) -> None:
    """An archive, complete at once."""
    files = {"h.py": HANDLER.format(word=word), "c.yaml": "minWorkers: 1\nmaxWorkers: 1\n"}
    mar(store / ".part", files, name="m", handler="h.py", configFile="c.yaml")
    (store / ".part").rename(store / "m.mar")


def test_an_archive_that_changes_is_loaded_again_without_a_request_lost(tmp_path: Path) -> None:
    store, repository = tmp_path / "store", tmp_path / "repository"
    store.mkdir()
    repository.mkdir()
    write(store, "one")
    polls = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with torchserve(repository, f"--model-store={store}", "--models=all", *polls) as served:
        assert served.ask("POST", "/predictions/m", b"x").body == b"one"
        write(store, "two")
        replies = [(200, b"one")]

        def is_changed() -> bool:
            reply = served.ask("POST", "/predictions/m", b"x")
            replies.append((reply.status, reply.body))
            return replies[-1] != (200, b"one")

        wait_until(is_changed)
        assert replies[-1] == (200, b"two")
        (store / "m.mar").write_bytes(b"PK no archive")
        served.server.read_log(b"the changed archive of model 'm' is not loaded")
        assert served.ask("POST", "/predictions/m", b"x").body == b"two"
        unpacked = [each for each in os.listdir(_directory_of(served.server.process.pid)) if len(each) == 32]
        assert len(unpacked) == 1  # what was unpacked first has gone


def _directory_of(supervisor: int) -> str:
    """Where the server unpacks archives: the parent of the directory in which its worker runs."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    places = [os.readlink(f"/proc/{pid}/cwd") for pid in _descendants(children)]
    (place,) = {os.path.dirname(each) for each in places if len(os.path.basename(each)) == 32}
    return place


def _descendants(pids: list[str]) -> list[str]:
    found = list(pids)
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += _descendants(Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found
