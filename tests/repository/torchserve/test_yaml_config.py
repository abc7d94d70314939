"""model-config.yaml: TorchServe's keys with their types, what is ignored with a warning, and files that are refused."""

from pathlib import Path
from typing import Any

import pytest

from shoal.repository.torchserve.yaml_config import YamlError, read_yaml_config

READ: list[tuple[str, dict[str, Any], list[str]]] = [
    ("", {}, []),
    ("# nothing\n", {}, []),
    ("minWorkers: 1\nmaxWorkers: 4\n", {"minWorkers": 1, "maxWorkers": 4}, []),
    ("batchSize: 8\nmaxBatchDelay: 0\njobQueueSize: 5", {"batchSize": 8, "maxBatchDelay": 0, "jobQueueSize": 5}, []),
    ("minWorkers: 2", {}, ["both are needed"]),
    ("minWorkers: 3\nmaxWorkers: 2", {}, ["both are needed"]),
    ('batchSize: "8"', {}, ["'batchSize' of 'm.yaml' is ignored: expected a whole number from 1 on, got '8'"]),
    ("batchSize: 0", {}, ["'batchSize'"]),
    ("batchSize: true", {}, ["'batchSize'"]),
    ("batchSize: 4294967296", {}, ["'batchSize'"]),
    ("responseTimeout: 1.5\nstartupTimeout: 9", {"startupTimeout": 9}, ["'responseTimeout'"]),
    ("useVenv: yes", {"useVenv": True}, []),
    ("useVenv: 1", {}, ["'useVenv'"]),
    ("deviceType: cpu\ndeviceIds: [0, 2]", {"deviceType": "cpu", "deviceIds": [0, 2]}, []),
    ("deviceType: tpu\ndeviceIds: [0, x]", {}, ["expected cpu or gpu, got 'tpu'", "'deviceIds'"]),
    ("deviceIds: 1", {}, ["'deviceIds'"]),
    ("parallelType: pp\ntorchrun:\n  nproc-per-node: 4", {"parallelType": "pp", "torchrun": {"nproc-per-node": 4}}, []),
    ("torchrun: 4", {}, ["'torchrun'"]),
    ("handler:\n  profile: true\npt2: {compile: {enable: true}}\n7: mine\n2024-01-01: x", {}, []),
    ("torchrun: {2024-01-01: 1}", {}, ["expected a mapping, its keys texts"]),
    ("base: &b {x: 1}\nmine: {<<: *b, y: 2}\nbatchSize: 2", {"batchSize": 2}, []),
]

#: Lists of ten times the one before, by aliases.
LAUGHS = [b"a%d: &a%d [%s]\n" % (each, each, b", ".join([b"*a%d" % (each - 1)] * 10)) for each in range(1, 10)]

REFUSED = [
    (b"a: [1", "is no YAML"),
    (b"a: b: c", "is no YAML"),
    (b"- 1", "is no mapping"),
    (b"text", "is no mapping"),
    (b"a: !!python/object/apply:os.system ['true']", "is no YAML"),
    (b"a: \xff\xfe", "is no YAML"),
    (b"a: 2024-99-99", "value that cannot be read"),
    (b"[" * 60_000, "is no YAML"),
    (b"#" * 300_000, "is larger than"),
    (b"a: &a [x]\nb: [" + b"*a, " * 101 + b"]", "more than 100 aliases"),
    (b"a: &a {x: 1}\nb: &b {<<: [*a, *a]}\n" + b"c: {<<: *b}\n" * 4, "or 4 merged mappings"),
    (b"torchrun: &a {x: [*a]}", "has a value that contains itself"),
    (b"deviceIds: [0x" + b"f" * 9000 + b"]", "a whole number of more than 64 bits"),
    (b"a0: &a0 [x]\n" + b"".join(LAUGHS), "more than 262144 values, aliases written out"),
]


def written(directory: Path, raw: bytes) -> Path:
    (directory / "m.yaml").write_bytes(raw)
    return directory / "m.yaml"


@pytest.mark.parametrize(("text", "expected", "warnings"), READ)
def test_settings_are_read(
    text: str, expected: dict[str, Any], warnings: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_yaml_config(written(tmp_path, text.encode())) == expected
    assert len(caplog.messages) == len(warnings)
    assert all(wanted in said for wanted, said in zip(warnings, caplog.messages, strict=True))


@pytest.mark.parametrize(("raw", "reason"), REFUSED)
def test_a_file_that_is_no_mapping_is_refused(raw: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(YamlError, match=reason):
        read_yaml_config(written(tmp_path, raw))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(YamlError, match="cannot be read"):
        read_yaml_config(tmp_path / "none.yaml")
