"""Triton's environment variables and its credential file, as the options that fsspec's file systems are given.

Those of s3fs are tried against a real server in test_cloud.py; Google's and Azure's are compared with their words only.
"""

import json
from typing import Any

import pytest

from shoal.cloud_url import CloudUrl
from shoal.errors import InvalidArgumentError
from shoal.repository.cloud_credentials import ManagedIdentity, options, remedy

S3 = CloudUrl.parse("s3://bucket/models")
MINIO = CloudUrl.parse("s3://minio:9000/bucket/models")
GS = CloudUrl.parse("gs://bucket/models")
AZURE = CloudUrl.parse("as://account/container/models")
PATH_STYLE = {"config_kwargs": {"s3": {"addressing_style": "path"}}}


def from_file(url: CloudUrl, document: object) -> dict[str, Any]:
    return options(url, {"AZURE_STORAGE_KEY": "not this one"}, json.dumps(document))


@pytest.mark.parametrize(
    ("url", "environ", "expected"),
    [
        # botocore reads all of these by itself.
        (S3, {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_PROFILE": "me"}, {}),
        (MINIO, {}, {"endpoint_url": "http://minio:9000", **PATH_STYLE}),
        (CloudUrl.parse("s3://https://h:1/bucket"), {}, {"endpoint_url": "https://h:1", **PATH_STYLE}),
        (GS, {"GOOGLE_APPLICATION_CREDENTIALS": "key.json"}, {}),
        (AZURE, {}, {"account_name": "account", "anon": True}),
        (AZURE, {"AZURE_STORAGE_KEY": "k"}, {"account_name": "account", "account_key": "k"}),
        (
            AZURE,
            {"AZURE_STORAGE_ACCOUNT": "another", "AZURE_STORAGE_KEY": "k", "AZURE_STORAGE_AUTH_TYPE": "key"},
            {"account_name": "another", "account_key": "k"},
        ),
        (AZURE, {"AZURE_STORAGE_AUTH_TYPE": "default"}, {"account_name": "account", "anon": False}),
        (
            AZURE,
            {"AZURE_STORAGE_AUTH_TYPE": "managed_identity"},
            {"account_name": "account", "credential": ManagedIdentity(None)},
        ),
        (
            AZURE,
            {"AZURE_STORAGE_AUTH_TYPE": "managed_identity", "AZURE_STORAGE_CLIENT_ID": "id"},
            {"account_name": "account", "credential": ManagedIdentity("id")},
        ),
        (CloudUrl.parse("as://a.blob.core.windows.net/c"), {}, {"account_name": "a", "anon": True}),
        (
            CloudUrl.parse("as://a.blob.core.chinacloudapi.cn/c"),
            {},
            {"account_name": "a", "account_host": "a.blob.core.chinacloudapi.cn", "anon": True},
        ),
    ],
)
def test_the_environment(url: CloudUrl, environ: dict[str, str], expected: dict[str, Any]) -> None:
    assert options(url, environ, None) == expected


@pytest.mark.parametrize(
    ("url", "entry", "expected"),
    [
        (
            S3,
            {"key_id": "k", "secret_key": "s", "session_token": "t", "region": "r", "profile": "ignored"},
            {"key": "k", "secret": "s", "token": "t", "client_kwargs": {"region_name": "r"}},
        ),
        (S3, {"key_id": "k", "secret_key": "s", "session_token": ""}, {"key": "k", "secret": "s", "token": None}),
        (S3, {"key_id": "k", "secret_key": "", "profile": "me"}, {"profile": "me"}),
        (S3, {}, {}),
        (MINIO, {"profile": "me"}, {"endpoint_url": "http://minio:9000", "profile": "me", **PATH_STYLE}),
        (GS, "/run/secrets/key.json", {"token": "/run/secrets/key.json"}),
        (GS, "", {}),
        (AZURE, {"account_str": "", "account_key": ""}, {"account_name": "account", "anon": True}),
        (AZURE, {"account_str": "b", "account_key": "k"}, {"account_name": "b", "account_key": "k"}),
        (
            AZURE,
            {"auth_type": "managed_identity", "client_id": "id"},
            {"account_name": "account", "credential": ManagedIdentity("id")},
        ),
    ],
)
def test_the_file_goes_before_the_environment(url: CloudUrl, entry: object, expected: dict[str, Any]) -> None:
    assert from_file(url, {url.scheme: {"": entry}}) == expected


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        ("s3://bucket/models", "bucket"),
        ("s3://bucket-2/models", "bucket"),  # a prefix of the text, as in Triton
        ("s3://bucket/large/models", "large"),
        ("s3://other", "default"),
        ("s3://minio:9000/bucket", "minio"),
        ("s3://http://minio:9000/bucket", "minio"),
        ("s3://https://minio:9000/bucket", "tls"),
    ],
)
def test_the_longest_prefix_wins(text: str, profile: str) -> None:
    prefixes = {
        "": "default",
        "s3://bucket": "bucket",
        "s3://bucket/large": "large",
        "s3://minio:9000": "minio",
        "s3://https://minio:9000": "tls",
    }
    document = {"s3": {prefix: {"profile": name} for prefix, name in prefixes.items()}}
    assert from_file(CloudUrl.parse(text), document)["profile"] == profile


