"""docs/migrate-from-triton.md: its manifest and the change to it, its fields and its commands."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from shoal.cli.serve import parse
from shoal.model_config.support import FEATURES, HARMLESS
from shoal.options import ServerOptions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migrate-from-triton.md").read_text()


def fenced(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def manifests() -> tuple[dict[str, Any], dict[str, Any]]:
    """Triton's, and what the diff makes of it."""
    [before], [diff] = fenced("yaml"), fenced("diff")
    after = before
    for removed, added in re.findall(r"^-(.*)\n\+(.*)$", diff, re.MULTILINE):
        assert after.count(removed) == 1
        after = after.replace(removed, added)
    return yaml.safe_load(before), yaml.safe_load(after)


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    [only] = manifest["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


@pytest.mark.parametrize("manifest", manifests(), ids=["before", "after"])
def test_both_manifests_are_valid(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_diff_changes_the_image_and_nothing_else() -> None:
    before, after = manifests()
    assert container(before)["image"].startswith("nvcr.io/nvidia/tritonserver:")
    image = container(after)["image"]
    assert f"docker build -f deploy/Containerfile -t {image} .\n" in fenced("sh")
    container(before)["image"] = image
    assert before == after


def test_the_server_takes_the_arguments_without_a_word() -> None:
    _, after = manifests()
    assert container(after)["command"] == ["tritonserver"]
    defaults = ServerOptions(http_address="0.0.0.0")
    options, warnings = parse(container(after)["args"], prog="tritonserver", defaults=defaults, environ={})
    assert warnings == ()
    grace = after["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace >= options.exit_timeout_secs + 15


def fields(heading: str) -> set[str]:
    """The fields in the first column of the table with this heading."""
    [rows] = re.findall(rf"^\| {heading} \|.*\n\|[ -|]*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return {field for row in rows.splitlines() for field in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_every_field_that_is_refused_or_does_nothing_is_listed() -> None:
    assert fields("refused") == {feature.path for feature in FEATURES}
    assert fields("without effect") == set(HARMLESS)
