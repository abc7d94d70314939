"""determinism.py: both parameters, and what contradicts them."""

from typing import Any

import pytest

from shoal.model_config.determinism import Mode, batch_drift_share, faults, faults_when_finished, mode, padded_rows

WHICH = "parameter 'deterministic' of model 'm'"
SHARE = "parameter 'batch_drift_share' of model 'm'"


def config(deterministic: str | None = None, share: str | None = None, /, **more: Any) -> dict[str, Any]:
    given = {"deterministic": deterministic, "batch_drift_share": share}
    tensors: dict[str, Any] = {"input": [{"allow_ragged_batch": False}], "batch_input": [], "batch_output": []}
    return {
        "name": "m",
        "backend": "onnxruntime",
        "max_batch_size": 8,
        **tensors,
        "parameters": {key: {"string_value": text} for key, text in given.items() if text is not None},
        **more,
    }


@pytest.mark.parametrize(
    ("text", "wanted", "rows"),
    [(None, Mode.NONE, 0), ("false", Mode.NONE, 0), ("true", Mode.ALONE, 0), ("padded", Mode.PADDED, 8)],
)
def test_a_model_is_not_deterministic_alone_or_padded(text: str | None, wanted: Mode, rows: int) -> None:
    given = config(text)
    assert [*faults(given), *faults_when_finished(given)] == []
    assert (mode(given), padded_rows(given)) == (wanted, rows)


@pytest.mark.parametrize("scheduler", ["sequence_batching", "ensemble_scheduling"])
def test_other_schedulers_have_other_batches(scheduler: str) -> None:
    ends = f"the model has '{scheduler}'. Remove one of them"
    assert list(faults(config("true", **{scheduler: {}}))) == [f"{WHICH} is about dynamic batching; {ends}"]
    assert list(faults(config("false", **{scheduler: {}}))) == []
    assert list(faults(config(None, "0.1", **{scheduler: {}}))) == [
        f"{SHARE} runs requests once more, which is not possible with '{scheduler}'. Remove one of them"
    ]


@pytest.mark.parametrize("text", ["0", "1", "0.01", ".5", "1.0"])
def test_a_share_is_a_number_up_to_one(text: str) -> None:
    given = config(None, text)
    assert [*faults(given), *faults_when_finished(given)] == []
    assert batch_drift_share(given) == float(text)


def test_only_batches_that_can_run_again_are_compared() -> None:
    alone = f"{SHARE} compares answers of batches, and 'deterministic' runs every request alone. Remove one of them"
    assert list(faults(config("true", "0.1"))) == [alone]
    assert list(faults(config("padded", "0.1"))) == []
    decoupled = config(None, "0.1", model_transaction_policy={"decoupled": True})
    assert list(faults(decoupled)) == [
        f"{SHARE} runs requests once more, which is not possible for a decoupled model. Remove one of them"
    ]
    assert list(faults_when_finished(config(None, "0.1", max_batch_size=1))) == [
        f"{SHARE} compares answers of batches: 'max_batch_size' is 1, must be at least 2"
    ]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"backend": "python"}, "which backend 'python' cannot be: its model sees each request. Use 'true'"),
        ({"backend": "mine"}, "which backend 'mine' cannot be: its model sees each request. Use 'true'"),
        ({"max_batch_size": 0}, "but 'max_batch_size' is 0: there is no batch to pad. Use 'true'"),
        (
            {"input": [{"allow_ragged_batch": True}]},
            "and its batches are ragged: they have no rows to add. Use 'true'",
        ),
    ],
)
def test_rows_can_be_added_to_arrays_of_rows_alone(more: dict[str, Any], sentence: str) -> None:
    assert list(faults_when_finished(config("padded", **more))) == [f"{WHICH} is 'padded', {sentence}"]
    assert list(faults_when_finished(config("true", **more))) == []
