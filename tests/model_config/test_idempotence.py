"""Which models' requests may be executed a second time."""

from typing import Any

import pytest

from shoal.model_config.idempotence import may_run_again


def config(backend: str, said: str | None = None, **more: Any) -> dict[str, Any]:
    parameters = {} if said is None else {"idempotent": {"string_value": said}}
    return {"backend": backend, "parameters": parameters, **more}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (config("onnxruntime"), True),
        (config("identity"), True),
        (config("onnxruntime", "false"), False),
        (config("python"), False),
        (config("python", "true"), True),
        (config("pytorch"), True),
        (config("pytorch", runtime="model.py"), False),
        (config("python", "1"), False),
        (config("a_users_own"), False),
        (config("a_users_own", "true"), True),
        (config("", ensemble_scheduling={}), True),
        (config("onnxruntime", sequence_batching={}), False),
        (config("python", "true", model_transaction_policy={"decoupled": True}), False),
        (config("onnxruntime", model_transaction_policy={"decoupled": False}), True),
    ],
)
def test_built_in_backends_and_models_that_say_so(asked: dict[str, Any], expected: bool) -> None:
    assert may_run_again(asked) is expected
