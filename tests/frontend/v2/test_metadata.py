"""frontend/v2/metadata.py: what clients are told about the server and its models."""

import pytest

from shoal.errors import UnavailableError
from shoal.frontend.regions import Regions
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState
from shoal.frontend.v2.metadata import model_metadata, server_metadata
from tests.frontend.calls import call_of


def body(response: Response) -> bytes:
    return b"".join(response.chunks)


def test_the_server_names_itself_its_protocol_and_what_works() -> None:
    assert body(server_metadata(call_of(ServerState(server_id="eins")))) == (
        b'{"name":"eins","version":"2.73.0",'
        b'"extensions":["classification","sequence","model_repository","model_repository(unload_dependents)",'
        b'"schedule_policy","model_configuration","binary_tensor_data","parameters","statistics","trace","logging"]}'
    )


def test_clients_shared_memory_is_an_extension_where_it_is_allowed() -> None:
    state = ServerState(regions=Regions(are_allowed=True))
    assert b'"model_configuration","system_shared_memory","binary_tensor_data"' in body(server_metadata(call_of(state)))
    state = ServerState(regions=Regions(are_allowed=True, has_gpus=True))
    both = b'"model_configuration","system_shared_memory","cuda_shared_memory","binary_tensor_data"'
    assert both in body(server_metadata(call_of(state)))
    assert b"shared_memory" not in body(server_metadata(call_of(ServerState(regions=Regions(has_gpus=True)))))


def test_a_batching_model_has_a_free_first_dimension(state: ServerState) -> None:
    assert body(model_metadata(call_of(state, name="simple"))) == (
        b'{"name":"simple","versions":["1","3"],"platform":"onnxruntime_onnx","inputs":['
        b'{"name":"INPUT0","datatype":"INT32","shape":[-1,16]},{"name":"INPUT1","datatype":"INT32","shape":[-1,16]}],'
        b'"outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[-1,16]},'
        b'{"name":"OUTPUT1","datatype":"INT32","shape":[-1,16]}]}'
    )


def test_shapes_are_dims_not_reshape_and_the_backend_stands_in_for_the_platform(state: ServerState) -> None:
    assert (
        body(model_metadata(call_of(state, name="écho b")))
        == (
            '{"name":"écho b","versions":["1"],"platform":"identity",'
            '"inputs":[{"name":"TEXT","datatype":"BYTES","shape":[-1,2]}],'
            '"outputs":[{"name":"TEXT","datatype":"BYTES","shape":[-1,2]}]}'
        ).encode()
    )


def test_a_version_in_the_path_is_the_only_one_listed(state: ServerState) -> None:
    assert b'"versions":["1"]' in body(model_metadata(call_of(state, name="simple", version="1")))


def test_versions_are_not_listed_while_stopping(state: ServerState) -> None:
    state.exiting = True
    with pytest.raises(UnavailableError, match=r"^Server not ready$"):
        model_metadata(call_of(state, name="simple"))
    assert model_metadata(call_of(state, name="simple", version="1")).status == 200
