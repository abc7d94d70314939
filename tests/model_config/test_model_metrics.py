"""model_metrics.py: the bounds a model chooses for the histogram of first responses, and Triton's sentences."""

from pathlib import Path

import pytest

from shoal.errors import InvalidArgumentError
from shoal.model_config import pbtxt
from shoal.model_config.checks import check_unfinished
from shoal.model_config.messages import Config
from shoal.model_config.model_metrics import first_response_bounds
from shoal.model_config.normalise import normalise

FAMILY = 'metric_identifier { family: "nv_inference_first_response_histogram_ms" }'


def parsed(control: str) -> Config:
    return normalise(pbtxt.parse(f'name: "m" backend: "identity" model_metrics {{ {control} }}', Path("config.pbtxt")))


def buckets(values: str) -> str:
    return f"metric_control {{ {FAMILY} histogram_options {{ buckets: [ {values} ] }} }}"


def test_a_models_buckets_take_the_place_of_tritons() -> None:
    config = parsed(buckets("-1, 0.0, 1, 2.5"))
    check_unfinished(config)
    assert first_response_bounds(config) == (-1.0, 0.0, 1.0, 2.5)


@pytest.mark.parametrize("config", [{"name": "m"}, parsed("")])
def test_without_a_choice_they_are_tritons(config: Config) -> None:
    assert first_response_bounds(config) == (100.0, 500.0, 2000.0, 5000.0)


@pytest.mark.parametrize(
    ("control", "sentence"),
    [
        ("metric_control {}", "metric control must specify 'metric_identifier'"),
        ("metric_control { metric_identifier {} }", "metric identifier must specify non-empty 'family'"),
        (f"metric_control {{ {FAMILY} }}", "metric control must specify 'histogram_options'"),
        (f"metric_control {{ {FAMILY} histogram_options {{}} }}", "histogram options must specify non-empty 'buckets'"),
        (
            'metric_control { metric_identifier { family: "x" } histogram_options { buckets: 1 } }',
            "model_metrics of m name the family 'x', which has no buckets to choose; "
            "only nv_inference_first_response_histogram_ms has",
        ),
        (
            buckets("1, 1"),
            "buckets of nv_inference_first_response_histogram_ms for m must be finite and ascending",
        ),
        (
            buckets("1, inf"),
            "buckets of nv_inference_first_response_histogram_ms for m must be finite and ascending",
        ),
        (
            buckets(", ".join(map(str, range(65)))),
            "nv_inference_first_response_histogram_ms has 65 buckets for m, must have at most 64",
        ),
    ],
)
def test_faults_have_tritons_sentences(control: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        check_unfinished(parsed(control))
    assert str(refused.value) == sentence
