"""Repositories on a real S3 server: what is listed, what is copied, and what is said when something is wrong."""

import http.server
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.cloud_url import CloudUrl
from shoal.errors import InvalidArgumentError, NotFoundError, ShoalError, UnavailableError
from shoal.repository.cloud import CloudRepository, Patience
from shoal.repository.cloud_listing import CloudModel
from shoal.repository.poll import Repositories
from shoal.repository.scan import version_directories
from tests.repository.s3_server import DEADLINE_S, HaltingProxy, S3Server, credential_file

MODELS = {
    "models/digits/config.pbtxt": b"max_batch_size: 8",
    "models/digits/1/model.onnx": b"weights",
    "models/digits/1/data/external.bin": b"more weights",
    "models/identity/": b"",
    "models/identity/1/": b"",
    "models/README.md": b"beside the models",
    "models/.git/HEAD": b"hidden",
    "other/model/1/model.onnx": b"of another repository",
}
#: The server is there, and the machine may be busy.
PATIENT = Patience(DEADLINE_S, DEADLINE_S, DEADLINE_S, DEADLINE_S)


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest) -> str:
    """The models in a bucket with a name like the test's."""
    name: str = request.node.name.replace("_", "-")[:60].strip("-")
    s3.upload(name, MODELS)
    return name


def repository(
    s3: S3Server, bucket: str, directory: Path, *, host: str = "", path: str = "/models", **keys: str
) -> CloudRepository:
    url = CloudUrl.parse(f"s3://{host or s3.host}/{bucket}{path}")
    return CloudRepository(url, directory / "cache", credential_file(directory, **keys), PATIENT)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def copies(directory: Path) -> list[str]:
    """What lies in the cache beside single objects."""
    return sorted(entry.name for entry in (directory / "cache").iterdir() if entry.name != "objects")


# --- listing ---


