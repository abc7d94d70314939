"""execution_timeout.py: the parameter; test_parameters.py has what is wrong with it."""

import pytest

from shoal.model_config.execution_timeout import execution_timeout_ms, faults
from shoal.model_config.messages import Config


def config(text: str) -> Config:
    return {"name": "m", "parameters": {"execution_timeout_ms": {"string_value": text}}}


@pytest.mark.parametrize(("text", "milliseconds"), [("0", 0), ("1500", 1500), ("3600000", 3_600_000)])
def test_whole_milliseconds_up_to_an_hour(text: str, milliseconds: int) -> None:
    assert list(faults(config(text))) == []
    assert execution_timeout_ms(config(text)) == milliseconds


def test_left_to_the_server() -> None:
    assert list(faults({"name": "m", "parameters": {}})) == []
    assert execution_timeout_ms({"name": "m", "parameters": {}}) is None
