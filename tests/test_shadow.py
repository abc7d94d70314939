"""shoal/shadow.py, shoal/model_config/shadow.py: a shadow in a configuration, and figures."""

from typing import Any

import pytest

from shoal.model_config.shadow import faults, shadow_rule
from shoal.shadow import MAX_EXAMPLES, ShadowFigure, ShadowRule, worst


def config(more: dict[str, Any] | None = None, **parameters: str) -> dict[str, Any]:
    texts = {name: {"string_value": text} for name, text in parameters.items()}
    return {"name": "m", "parameters": texts, **(more or {})}


def test_parameters_are_a_rule() -> None:
    assert shadow_rule(config()) is None
    assert shadow_rule(config(shadow_of="2", shadow_version="3")) == ShadowRule("m", 2, 3)
    rule = shadow_rule(config(shadow_of="2", shadow_version="3", shadow_share="10%", shadow_compare="top1"))
    assert rule == ShadowRule("m", 2, 3, 0.1, "top1")


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (config(shadow_share="0.1"), "lacks 'shadow_of' and 'shadow_version'"),
        (config(shadow_of="2"), "parameter 'shadow_version' of model 'm' is 'None', must be the number of a version"),
        (config(shadow_of="two", shadow_version="3"), "parameter 'shadow_of' of model 'm' is 'two'"),
        (config(shadow_of="3", shadow_version="3"), "version 3 of model 'm' cannot shadow itself"),
        (config(shadow_of="2", shadow_version="3", shadow_share="2"), "a number from 0 to 1"),
        (config(shadow_of="2", shadow_version="3", shadow_compare="near"), "atol=1e-5"),
        (config({"ensemble_scheduling": {}}, shadow_of="2", shadow_version="3"), "it is an ensemble"),
        (config({"sequence_batching": {}}, shadow_of="2", shadow_version="3"), "sequence batcher"),
        (config({"model_transaction_policy": {"decoupled": True}}, shadow_of="2", shadow_version="3"), "decoupled"),
        (config({"dynamic_batching": {"preserve_ordering": True}}, shadow_of="2", shadow_version="3"), "order"),
    ],
)
def test_what_cannot_be_mirrored_is_refused(found: dict[str, Any], sentence: str) -> None:
    (fault,) = faults(found)
    assert sentence in fault
    assert list(faults(config(shadow_of="2", shadow_version="3"))) == []


def test_figures_are_added_up() -> None:
    assert ShadowFigure().disagree_share is None
    figure = ShadowFigure(9, 1, 6, 2, 1).plus(ShadowFigure(1, 1, 2, 0, 0))
    assert figure == (10, 2, 8, 2, 1)
    assert figure.disagree_share == 0.2


def test_the_worst_examples_are_kept() -> None:
    examples = [{"failed": number % 7 == 0, "max_abs": float(number)} for number in range(100)]
    kept = worst(examples)
    assert len(kept) == MAX_EXAMPLES
    assert [each["max_abs"] for each in kept] == [98.0, 91.0, 84.0, 77.0, 70.0, 63.0, 56.0, 49.0]
