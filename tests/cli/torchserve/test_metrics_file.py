"""metrics.yaml: what it declares, and what is said of a file of another form."""

from pathlib import Path

import pytest
from ts.metrics.unit import UNITS as UNITS_OF_HANDLERS

from shoal.cli.torchserve.metrics_file import UNITS, Metric, read_metrics_file
from shoal.cli.torchserve.properties import PropertiesError

TEXT = """
dimensions:
  - &model_name "ModelName"
  - &level "Level"
ts_metrics:
  counter:
    - name: Requests2XX
      unit: Count
      dimensions: [*level, "Hostname"]
  gauge:
model_metrics:
  histogram:
    - name: times
      unit: ms
      dimensions: [*model_name, *level]
  counter:
    - {name: plain, unit: things}
"""


def test_the_metrics_of_the_server_and_of_handlers(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(TEXT)
    found = read_metrics_file(tmp_path / "m.yaml")
    assert found.of_server == (Metric("counter", "Requests2XX", "Count", ("Level", "Hostname")),)
    assert found.of_handlers == (
        Metric("histogram", "times", "Milliseconds", ("ModelName", "Level")),
        Metric("counter", "plain", "things", ()),
    )


def test_units_are_those_of_handlers() -> None:
    assert UNITS == UNITS_OF_HANDLERS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ts_metrics: [", "is no YAML"),
        ("- a", "is no mapping"),
        ("ts_metrics: [a]", "'ts_metrics' must be a mapping of counter, gauge, histogram, got: ['a']"),
        ("model_metrics: {summary: []}", "'model_metrics' must be a mapping of counter, gauge, histogram"),
        ("model_metrics: {counter: a}", "'counter' of 'model_metrics' must be a list, got: 'a'"),
        ("model_metrics: {counter: [a]}", "must have entries with a name, a unit and a list"),
        ("model_metrics: {counter: [{name: a, unit: ms, dimensions: [1]}]}", "must have entries with a name, a unit"),
        ("model_metrics: {counter: [{unit: ms}]}", "must have entries with a name, a unit"),
    ],
)
def test_another_form_is_refused_with_the_file(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    with pytest.raises(PropertiesError) as raised:
        read_metrics_file(path)
    assert str(raised.value).startswith(f"metrics_config={path}: ")
    assert words in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PropertiesError, match=r"metrics_config=.*gone: 'gone' cannot be read: No such file"):
        read_metrics_file(tmp_path / "gone")
