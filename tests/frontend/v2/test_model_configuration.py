"""frontend/v2/metadata.py: the configuration as clients read it."""

import orjson
import pytest
from google.protobuf.json_format import ParseDict

from shoal.errors import NotFoundError
from shoal.frontend.state import ServerState
from shoal.frontend.v2.metadata import model_config
from shoal.model_config import pbtxt
from tests.frontend.calls import call_of


def test_it_is_the_configuration_itself_with_numbers_for_64_bits(state: ServerState) -> None:
    response = model_config(call_of(state, name="simple", version="1"))
    (body,) = response.chunks
    assert response.headers == (("Content-Type", "application/json"),)
    assert bytes(body).startswith(b'{"name":"simple","platform":"onnxruntime_onnx","backend":"onnxruntime",')
    assert b'"dynamic_batching":{"max_queue_delay_microseconds":9007199254740993}' in bytes(body)


def test_triton_s_own_message_takes_it(state: ServerState) -> None:
    (body,) = model_config(call_of(state, name="simple")).chunks
    config = pbtxt.to_config(ParseDict(orjson.loads(body), pbtxt.new_message()))
    assert config["max_batch_size"] == 8
    assert [(each["name"], each["dims"]) for each in config["input"]] == [("INPUT0", [16]), ("INPUT1", [16])]
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 9007199254740993


def test_an_unknown_model_has_none(state: ServerState) -> None:
    with pytest.raises(NotFoundError, match="Request for unknown model: 'none' is not found"):
        model_config(call_of(state, name="none"))
