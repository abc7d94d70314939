"""A registered version: TorchServe's errors for workers that do not come up."""

import pytest

from shoal.errors import InternalError, UnavailableError
from shoal.supervisor.models.registration import failed_start
from shoal.torchserve_errors import torchserve_error


@pytest.mark.parametrize(
    ("reason", "beginning"),
    [
        ("no handler", "ts:500:InternalServerException:Failed to start workers for model m version: 1.0. no handler"),
        ("MemoryError", "ts:507:InternalServerException:Failed to start workers for model m version: 1.0. MemoryError"),
        ("CUDA is out of memory", "ts:507:InternalServerException:Failed to start workers for model m version: 1.0."),
        (
            "load failed: the environment of '/r.txt' cannot be made: pip failed with\nno such package",
            "ts:400:ModelException:Custom pip package installation failed for model m. load failed: the environment",
        ),
    ],
)
def test_a_start_that_fails(reason: str, beginning: str) -> None:
    assert str(failed_start("m", "1.0", UnavailableError(reason))).startswith(beginning)


def test_a_reason_in_torchserves_form_is_read_without_it() -> None:
    error = torchserve_error(404, "ModelNotFoundException", "Model not found: n")
    assert str(failed_start("m", "1.0", error)).endswith("version: 1.0. Model not found: n")
    assert isinstance(failed_start("m", "1.0", error), InternalError)
