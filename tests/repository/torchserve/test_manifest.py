"""MANIFEST.json by a table of hand-written texts: what is read, what is left out, what is refused."""

from pathlib import Path

import pytest

from shoal.repository.torchserve.manifest import Manifest, ManifestError, read_manifest

READ = [
    ('{"model": {}}', Manifest()),
    ('{"runtime": "python3", "archiverVersion": "1", "model": {"modelName": "m"}}', Manifest("m", runtime="python3")),
    ('\ufeff{"model": {"modelName": "m", "modelVersion": "2.1-rc", "handler": "h:f"}}', Manifest("m", "2.1-rc", "h:f")),
    ('{"model": {"modelName": "m", "modelVersion": 3, "handler": null, "unknown": [1]}}', Manifest("m", "3")),
    ('{"model": {"modelName": ["m"], "modelVersion": true}}', Manifest(version="true")),
    ('{"model": {"modelName": 7, "modelVersion": 1.10}}', Manifest("7", "1.10")),
    ('{"model": {"modelVersion": 2e1}}', Manifest(version="2e1")),
    (
        '{"modelServerVersion": "1.0", "model": {"modelName": "m", "serializedFile": "a.pt", "modelFile": "n.py", '
        '"sourceVocab": "v.pt", "requirementsFile": "r.txt", "configFile": "c/model-config.yaml"}}',
        Manifest("m", serialized_file="a.pt", model_file="n.py", requirements_file="r.txt",
                 config_file="c/model-config.yaml"),
    ),
]  # fmt: skip

REFUSED = [
    ("", "is no JSON"),
    ("{", "is no JSON"),
    ("[" * 100_000, "is no JSON"),
    ("[]", "is no JSON object"),
    ('{"runtime": "python"}', "has no object 'model'"),
    ('{"model": "m"}', "has no object 'model'"),
    (
        '{"model": {"serializedFile": "../a.pt"}}',
        "'serializedFile' of MAR-INF/MANIFEST.json is '../a.pt', which is no path",
    ),
    ('{"model": {"configFile": "/etc/passwd"}}', "'configFile'"),
    ('{"model": {"modelName": "' + "x" * 1_100_000 + '"}}', "is larger than"),
]


def written(directory: Path, text: str) -> Path:
    (directory / "MAR-INF").mkdir()
    (directory / "MAR-INF" / "MANIFEST.json").write_text(text)
    return directory


@pytest.mark.parametrize(("text", "expected"), READ)
def test_a_manifest_is_read(text: str, expected: Manifest, tmp_path: Path) -> None:
    assert read_manifest(written(tmp_path, text)) == expected


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_a_manifest_that_cannot_be_used_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=reason):
        read_manifest(written(tmp_path, text))


def test_an_archive_may_have_no_manifest(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None


def test_a_manifest_that_is_no_text_or_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "MAR-INF" / "MANIFEST.json").mkdir(parents=True)
    with pytest.raises(ManifestError, match="cannot be read"):
        read_manifest(tmp_path)
    (tmp_path / "MAR-INF" / "MANIFEST.json").rmdir()
    (tmp_path / "MAR-INF" / "MANIFEST.json").write_bytes(b'{"model": {"modelName": "\xff"}}')
    with pytest.raises(ManifestError, match="is no JSON"):
        read_manifest(tmp_path)
