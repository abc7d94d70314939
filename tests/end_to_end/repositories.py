"""Model repositories that tests write."""

from pathlib import Path


def add_model(repository: Path, name: str, config: str, code: str = "") -> Path:
    """A model of one version, with a `model.py` where there is code; the version's directory."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    if code:
        (directory / "model.py").write_text(code)
    return directory
