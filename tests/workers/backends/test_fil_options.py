"""Triton's parameters for forests, each by itself."""

from dataclasses import replace

import pytest

from shoal.errors import InvalidArgumentError
from shoal.workers.backends.backend import Device
from shoal.workers.backends.fil_options import ForestSettings, forest_settings
from tests.workers.worker_harness import model, model_config

DEFAULTS = ForestSettings(
    model_type="xgboost",
    is_classifier=True,
    predict_proba=False,
    threshold=0.5,
    allow_unknown_field=False,
    num_threads=3,
)


def settings(**parameters: str) -> ForestSettings:
    config = model_config([], [], parameters=parameters)
    return forest_settings(model(config), Device("KIND_CPU", 0, (2, 3, 5)))


def test_defaults() -> None:
    assert settings(is_classifier="true") == DEFAULTS
    assert settings(is_classifier="false") == replace(DEFAULTS, is_classifier=False)


def test_a_class_is_wanted_of_a_classifier_unless_its_scores_are() -> None:
    assert settings(is_classifier="true").is_class_wanted
    assert not settings(is_classifier="true", predict_proba="true").is_class_wanted
    assert not settings(is_classifier="false").is_class_wanted


def test_the_older_name_of_is_classifier() -> None:
    assert settings(output_class="true") == DEFAULTS
    assert settings(output_class="true", is_classifier="false").is_classifier is False


def test_what_is_said() -> None:
    assert settings(
        model_type="lightgbm",
        is_classifier="true",
        predict_proba="true",
        threshold="0.25",
        xgboost_allow_unknown_field="true",
        cpu_nthread="2",
    ) == ForestSettings("lightgbm", True, True, 0.25, True, 2)


@pytest.mark.parametrize(("cpu_nthread", "num_threads"), [("-1", 3), ("0", 3), ("1", 1), ("8", 3)])
def test_threads_are_the_cores_at_most(cpu_nthread: str, num_threads: int) -> None:
    assert settings(is_classifier="true", cpu_nthread=cpu_nthread).num_threads == num_threads


def test_what_tunes_triton_only_changes_nothing() -> None:
    assert (
        settings(
            is_classifier="true",
            layout="breadth_first",
            algo="ALGO_AUTO",
            storage_type="SPARSE8",
            chunk_size="4",
            transfer_threshold="2",
            blocks_per_sm="0",
            threads_per_tree="1",
            use_experimental_optimizations="true",
        )
        == DEFAULTS
    )


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        (
            "model_type",
            "catboost",
            "catboost not recognized as a valid serialization format. Parameter 'model_type' of model 'm' may be "
            "xgboost, xgboost_json, xgboost_ubj, lightgbm, treelite_checkpoint",
        ),
        ("predict_proba", "1", "Expected 'true' or 'false' for parameter 'predict_proba', got: '1', in model 'm'"),
        ("is_classifier", "yes", "Expected 'true' or 'false' for parameter 'is_classifier', got: 'yes', in model 'm'"),
        ("threshold", "half", "model 'm': parameter 'threshold' must be a number, got 'half'"),
        ("threshold", "nan", "model 'm': parameter 'threshold' must be a number, got 'nan'"),
        ("chunk_size", "-5", "model 'm': parameter 'chunk_size' must be a whole number, got '-5'"),
        ("chunk_size", "a few", "model 'm': parameter 'chunk_size' must be a whole number, got 'a few'"),
        ("cpu_nthread", "all", "model 'm': parameter 'cpu_nthread' must be a whole number, got 'all'"),
        (
            "layout",
            "flat",
            "model 'm': parameter 'layout' must be one of depth_first, breadth_first, layered, "
            "layered_children_together, got 'flat'",
        ),
        (
            "use_experimental_optimizations",
            "on",
            "Expected 'true' or 'false' for parameter 'use_experimental_optimizations', got: 'on', in model 'm'",
        ),
    ],
)
def test_a_value_that_is_none_is_named(key: str, value: str, sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        settings(**{"is_classifier": "true", key: value})
    assert str(caught.value) == sentence


def test_whether_it_classifies_must_be_said() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        settings(model_type="lightgbm")
    assert str(caught.value) == (
        'Required parameter is_classifier not found in config of model \'m\': "true" for classes, "false" for any '
        "other number"
    )
