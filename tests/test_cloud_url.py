"""Addresses of repositories in cloud storage: Triton's forms, and a sentence for each malformed one."""

import pytest

from shoal.cloud_url import CloudUrl, is_cloud
from shoal.errors import InvalidArgumentError

S3_FORMS = "s3://bucket/path, s3://host:port/bucket/path or s3://https://host:port/bucket/path"


def test_a_refusal_has_no_password() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^'s3://user:\*\*\*@host:9000/bucket' is no address"):
        CloudUrl.parse("s3://user:secret@host:9000/bucket")


@pytest.mark.parametrize("text", ["s3://bucket", "gs://bucket/models", "as://account/container", "s3://", "gs:///x"])
def test_three_schemes_are_cloud_storage(text: str) -> None:
    assert is_cloud(text)


@pytest.mark.parametrize(
    "text", ["", "s3", "s3:/models", "models", "/s3://models", "S3://bucket", "file://models", "gs"]
)
def test_everything_else_is_a_directory(text: str) -> None:
    assert not is_cloud(text)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket", CloudUrl("s3", "bucket", "")),
        ("s3://bucket/a/b", CloudUrl("s3", "bucket", "a/b")),
        ("s3:///bucket//a///b/", CloudUrl("s3", "bucket", "a/b")),
        ("s3://my.bucket-1/path with space", CloudUrl("s3", "my.bucket-1", "path with space")),
        ("s3://localhost:9000/bucket", CloudUrl("s3", "bucket", "", "http://localhost:9000")),
        ("s3://10.0.0.1:9000/bucket/a", CloudUrl("s3", "bucket", "a", "http://10.0.0.1:9000")),
        ("s3://http://minio:9000/bucket/a", CloudUrl("s3", "bucket", "a", "http://minio:9000")),
        ("s3://https://s3.example.com:443/bucket/a/", CloudUrl("s3", "bucket", "a", "https://s3.example.com:443")),
        ("s3://https://s3.example.com/bucket/a", CloudUrl("s3", "bucket", "a", "https://s3.example.com")),
        ("s3://http://minio/bucket/a", CloudUrl("s3", "bucket", "a", "http://minio")),
        ("s3://[::1]:9000/bucket", CloudUrl("s3", "bucket", "", "http://[::1]:9000")),
        ("s3://bucket/8000:1/x", CloudUrl("s3", "bucket", "8000:1/x")),
        ("gs://bucket_1/a", CloudUrl("gs", "bucket_1", "a")),
        ("as://account/container/a/b", CloudUrl("as", "container", "a/b", account="account")),
        (
            "as://account.blob.core.windows.net/$web",
            CloudUrl("as", "$web", "", account="account.blob.core.windows.net"),
        ),
    ],
)
def test_what_is_read(text: str, url: CloudUrl) -> None:
    read = CloudUrl.parse(text)
    assert read == url
    assert CloudUrl.parse(str(read)) == read


@pytest.mark.parametrize(
    ("url", "text", "path"),
    [
        (CloudUrl("s3", "bucket", ""), "s3://bucket", "bucket"),
        (CloudUrl("s3", "bucket", "a/b", "http://minio:9000"), "s3://minio:9000/bucket/a/b", "bucket/a/b"),
        (CloudUrl("s3", "bucket", "", "https://minio:9000"), "s3://https://minio:9000/bucket", "bucket"),
        (CloudUrl("as", "container", "a", account="account"), "as://account/container/a", "container/a"),
    ],
)
def test_it_is_written_as_its_user_writes_it(url: CloudUrl, text: str, path: str) -> None:
    assert (str(url), url.path) == (text, path)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("s3://", f"it names no bucket; write {S3_FORMS}"),
        ("s3://host:9000/", f"it names no bucket; write {S3_FORMS}"),
        ("s3://host:9000", f"'host:9000' is no name of a bucket; write {S3_FORMS}"),
        ("s3://host:0/bucket", f"port 0 is not in 1 to 65535; write {S3_FORMS}"),
        ("s3://host:65536/bucket", f"port 65536 is not in 1 to 65535; write {S3_FORMS}"),
        ("s3://https://host:port/bucket", f"'https:' is no name of a bucket; write {S3_FORMS}"),
        ("s3://bucket/a/../../b", f"its path goes through '.' or '..'; write {S3_FORMS}"),
        ("gs://", "it names no bucket; write gs://bucket/path"),
        ("gs://bücket", "'bücket' is no name of a bucket; write gs://bucket/path"),
        (f"gs://{'b' * 223}", f"'{'b' * 223}' is no name of a bucket; write gs://bucket/path"),
        (
            f"gs://bucket/{'a' * 1025}",
            "its path is longer than 1024 bytes; write gs://bucket/path",
        ),
        ("as://", "it names no storage account; write as://account/container/path"),
        ("as://account", "it names no container; write as://account/container/path"),
        ("as://acc_ount/container", "'acc_ount' is no storage account; write as://account/container/path"),
        *(
            (
                f"as://account/container/a{character}b",
                "its path has a character that no path of a repository needs: a control character, '\\', '?' or '#'; "
                "write as://account/container/path",
            )
            for character in "\\?#\0\n\x7f"
        ),
    ],
)
def test_what_is_not(text: str, fault: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        CloudUrl.parse(text)
    assert str(refusal.value) == f"'{text}' is no address of a model repository: {fault}"


@pytest.mark.parametrize("user", ["me:secret@", "secret@"])
def test_a_password_or_token_is_in_no_refusal(user: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^'s3://.*\*@host:9000/bucket' .* '.*\*@host:9000' is no name of"):
        CloudUrl.parse(f"s3://{user}host:9000/bucket")
    with pytest.raises(InvalidArgumentError) as refusal:
        CloudUrl.parse(f"as://{user}account/container")
    assert "secret" not in str(refusal.value)
