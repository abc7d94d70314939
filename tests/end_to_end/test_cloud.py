"""A server whose models lie in a bucket: it copies them, notices new versions, and says why where it cannot."""

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tritonclient.http as triton

from tests.end_to_end import lifecycle
from tests.end_to_end.asking import fetch
from tests.end_to_end.lifecycle import NAMES, index_once, infer, ready, write_model
from tests.end_to_end.server import DEADLINE_S, SAMPLES, Server, launch, serving_to_the_end, wait_until
from tests.end_to_end.traffic import MODEL
from tests.repository.s3_server import HaltingProxy, S3Server, environment

#: Models beside samples.
NAMED = NAMES[:5]


def upload(s3: S3Server, bucket: str, *models: str) -> None:
    """Samples, as they lie on the disk."""
    for model in models:
        files = {path.relative_to(SAMPLES): path for path in (SAMPLES / model).rglob("*") if path.is_file()}
        s3.upload(bucket, {f"models/{key}": path.read_bytes() for key, path in files.items()})


def ask(server: Server, path: str, body: object = None) -> Any:
    return fetch(server.http_port, path, body).json


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server keeps copies of what the bucket has."""
    return tmp_path_factory.mktemp("copies")


@pytest.fixture(scope="module")
def server(s3: S3Server, directory: Path) -> Iterator[Server]:
    upload(s3, "served", "simple", "digits")
    for name in NAMED:
        s3.upload("served", {f"models/{name}/config.pbtxt": MODEL.encode(), f"models/{name}/1/file": b"any"})
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with serving_to_the_end(f"s3://{s3.host}/served/models", *flags, environment=environment(directory)) as running:
        yield running


def copies(directory: Path, model: str) -> list[Path]:
    return list((directory / "cache").glob(f"*/0/*/{model}"))


def test_a_name_is_that_of_any_directory(server: Server) -> None:
    with triton.InferenceServerClient(server.url) as client:
        index_once(client, [ready(name) for name in sorted(NAMED)])
        assert infer(client, NAMED[0]) == "1"


def test_a_new_version_replaces_the_old(s3: S3Server, server: Server, directory: Path) -> None:
    digits = json.loads((SAMPLES / "digits" / "request.json").read_text())
    assert ask(server, "/v2/models/digits/infer", digits)["model_version"] == "1"
    [old] = copies(directory, "digits")
    weights = (SAMPLES / "digits" / "1" / "model.onnx").read_bytes()
    s3.upload("served", {"models/digits/2/model.onnx": weights})
    wait_until(lambda: ask(server, "/v2/models/digits/infer", digits)["model_version"] != "1", server.log.decode)
    start = len(server.log)
    s3.remove("served", "models/simple/config.pbtxt")
    s3.remove("served", "models/simple/1/model.onnx")
    assert server.read_log(b"model 'simple' is gone from the repository", start=start)
    end = time.monotonic() + DEADLINE_S
    while old in copies(directory, "digits"):  # gone when version 1 has ended
        assert time.monotonic() < end, server.log.decode()


def test_a_download_keeps_neither_the_index_nor_another_models_load_waiting(s3: S3Server, tmp_path: Path) -> None:
    """Of a large model, which comes to a halt in its middle, and goes on later."""
    s3.upload("slow", {"models/large/config.pbtxt": MODEL.encode(), "models/large/1/file": os.urandom(1 << 20)})
    write_model(tmp_path / "local", "near", 1)
    proxy = HaltingProxy(s3.host, halt_after_nbytes=1 << 19)
    with proxy.running() as host, ThreadPoolExecutor() as threads:
        flags = "--model-control-mode=explicit", f"--model-repository={tmp_path}/local"
        url = f"s3://{host}/slow/models"
        with (
            serving_to_the_end(url, *flags, environment=environment(tmp_path)) as server,
            triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as client,
        ):
            loaded = threads.submit(lifecycle.ask, server, "load_model", "large")
            assert proxy.halted.wait(DEADLINE_S)
            client.load_model("near")
            assert infer(client, "near") == "1"
            index_once(client, [{"name": "large"}, ready("near")])
            assert not loaded.done()
            proxy.go_on.set()
            loaded.result(DEADLINE_S)
            assert infer(client, "large") == "1"


def test_a_download_keeps_no_poll_from_what_else_has_changed(s3: S3Server, tmp_path: Path) -> None:
    """The model that it is of is loaded by the first poll that finds it on the disk."""
    s3.upload("polled", {"models/any/config.pbtxt": MODEL.encode(), "models/any/1/file": b"any"})
    write_model(tmp_path / "local", "near", 1)
    proxy = HaltingProxy(s3.host, halt_after_nbytes=1 << 19)
    with proxy.running() as host:
        flags = "--model-control-mode=poll", "--repository-poll-secs=1", f"--model-repository={tmp_path}/local"
        url = f"s3://{host}/polled/models"
        with (
            serving_to_the_end(url, *flags, environment=environment(tmp_path)) as server,
            triton.InferenceServerClient(server.url, network_timeout=DEADLINE_S) as client,
        ):
            s3.upload("polled", {"models/any/2/file": os.urandom(1 << 20)})
            assert proxy.halted.wait(DEADLINE_S)
            write_model(tmp_path / "local", "near", 2)
            wait_until(lambda: infer(client, "near") == "2")
            assert infer(client, "any") == "1"
            proxy.go_on.set()
            wait_until(lambda: infer(client, "any") == "2")


def test_a_bucket_that_is_not_there_is_told_and_ends_the_server(s3: S3Server, tmp_path: Path) -> None:
    server = launch(f"s3://{s3.host}/no-such-bucket", environment=environment(tmp_path))
    assert server.wait() == 1
    assert b"The specified bucket does not exist; check that 'no-such-bucket' is there" in server.log, server.log
