"""Mode poll: the repository is followed, under traffic, too; what is broken is tried again, and the log says so."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.end_to_end.changes import add_versions
from tests.end_to_end.lifecycle import ENSEMBLE, index, index_once, infer, instances, ready, unloaded, write_model
from tests.end_to_end.server import DEADLINE_S, Server, serving_to_the_end, wait_until
from tests.end_to_end.traffic import MODEL, Traffic


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that load, models that do not, and directories that can be no model."""
    repository = tmp_path_factory.mktemp("models")
    for name in ("a", "b", "m"):
        write_model(repository, name, 1)
    write_model(repository, "unread", 1, config="no configuration")
    write_model(repository, "unloadable", 1, config=MODEL + 'output { name: "C" data_type: TYPE_INT32 dims: [ 4 ] }')
    write_model(repository, "made", 1, config=ENSEMBLE.replace("STEP", "late"))
    for name in ("line\nfeed", "caf\udce9"):  # the second is no UTF-8
        (repository / name).mkdir()
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false")
    with serving_to_the_end(repository, *flags) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.url) as client:
        yield client


def test_what_is_broken_is_tried_and_told_once_for_each_change(
    server: Server, client: triton.InferenceServerClient, repository: Path
) -> None:
    """A model that comes and goes shows that the repository has been polled, at least twice."""

    def poll() -> None:
        write_model(repository, "counter", 1)
        index_once(client, [ready("counter")])
        shutil.rmtree(repository / "counter")
        index_once(client, [unloaded("counter")])

    def num_said(model: str) -> int:
        server.read_on()
        return server.log.count(f"failed to load '{model}'".encode())

    poll()
    broken = "unread", "unloadable", "made", "line\\nfeed", "caf\\\\udce9"  # as the log escapes them
    assert {name: num_said(name) for name in broken} == dict.fromkeys(broken, 1)
    assert server.log.count(b"loading: unloadable:1") == 1
    # Each change is tried: another mistake, another right of a file, a model that an ensemble needs. A poll that
    # comes in the midst of a change may see two.
    write_model(repository, "unread", 1, config="still no configuration")
    (repository / "unloadable" / "config.pbtxt").chmod(0o600)
    assert server.read_log(b"failed to load 'unloadable'", start=len(server.log))
    poll()
    told = num_said("unread"), num_said("unloadable"), num_said("made")
    assert (told[0] > 1, told[1] > 1, told[2]) == (True, True, 1)
    poll()
    assert (num_said("unread"), num_said("unloadable"), num_said("made")) == told
    write_model(repository, "unread", 1)
    write_model(repository, "unloadable", 1)
    write_model(repository, "late", 1)
    index_once(client, [ready(name) for name in ("late", "made", "unloadable", "unread")])
    # What serves is as patient with what would replace it.
    before = num_said("unread")
    write_model(repository, "unread", 1, config="no configuration")
    poll()
    after = num_said("unread")
    assert after > before
    poll()
    assert num_said("unread") == after
    assert infer(client, "unread") == "1"


def test_polling_follows_the_repository(client: triton.InferenceServerClient, repository: Path) -> None:
    assert index(client, "a", "b", "c") == [ready("a"), ready("b")]
    write_model(repository, "c", 1)
    write_model(repository, "a", 2)
    shutil.rmtree(repository / "b")
    index_once(client, [unloaded("a", 1), ready("a", 2), unloaded("b"), ready("c")])
    assert (infer(client, "a"), infer(client, "c")) == ("2", "1")
    write_model(repository, "c", 1, config=MODEL.replace("{ count: 1", '{ name: "renamed" count: 1'))
    wait_until(lambda: [each["name"] for each in instances(client, "c")] == ["renamed_0"])
    assert infer(client, "c") == "1"
    with pytest.raises(InferenceServerException, match="not allowed if polling is enabled"):
        client.load_model("a")


def test_new_versions_are_polled_and_no_client_notices(server: Server, repository: Path) -> None:
    with Traffic(server, 200) as outcome:
        assert outcome.is_steady.wait(DEADLINE_S), outcome.faults
        add_versions(server, repository, 2)
    assert not outcome.faults