@pytest.mark.parametrize(
    ("url", "text", "sentence"),
    [
        (S3, "{", "the file named by $TRITON_CLOUD_CREDENTIAL_PATH is no JSON: "),
        (S3, "[]", "the file named by $TRITON_CLOUD_CREDENTIAL_PATH must be an object of objects: "
         '{"s3": {"": <default>, "s3://<prefix>": <another>}}'),
        (S3, '{"s3": 1}', "the file named by $TRITON_CLOUD_CREDENTIAL_PATH must be an object of objects: "),
        (S3, "{}", 'Cannot match credential for path s3://bucket/models; add an entry "s3": {"": …} to the file'),
        (S3, '{"s3": {"s3://else": {}}, "gs": {"": ""}}', "Cannot match credential for path s3://bucket/models; add"),
        (S3, '{"s3": {"": "key"}}', 'an entry of "s3" in the file named by $TRITON_CLOUD_CREDENTIAL_PATH must be an '
         "object of strings"),
        (S3, '{"s3": {"": {"key_id": 1}}}', 'an entry of "s3" in the file named by $TRITON_CLOUD_CREDENTIAL_PATH must'),
        (S3, '{"s3": {"": {"key": "secret text"}}}', "'key' is no field of an entry of \"s3\" in the file named by "
         "$TRITON_CLOUD_CREDENTIAL_PATH; there are key_id, profile, region, secret_key, session_token"),
        (GS, '{"gs": {"": {}}}', 'an entry of "gs" in the file named by $TRITON_CLOUD_CREDENTIAL_PATH must be the'),
        (AZURE, '{"as": {"": {"account": "a"}}}', "'account' is no field of an entry of \"as\" in the file named by "),
    ],
)  # fmt: skip
def test_files_that_say_nothing(url: CloudUrl, text: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        options(url, {}, text)
    assert str(refusal.value).startswith(sentence)
    assert "secret text" not in str(refusal.value)


def test_where_to_look_when_the_cloud_says_no() -> None:
    assert "AWS_SECRET_ACCESS_KEY" in remedy(S3, {})
    assert "GOOGLE_APPLICATION_CREDENTIALS" in remedy(GS, {})
    assert "AZURE_STORAGE_KEY" in remedy(AZURE, {})
    assert remedy(S3, {"TRITON_CLOUD_CREDENTIAL_PATH": "/c.json"}) == (
        "check the entry for it in '/c.json' ($TRITON_CLOUD_CREDENTIAL_PATH)"
    )
