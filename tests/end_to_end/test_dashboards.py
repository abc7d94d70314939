"""deploy/grafana and deploy/prometheus: whatever they ask for is there, under that name and with those labels."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from shoal import metric_families as families
from tests.end_to_end.figures import exposition, samples
from tests.end_to_end.server import Server

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "shoal.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
#: The words of PromQL that the expressions use.
WORDS = frozenset(
    "absent avg by histogram_quantile increase label_values max model or rate sum time".split()  # noqa: SIM905
)


class Expression(NamedTuple):
    """A query, and the labels that are used of what it yields."""

    where: str
    text: str
    shown: frozenset[str]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> Iterator[Expression]:
    for panel in panels():
        for target in panel["targets"]:
            shown = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            yield Expression(panel["title"], target["expr"], frozenset(shown))
    for rule in rules():
        shown = re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))
        yield Expression(rule["alert"], rule["expr"], frozenset(shown))
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            yield Expression(variable["name"], variable["query"]["query"], frozenset())


EXPRESSIONS = list(expressions())


def known_labels(server: Server) -> dict[str, set[str]]:
    """Of each metric that the server tells, and of those that it may lack: GPUs', keys', shadows', rollouts' and
    certificates'."""
    known: dict[str, set[str]] = {}
    for name, labels in samples(exposition(server)):
        known.setdefault(name, set()).update(dict(labels))
    others = [each.family for each in (*families.GPU_FAMILIES, *families.KEY_FAMILIES, *families.SHADOW_FAMILIES)]
    others += [families.MODEL_GPU_MEMORY, families.CERTIFICATE_EXPIRY, families.ROLLOUT_WEIGHT, families.ROLLOUT_STATE]
    for family in others:
        known.setdefault(family.name, set(family.labels))
    return known


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda expression: expression.where)
def test_every_metric_and_label_is_there(samples_metrics: dict[str, set[str]], expression: Expression) -> None:
    used = re.findall(r"\b((?:nv|shoal)_\w+)(\{[^}]*\})?", expression.text)
    assert used
    for name, matchers in used:
        assert name in samples_metrics
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= samples_metrics[name], name
    groups = [re.findall(r"\w+", group) for group in re.findall(r"\bby \(([^)]*)\)", expression.text)]
    common = set.intersection(*(samples_metrics[name] for name, _ in used))
    assert {label for group in groups for label in group} <= common
    left = set(map(frozenset, groups)) or {frozenset(common)}
    assert all(expression.shown <= labels for labels in left)


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=lambda expression: expression.where)
def test_no_word_of_an_expression_is_overlooked(expression: Expression) -> None:
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", "", expression.text)
    words = set(re.findall(r"[a-zA-Z_]\w*", plain))
    assert {word for word in words if not word.startswith(("nv_", "shoal_"))} <= WORDS


@pytest.fixture(scope="module")
def samples_metrics(samples: Server) -> dict[str, set[str]]:
    return known_labels(samples)


def test_whatever_shoal_tells_of_itself_is_shown_or_watched() -> None:
    queries = " ".join(expression.text for expression in EXPRESSIONS)
    names = [family.name for family in families.ALL if family.name.startswith("shoal_")]
    assert [name for name in names if name not in queries] == []


def test_panels_lie_beside_each_other() -> None:
    ids = [panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(ids) == len(set(ids))
    places = [tuple(sorted(panel["gridPos"].items())) for panel in panels()]
    assert len(places) == len(set(places))


def test_every_alert_says_for_how_long_how_bad_and_what_to_do() -> None:
    for rule in rules():
        assert rule["for"], rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert len(rule["annotations"]["description"]) > 80
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))


# Only Debian's package has promtool. Without it the names are still held against a real server, and Prometheus's own
# client library reads the exposition, in the tests above.
@pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="NOT CHECKED: the rules by promtool, since it is not installed (Debian's package prometheus)",
)
def test_promtool_accepts_the_rules() -> None:
    checked = subprocess.run(["promtool", "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
