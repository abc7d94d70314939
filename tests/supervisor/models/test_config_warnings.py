"""config_warnings.py: what a version's configuration asks for or leaves out, in the log."""

from typing import Any

import pytest

from shoal.supervisor.models.config_warnings import warn_of_no_tensors

TENSOR = [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}]


@pytest.mark.parametrize(
    ("tensors", "warns"),
    [({}, True), ({"input": [], "output": []}, True), ({"output": TENSOR}, False), ({"input": TENSOR}, False)],
)
def test_a_model_that_takes_and_gives_nothing_is_told_of(
    tensors: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_no_tensors({"name": "m", **tensors})
    assert ("model 'm' has no inputs and no outputs" in caplog.text) is warns
