"""Model control through a real server: what is loaded when, by whom, and what stays when something goes wrong."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.end_to_end.lifecycle import index, index_once, infer, instances, ready, unloaded, write_model
from tests.end_to_end.server import DEADLINE_S, Server, serving_to_the_end
from tests.end_to_end.traffic import MODEL


@pytest.fixture(scope="module")
def client(explicit: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(explicit.url, network_timeout=DEADLINE_S) as made:
        yield made


@pytest.fixture
def a(client: triton.InferenceServerClient, shared: Path, request: pytest.FixtureRequest) -> str:
    """A model that is loaded."""
    name = f"a_{request.node.name}"
    write_model(shared, name, 1)
    client.load_model(name)
    return name


@pytest.fixture
def b(shared: Path, request: pytest.FixtureRequest) -> str:
    """A model that is not."""
    name = f"b_{request.node.name}"
    write_model(shared, name, 1)
    return name


def test_a_model_may_have_files_whose_names_are_no_utf_8(
    client: triton.InferenceServerClient, explicit: Server, shared: Path, b: str
) -> None:
    for directory in (shared / b, shared / b / "1"):
        (directory / os.fsdecode(b"caf\xe9.txt")).touch()
    client.load_model(b)
    assert index(client, b) == [ready(b)]


def test_a_model_is_loaded_and_unloaded_on_request(client: triton.InferenceServerClient, a: str, b: str) -> None:
    assert index(client, a, b) == [ready(a), {"name": b}]
    assert not client.is_model_ready(b)
    client.load_model(b)
    assert client.is_model_ready(b)
    assert infer(client, b) == "1"
    assert index(client, a, b) == [ready(a), ready(b)]
    client.load_model(b)  # nothing has changed: nothing is done
    client.unload_model(b)
    with pytest.raises(InferenceServerException, match=f"'{b}' has no available versions"):
        infer(client, b)
    index_once(client, [ready(a), unloaded(b)])
    assert client.is_server_ready()
    client.load_model(b)
    assert infer(client, b) == "1"


def test_a_new_version_takes_the_old_ones_place(client: triton.InferenceServerClient, shared: Path, a: str) -> None:
    write_model(shared, a, 2)
    assert infer(client, a) == "1"
    client.load_model(a)
    assert infer(client, a) == "2"
    with pytest.raises(InferenceServerException, match="version 1 is not at ready state"):
        infer(client, a, "1")
    index_once(client, [unloaded(a, 1), ready(a, 2)])


def test_all_versions_serve_where_the_policy_says_so(
    client: triton.InferenceServerClient, shared: Path, b: str
) -> None:
    write_model(shared, b, 1, 2, 3, config=MODEL + "version_policy { all { } }")
    client.load_model(b)
    assert [infer(client, b, version) for version in ("1", "2", "")] == ["1", "2", "3"]
    (shared / b / "2").rmdir()
    client.load_model(b)
    assert infer(client, b, "1") == "1"
    index_once(client, [ready(b, 1), unloaded(b, 2), ready(b, 3)])


def test_a_load_says_once_that_it_has_succeeded(
    client: triton.InferenceServerClient, explicit: Server, shared: Path, b: str
) -> None:
    def num_said() -> int:
        explicit.read_on()
        return explicit.log.count(f"successfully loaded '{b}'\"".encode())

    write_model(shared, b, 1, 2, config=MODEL + "version_policy { all { } }")
    client.load_model(b)
    assert num_said() == 1
    client.load_model(b)  # nothing has changed
    assert num_said() == 1
    write_model(shared, b, config=MODEL.replace("count: 1", "count: 2") + "version_policy { all { } }")
    client.load_model(b)
    assert num_said() == 2
    (shared / b / "1").rmdir()
    client.load_model(b)
    assert num_said() == 3


def test_what_fails_to_load_leaves_the_old_one_serving_and_says_why(
    client: triton.InferenceServerClient, shared: Path, a: str
) -> None:
    config = shared / a / "config.pbtxt"
    config.write_text(MODEL.replace("TYPE_INT32", "TYPE_INT33"))
    with pytest.raises(InferenceServerException, match=rf"failed to load '{a}', failed to poll.*TYPE_INT33"):
        client.load_model(a)
    assert infer(client, a) == "1"
    (row,) = index(client, a)
    assert (row["state"], row["reason"].split(":")[0]) == ("READY", "serving what was loaded before")
    assert client.is_server_ready()
    # One that can be read, but not be served: identity answers each input by an output.
    config.write_text(MODEL + 'output { name: "C" data_type: TYPE_INT32 dims: [ 4 ] }')
    with pytest.raises(
        InferenceServerException, match=rf"load failed for model '{a}': version 1 is at UNAVAILABLE state: "
    ):
        client.load_model(a)
    assert infer(client, a) == "1"
    assert "serving what was loaded before" in index(client, a)[0]["reason"]
    config.write_text(MODEL)
    client.load_model(a)
    assert index(client, a) == [ready(a)]


def test_a_configuration_may_come_with_the_request(client: triton.InferenceServerClient, shared: Path, a: str) -> None:
    config = client.get_model_config(a)
    del config["dynamic_batching"]  # its preferred sizes are for eight
    client.load_model(a, config=json.dumps({**config, "max_batch_size": 3}))
    assert client.get_model_config(a)["max_batch_size"] == 3
    client.load_model(a)  # nothing has changed in the directory: the configuration stays
    assert client.get_model_config(a)["max_batch_size"] == 3
    with pytest.raises(InferenceServerException, match=r"^\[500\] failed to load '.*Invalid config override: "):
        client.load_model(a, config='{"max_batch": 3}')
    with pytest.raises(InferenceServerException, match="version 1 is at UNAVAILABLE state"):
        client.load_model(a, config=json.dumps({**config, "max_batch_size": 3, "output": config["output"] * 2}))
    client.load_model(a)
    assert client.get_model_config(a)["max_batch_size"] == 3
    # What has changed in the directory is read, the configuration as well.
    write_model(shared, a, 2)
    client.load_model(a)
    assert (client.get_model_config(a)["max_batch_size"], infer(client, a)) == (8, "2")


@pytest.mark.parametrize("change", ["config", "unload", "files"])
def test_a_configuration_that_came_with_a_request_goes(
    client: triton.InferenceServerClient, shared: Path, a: str, change: str
) -> None:
    given = json.dumps({**client.get_model_config(a), "max_batch_size": 3, "dynamic_batching": {}})
    client.load_model(a, config=given, files={"file:1/any": b"any"} if change == "files" else None)
    assert client.get_model_config(a)["max_batch_size"] == 3
    if change == "config":
        (shared / a / "config.pbtxt").write_text(MODEL.replace("max_batch_size: 8", "max_batch_size: 4"))
    elif change == "unload":
        client.unload_model(a)
    client.load_model(a)
    assert client.get_model_config(a)["max_batch_size"] == (4 if change == "config" else 8)


def test_a_configuration_that_came_with_a_request_outlives_a_broken_one(
    client: triton.InferenceServerClient, shared: Path, a: str
) -> None:
    (shared / a / "config.pbtxt").write_text("no configuration")
    given = json.dumps({**client.get_model_config(a), "max_batch_size": 3, "dynamic_batching": {}})
    client.load_model(a, config=given)
    client.load_model(a)
    assert client.get_model_config(a)["max_batch_size"] == 3


def test_a_configuration_of_a_request_may_have_trailing_commas(client: triton.InferenceServerClient, a: str) -> None:
    text = """{"backend": "identity", "max_batch_size": 3 ,
        "input": [{"name": "A", "data_type": "TYPE_INT32", "dims": [4,],}],
        "output": [{"name": "B", "data_type": "TYPE_INT32", "dims": [4]},],
        "parameters": {"text": {"string_value": ",] ,}\\","},},
    }"""
    client.load_model(a, config=text)
    config = client.get_model_config(a)
    assert (config["max_batch_size"], config["parameters"]["text"]["string_value"]) == (3, ',] ,}",')
    with pytest.raises(InferenceServerException, match=r"^\[500\] failed to load '.*Invalid config override: "):
        client.load_model(a, config='{"backend": "identity",, "max_batch_size": 3}')


def test_instance_groups_change_in_place(client: triton.InferenceServerClient, shared: Path, a: str) -> None:
    (before,) = instances(client, a)
    (shared / a / "config.pbtxt").write_text(MODEL.replace("count: 1", "count: 3"))
    client.load_model(a)
    after = instances(client, a)
    assert [each["name"] for each in after] == [f"{a}_0_{number}" for number in range(3)]
    assert after[0]["pid"] == before["pid"]
    assert client.get_model_config(a)["instance_group"][0]["count"] == 3
    (shared / a / "config.pbtxt").write_text(MODEL)
    client.load_model(a)
    assert [each["pid"] for each in instances(client, a)] == [before["pid"]]


def test_instance_groups_are_renamed_and_removed_in_place(
    client: triton.InferenceServerClient, explicit: Server, shared: Path, a: str
) -> None:
    group = 'instance_group {{ name: "{}" count: 1 kind: KIND_CPU }}'
    one = MODEL.replace("instance_group { count: 1 kind: KIND_CPU }", group.format("first"))
    for config, names in [
        (one + group.format("second"), ["first_0", "second_0"]),
        (one.replace("first", "third") + group.format("second"), ["third_0", "second_0"]),
        (one.replace("first", "second"), ["second_0"]),
    ]:
        (shared / a / "config.pbtxt").write_text(config)
        client.load_model(a)
        assert {each["name"] for each in instances(client, a)} == set(names)
        assert infer(client, a) == "1"
    assert b"Traceback" not in explicit.log


def test_only_explicit_mode_obeys(samples: Server) -> None:
    with triton.InferenceServerClient(samples.url) as client:
        for verb in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException) as refusal:
                verb("simple")
            assert refusal.value.status() == "503"
            assert refusal.value.message() == "explicit model load / unload is not allowed if polling is enabled"


def test_a_repository_may_be_polled_at_the_start_only(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_model(tmp_path, name, 1)
    with (
        serving_to_the_end(tmp_path, "--model-control-mode=poll", "--repository-poll-secs=0") as server,
        triton.InferenceServerClient(server.url) as client,
    ):
        write_model(tmp_path, "c", 1)
        assert index(client) == [ready("a"), ready("b"), {"name": "c"}]
        assert infer(client, "a") == "1"