def test_directories_are_models_and_nothing_else_is(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    listing = repository(s3, bucket, tmp_path).listing()
    assert (list(listing.models), listing.problems, listing.strays) == (["digits", "identity"], {}, ())
    assert set(listing.models["digits"].files) == {"config.pbtxt", "1/model.onnx", "1/data/external.bin"}
    assert listing.models["identity"].directories == {"1"}


def test_the_whole_bucket_can_be_a_repository(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    assert set(repository(s3, bucket, tmp_path, path="").listing().models) == {"models", "other"}


def test_with_namespacing_the_address_is_the_namespace(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    cloud, local = repository(s3, bucket, tmp_path), tmp_path / "local"
    (local / "digits" / "1").mkdir(parents=True)
    repositories = Repositories([cloud, local], namespacing=True)
    models = repositories.scan().models
    address = f"s3://{s3.host}/{bucket}/models"
    assert list(models) == [("digits", str(local)), ("digits", address), ("identity", address)]
    found = {each.identifier: each.origin for each in repositories.look_at_each(models)}
    assert found == dict(zip(models, ("", f"{address}/digits", f"{address}/identity"), strict=True))


def tags_of(repository: CloudRepository) -> dict[str, str]:
    return {name: model.tag for name, model in repository.listing().models.items()}


def test_a_tag_changes_with_its_model_and_no_other(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    models = repository(s3, bucket, tmp_path)
    before = tags_of(models)
    assert tags_of(models) == before
    s3.upload(bucket, {"models/digits/1/model.onnx": b"weightZ"})  # of the same length, within the same second
    after = tags_of(models)
    assert (after["identity"], after["digits"] != before["digits"]) == (before["identity"], True)
    s3.upload(bucket, {"models/identity/2/": b""})
    assert tags_of(models)["identity"] != before["identity"]
    s3.remove(bucket, "models/digits/1/data/external.bin")
    assert tags_of(models)["digits"] not in (before["digits"], after["digits"])


def test_bad_keys_make_their_model_a_problem_and_leave_the_others_alone(
    s3: S3Server, bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    s3.upload(
        bucket, {"models/evil/../../x": b"", "models/del\x7fete/1/m": b"", "models//x/1": b"", "models/digits/1": b"!"}
    )
    models = repository(s3, bucket, tmp_path)
    with caplog.at_level(logging.WARNING, "shoal"):
        listing = models.listing()
    assert list(listing.models) == ["identity"]
    assert listing.problems == {
        "evil": f"object 'evil/../../x' in bucket '{bucket}' of {models.url} cannot be copied: "
        "it goes through '.' or '..'; rename it",
        "digits": f"object 'digits/1' in bucket '{bucket}' of {models.url} cannot be copied: "
        "other objects lie below it as below a directory; rename it",
    }
    assert [sentence.partition("cannot be copied: ")[2] for sentence in listing.strays] == [
        "a name in it is empty; rename it",
        "it has a control character or is no UTF-8; rename it",
    ]
    assert set(listing.strays) == {record.getMessage() for record in caplog.records}
    with pytest.raises(InvalidArgumentError, match="goes through"):
        models.fetch("evil")


# --- copies ---


def test_a_copy_is_complete_and_used_again(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    models = repository(s3, bucket, tmp_path)
    copy = models.fetch("digits")
    assert copy.name == "digits"
    assert contents(copy) == {
        "config.pbtxt": b"max_batch_size: 8",
        "1/model.onnx": b"weights",
        "1/data/external.bin": b"more weights",
    }
    assert copies(tmp_path) == [tags_of(models)["digits"]]
    inode = copy.stat().st_ino
    again = repository(s3, bucket, tmp_path).fetch("digits")
    assert (again, again.stat().st_ino) == (copy, inode)


def test_a_directory_without_objects_is_a_version(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    copy = repository(s3, bucket, tmp_path).fetch("identity")
    assert version_directories(copy) == {1: copy / "1"}


def test_a_new_version_leaves_the_old_ones_files_as_they_are(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    models = repository(s3, bucket, tmp_path)
    old = models.fetch("digits")
    s3.upload(bucket, {"models/digits/2/model.onnx": b"new weights"})
    new = models.fetch("digits")
    assert new != old
    assert sorted(version_directories(new)) == [1, 2]
    assert (new / "1/model.onnx").stat().st_ino == (old / "1/model.onnx").stat().st_ino  # not fetched again
    assert (new / "1").stat().st_mtime_ns == (old / "1").stat().st_mtime_ns
    models.forget({old / "1"})
    assert (old.exists(), new.exists()) == (True, True)
    models.forget(())
    assert (old.exists(), new.exists()) == (False, True)  # the latest one: it may be about to be loaded


def test_a_model_that_changed_after_the_listing_is_copied_as_it_is_now(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    models = repository(s3, bucket, tmp_path)
    listed = models.listing().models["digits"]
    s3.upload(bucket, {"models/digits/1/model.onnx": b"WEIGHTS"})
    s3.remove(bucket, "models/digits/1/data/external.bin")
    copy = models.fetch("digits", listed)
    assert contents(copy) == {"config.pbtxt": b"max_batch_size: 8", "1/model.onnx": b"WEIGHTS"}
    assert copies(tmp_path) == [tags_of(models)["digits"]]


def test_several_are_fetched_at_once_and_one_failure_is_told_beside_them(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    models = repository(s3, bucket, tmp_path)
    fetched = dict(models.fetch_all([*models.listing().models.values(), CloudModel("missing")]))
    digits, identity, missing = (fetched[name] for name in ("digits", "identity", "missing"))
    assert isinstance(digits, Path)
    assert isinstance(identity, Path)
    assert (digits.name, identity.name, type(missing)) == ("digits", "identity", NotFoundError)


def test_what_is_no_model_is_not_found(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    models = repository(s3, bucket, tmp_path)
    for name in ("missing", "README.md", "..", ".", "", "digits/1", "../other/model", "/etc", ".git"):
        with pytest.raises(NotFoundError) as refusal:
            models.fetch(name)
        assert str(refusal.value) == f"there is no model '{name}' in {models.url}"
    assert not (tmp_path / "cache").exists()


_FETCH = """
import sys
from pathlib import Path
from shoal.cloud_url import CloudUrl
from shoal.repository.cloud import CloudRepository
url, cache, credentials = sys.argv[1:]
environ = {"TRITON_CLOUD_CREDENTIAL_PATH": credentials}
print(CloudRepository(CloudUrl.parse(url), Path(cache), environ).fetch("large"))
"""


def test_who_is_killed_while_copying_leaves_nothing_that_looks_whole(s3: S3Server, tmp_path: Path) -> None:
    weights = os.urandom(1 << 20)
    s3.upload("killed", {"models/large/config.pbtxt": b"", "models/large/1/model.onnx": weights})
    environ = credential_file(tmp_path)
    proxy = HaltingProxy(s3.host, halt_after_nbytes=1 << 19)
    with proxy.running() as host:
        command = [sys.executable, "-c", _FETCH, f"s3://{host}/killed/models", str(tmp_path / "cache")]
        with subprocess.Popen([*command, environ["TRITON_CLOUD_CREDENTIAL_PATH"]]) as process:
            assert proxy.halted.wait(DEADLINE_S)
            process.kill()
        assert process.returncode == -signal.SIGKILL
    [left] = copies(tmp_path)
    assert left.startswith(".")
    models = repository(s3, "killed", tmp_path)
    copy = models.fetch("large")
    assert (copy / "1/model.onnx").read_bytes() == weights
    models.forget({copy})
    assert copies(tmp_path) == [copy.parent.name]


def test_removals_do_not_wait_for_a_fetch_that_is_under_way(s3: S3Server, tmp_path: Path) -> None:
    s3.upload("slow", {"models/small/1/model.onnx": b"1", "models/large/1/model.onnx": os.urandom(1 << 20)})
    proxy = HaltingProxy(s3.host, halt_after_nbytes=1 << 19)
    with ThreadPoolExecutor(1) as threads, proxy.running() as host:
        models = repository(s3, "slow", tmp_path, host=host)
        old = models.fetch("small")
        s3.upload("slow", {"models/small/1/model.onnx": b"22"})
        new = models.fetch("small")
        fetch = threads.submit(models.fetch, "large")
        assert proxy.halted.wait(DEADLINE_S)
        models.forget(())
        assert (old.exists(), new.exists()) == (False, True)
        proxy.go_on.set()
        assert (fetch.result(DEADLINE_S) / "1/model.onnx").stat().st_size == 1 << 20


# --- what goes wrong ---


def test_a_download_that_stands_still_is_given_up(s3: S3Server, tmp_path: Path) -> None:
    s3.upload("stalled", {"models/large/1/model.onnx": os.urandom(1 << 20)})
    patience = replace(PATIENT, stall_s=0.5)
    with HaltingProxy(s3.host, halt_after_nbytes=1 << 19).running() as host:
        url = CloudUrl.parse(f"s3://{host}/stalled/models")
        models = CloudRepository(url, tmp_path / "cache", credential_file(tmp_path), patience)
        with pytest.raises(UnavailableError, match=r"model 'large' from .* stands still: no byte for 0\.5 s after 0\."):
            models.fetch("large")
    assert copies(tmp_path) == []


def test_a_poll_leaves_what_takes_long_to_a_later_one(s3: S3Server, tmp_path: Path) -> None:
    """Four downloads, as many as begin at once, keep neither a copy that is there nor another download waiting."""
    large = [f"large{number}" for number in range(4)]
    objects = {f"models/{name}/1/model.onnx": os.urandom(1 << 20) for name in large}
    s3.upload("late", {**objects, "models/old/1/model.onnx": b"weights", "models/small/1/model.onnx": b"weights"})
    proxy = HaltingProxy(s3.host, halt_after_nbytes=1 << 19)
    with proxy.running() as host:
        models = repository(s3, "late", tmp_path, host=host)
        listed = models.listing().models.values()
        models.fetch("old")
        first = dict(models.fetch_some(listed, 0.1))
        assert "old" in first
        assert not first.keys() & {*large}
        assert "small" in models._late  # it would begin without a further call, too
        assert list(dict(models.fetch_some(listed, DEADLINE_S))) == ["old", "small"]
        assert proxy.halted.wait(DEADLINE_S)
        s3.remove("late", "models/large0/1/model.onnx")
        proxy.go_on.set()
        outcome: Path | ShoalError | None = None
        while outcome is None:
            outcome = dict(models.fetch_some(listed, DEADLINE_S)).get("large0")
        assert isinstance(outcome, NotFoundError)
        assert (models.fetch("large1") / "1/model.onnx").stat().st_size == 1 << 20


class EndlessObjects(http.server.BaseHTTPRequestHandler):
    """An S3 of one object, which has a byte in its listing, and goes on until its reader leaves."""

    protocol_version = "HTTP/1.1"
    LISTING = (
        b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated><Contents>'
        b'<Key>models/m/1/model.onnx</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"e"</ETag>'
        b"<Size>1</Size></Contents></ListBucketResult>"
    )

    def do_GET(self) -> None:
        self.send_response(200)
        if "list-type" in self.path:
            self.send_header("Content-Length", str(len(self.LISTING)))
            self.end_headers()
            self.wfile.write(self.LISTING)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        chunk = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
        with suppress(OSError):
            while True:
                self.wfile.write(chunk)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        pass


def test_an_object_without_end_is_given_up(tmp_path: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EndlessObjects) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = CloudUrl.parse(f"s3://127.0.0.1:{server.server_address[1]}/b/models")
        models = CloudRepository(url, tmp_path / "cache", credential_file(tmp_path), PATIENT)
        try:
            with pytest.raises(UnavailableError, match="did not come with the 1 bytes it should have"):
                models.fetch("m")
        finally:
            server.shutdown()
            thread.join()
    assert contents(tmp_path / "cache") == {}


def test_downloads_that_stand_still_keep_no_listing_waiting(s3: S3Server, tmp_path: Path) -> None:
    """Two models of eight large objects each: more than the connections that botocore opens unless it is told."""
    s3.upload("wide", {f"models/{name}/1/{each}": bytes(1 << 20) for name in "ab" for each in range(8)})
    proxy = HaltingProxy(s3.host, halt_after_nbytes=1 << 19)
    with proxy.running() as host, ThreadPoolExecutor() as threads:
        models = repository(s3, "wide", tmp_path, host=host)
        fetches = [threads.submit(models.fetch, name) for name in "ab"]
        try:
            for _ in range(16):
                assert proxy.halts.acquire(timeout=DEADLINE_S)
            assert list(models.listing().models) == ["a", "b"]
        finally:
            proxy.go_on.set()
        for each in fetches:
            each.result()


def test_a_server_that_is_gone_is_told_and_found_again(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    with HaltingProxy(s3.host, 1 << 30).running() as host:
        models = repository(s3, bucket, tmp_path, host=host)
        assert models.listing().models
    with pytest.raises(UnavailableError) as refusal:
        models.listing()
    assert str(refusal.value).startswith(f"the listing of s3://{host}/{bucket}/models failed: Could not connect to ")
    assert str(refusal.value).endswith("; check the address, and the network between here and there")


def test_a_server_that_does_not_answer_is_given_up(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    with HaltingProxy(s3.host, 0).running() as host:
        models = CloudRepository(
            CloudUrl.parse(f"s3://{host}/{bucket}"),
            tmp_path / "cache",
            credential_file(tmp_path),
            replace(PATIENT, listing_s=0.5),
        )
        with pytest.raises(UnavailableError, match=r"failed: no answer in time .*; check the address, and the network"):
            models.listing()


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("no-such-bucket/models", "the listing of {url} failed: The specified bucket does not exist; "
         "check that 'no-such-bucket' is there and that --model-repository names it"),
        ("an-empty-path/nothing", "there is nothing in {url}; upload models, or correct --model-repository"),
    ],
)  # fmt: skip
def test_where_there_is_nothing(s3: S3Server, tmp_path: Path, path: str, sentence: str) -> None:
    s3.upload("an-empty-path", MODELS)
    bucket, _, rest = path.partition("/")
    models = repository(s3, bucket, tmp_path, path=f"/{rest}")
    with pytest.raises((InvalidArgumentError, UnavailableError)) as refusal:
        models.listing()
    assert str(refusal.value) == sentence.format(url=models.url)


@pytest.fixture
def guarded(s3: S3Server) -> Iterator[dict[str, str]]:
    """The server looks at credentials; these are good."""
    iam = s3.client("iam")
    iam.create_user(UserName="reader")
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    s3.check_credentials_after(0)
    yield {"key_id": key["AccessKeyId"], "secret_key": key["SecretAccessKey"]}
    s3.check_credentials_after(math.inf)


def test_wrong_credentials_are_told_and_better_ones_taken_without_a_new_start(
    s3: S3Server, bucket: str, guarded: dict[str, str], tmp_path: Path
) -> None:
    models = repository(s3, bucket, tmp_path)  # keys that nobody has heard of
    with pytest.raises(UnavailableError) as refusal:
        models.listing()
    assert str(refusal.value) == (
        f"the listing of {models.url} failed: The AWS Access Key Id you provided does not exist in our records.; "
        f"check the entry for it in '{tmp_path}/credentials.json' ($TRITON_CLOUD_CREDENTIAL_PATH)"
    )
    credential_file(tmp_path, **guarded)
    assert set(models.listing().models) == {"digits", "identity"}


def test_without_credentials_it_asks_anonymously(
    s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    url = CloudUrl.parse(f"s3://{s3.host}/{bucket}/models")
    assert set(CloudRepository(url, tmp_path / "cache", {}).listing().models) == {"digits", "identity"}


def test_without_the_package_it_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['adlfs'] = None\n"
        "from pathlib import Path\n"
        "from shoal.cloud_url import CloudUrl\n"
        "from shoal.repository.cloud import CloudRepository\n"
        "from shoal.errors import UnsupportedError\n"
        "try: CloudRepository(CloudUrl.parse('as://account/container'), Path('cache'), {}).listing()\n"
        "except UnsupportedError as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert told.stdout.startswith("as://account/container needs the package adlfs: pip install 'shoal[azure]' (")


def test_a_credential_file_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    models = CloudRepository(CloudUrl.parse("s3://bucket"), tmp_path, {"TRITON_CLOUD_CREDENTIAL_PATH": str(missing)})
    with pytest.raises(InvalidArgumentError, match=r"missing\.json' named by \$TRITON_CLOUD_CREDENTIAL_PATH cannot be"):
        models.listing()


def test_a_disk_without_room_is_refused_before_the_download(
    s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = repository(s3, bucket, tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=7))
    with pytest.raises(UnavailableError) as refusal:
        models.fetch("digits")
    assert str(refusal.value) == (
        f"model 'digits' in {models.url} needs 36 bytes on the disk, and there are 7; "
        "make room, or set TRITON_AWS_MOUNT_DIRECTORY to a directory on a larger disk"
    )
