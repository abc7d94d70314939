"""What a server says of models that it cannot load, and of repositories: Triton's sentence, and what to do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as triton

from tests.end_to_end.broken_models import BROKEN, write
from tests.end_to_end.server import SAMPLES, Server, launch, serving_to_the_end

Reasons = dict[str, str]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of models that fail, and one that does not."""
    directory = tmp_path_factory.mktemp("broken")
    write(directory)
    (directory / "simple").symlink_to(SAMPLES / "simple")
    return directory


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    """A server that has tried to load them; as root it may not read what others may not."""
    with serving_to_the_end(repository, "--exit-on-error=false", "--grpc-port=0", as_mere_user=True) as server:
        yield server


@pytest.fixture(scope="module")
def reasons(server: Server) -> Reasons:
    """Model → why it is not ready."""
    with triton.InferenceServerClient(server.url) as client:
        return {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}


@pytest.mark.parametrize("model", BROKEN)
def test_a_reason_says_what_is_wrong_and_what_to_do(reasons: Reasons, repository: Path, model: str) -> None:
    for part in BROKEN[model][1]:
        assert part.replace("{}", str(repository / model)) in reasons[model]


def test_failures_are_logged_once_and_the_others_load(server: Server, repository: Path) -> None:
    with triton.InferenceServerClient(server.url) as client:
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert client.is_model_ready("simple")
        assert not any(client.is_model_ready(model) for model in BROKEN)
    lines = server.log.decode().splitlines()
    for model, (_, (reason, *_)) in BROKEN.items():
        (line,) = [line for line in lines if f"failed to load '{model}'" in line]
        assert reason.replace("{}", str(repository / model)) in line


def run_to_end(repository: Path, *flags: str) -> str:
    server = launch(repository, *flags)
    server.wait()
    return server.log.decode()


def test_a_skipped_directory_is_named_with_its_model(server: Server, repository: Path) -> None:
    skipped = "ignore version directory 'v1' which fails to convert to integral number"
    assert f"{skipped}; versions of '{repository / 'named'}' have numbers for names" in server.log.decode()


def test_a_model_is_no_repository() -> None:
    log = run_to_end(SAMPLES / "simple")
    assert f"'{SAMPLES / 'simple'}' looks like a model, not like a repository of models" in log
    assert f"name the directory above it, --model-repository={SAMPLES}" in log


def test_an_empty_repository_is_remarked_upon(tmp_path: Path) -> None:
    with serving_to_the_end(tmp_path) as server:
        assert f"no models in '{tmp_path}': each is a directory in the repository" in server.log.decode()


def test_too_few_descriptors_for_any_model_are_refused_at_once() -> None:
    server = launch(SAMPLES, descriptors=(64, 64))
    assert server.wait() == 1
    log = server.log.decode()
    assert "the server may have 64 files open, and needs 96 for itself and one instance of a model" in log
    assert "ulimit -n" in log
    assert "loading:" not in log
