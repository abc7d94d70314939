"""frontend/v2/metadata.py: what clients are told about the server and its models."""

import orjson
import pytest
from google.protobuf.json_format import ParseDict

from shoal.errors import UnavailableError
from shoal.frontend.regions import Regions
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState
from shoal.frontend.v2.metadata import model_config, model_metadata, server_metadata
from shoal.model_config import pbtxt
from tests.frontend.calls import call_of


def body(response: Response) -> bytes:
    return b"".join(response.chunks)


def test_clients_shared_memory_is_an_extension_where_it_is_allowed() -> None:
    state = ServerState(regions=Regions(are_allowed=True))
    assert b'"model_configuration","system_shared_memory","binary_tensor_data"' in body(server_metadata(call_of(state)))
    state = ServerState(regions=Regions(are_allowed=True, has_gpus=True))
    both = b'"model_configuration","system_shared_memory","cuda_shared_memory","binary_tensor_data"'
    assert both in body(server_metadata(call_of(state)))
    assert b"shared_memory" not in body(server_metadata(call_of(ServerState(regions=Regions(has_gpus=True)))))


def test_versions_are_not_listed_while_stopping(state: ServerState) -> None:
    state.exiting = True
    with pytest.raises(UnavailableError, match=r"^Server not ready$"):
        model_metadata(call_of(state, name="simple"))
    assert model_metadata(call_of(state, name="simple", version="1")).status == 200


def test_the_configuration_is_the_model_s_own_with_numbers_for_64_bits(state: ServerState) -> None:
    response = model_config(call_of(state, name="simple", version="1"))
    assert response.headers == (("Content-Type", "application/json"),)
    assert body(response).startswith(b'{"name":"simple","platform":"onnxruntime_onnx","backend":"onnxruntime",')
    assert b'"dynamic_batching":{"max_queue_delay_microseconds":9007199254740993}' in body(response)


def test_triton_s_own_message_takes_the_configuration(state: ServerState) -> None:
    told = orjson.loads(body(model_config(call_of(state, name="simple"))))
    config = pbtxt.to_config(ParseDict(told, pbtxt.new_message()))
    assert config["max_batch_size"] == 8
    assert [(each["name"], each["dims"]) for each in config["input"]] == [("INPUT0", [16]), ("INPUT1", [16])]
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 9007199254740993
