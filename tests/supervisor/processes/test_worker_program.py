"""worker_program.py: a worker, forked by its kind's zygote; or the maker of an environment, without a zygote."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from shoal.environments.wanted import Wanted
from shoal.options import ServerOptions
from shoal.placement import Gpu, Placement
from shoal.repository.lifecycle import ModelVersion
from shoal.supervisor.instance_context import InstanceContext
from shoal.supervisor.processes.children import ChildProgram
from shoal.supervisor.processes.worker_program import load_message, worker_program
from shoal.supervisor.processes.zygotes import MODULES

PLACEMENT = Placement("m_0_0", "m_0", "KIND_CPU", 0, (0, 1))


def program(
    backend: str, placement: Placement = PLACEMENT, directory: Path = Path("/r/m/1"), **parameters: str
) -> tuple[str, ChildProgram]:
    config: dict[str, Any] = {
        "backend": backend,
        "parameters": {key: {"string_value": value} for key, value in parameters.items()},
    }
    version = ModelVersion("m", 1, 1, 0, directory, config)
    options = ServerOptions(backend_directory="/none", environment_cache_directory="/cache")
    # All that is looked at of it.
    context = SimpleNamespace(
        options=options, control_address="@a", log_settings={"log_verbose": 1}, mps_environment={"MPS": "here"}
    )
    return worker_program(7, version, placement, cast(InstanceContext, context), has_low_priority=True)


def test_a_worker() -> None:
    for backend, expected in [("identity", "identity"), ("onnxruntime", "onnxruntime"), ("mine", "python")]:
        kind, found = program(backend)
        assert (kind, found.role, found.module) == (expected, "worker m_0_0", ["shoal.workers.worker"])
        assert found.environment["SHOAL_CONTROL"] == "@a"
        assert found.environment["SHOAL_INSTANCE"] == "7"
        assert found.environment["OMP_NUM_THREADS"] == "2"


def test_a_handler_that_uses_torch_has_a_zygote_with_torch(tmp_path: Path) -> None:
    assert program("torchserve", directory=tmp_path)[0] == "torchserve"
    (tmp_path / "handler.py").write_text("import torch\n")
    kind, _ = program("torchserve", directory=tmp_path)
    assert kind == "torchserve with torch"
    assert MODULES[kind] == (*MODULES["torchserve"], "shoal.workers.backends.torchserve.with_torch")
    assert program("python", directory=tmp_path)[0] == "python"


def test_a_worker_in_an_environment_of_its_own() -> None:
    kind, found = program("identity", EXECUTION_ENV_PATH="$$TRITON_MODEL_DIRECTORY/e")
    assert kind == ""
    assert found.environment["SHOAL_INSTANCE"] == "7"
    module, order = found.module
    assert module == "shoal.environments.enter"
    assert json.loads(order) == {
        "wanted": Wanted("/r/m/e")._asdict(),
        "model": "m",
        "instance_name": "m_0_0",
        "cache": "/cache",
        "log": {"log_verbose": 1},
    }


def test_a_worker_on_a_gpu_sees_no_other() -> None:
    placement = PLACEMENT._replace(kind="KIND_GPU", device_id=3, gpu=Gpu(3, "GPU-1bb", "8.0", (0,)))
    _, found = program("identity", placement=placement)
    assert found.environment["CUDA_VISIBLE_DEVICES"] == "GPU-1bb"
    assert "CUDA_VISIBLE_DEVICES" not in program("identity")[1].environment
    kinds = {kind: program("identity", placement._replace(kind=kind))[1] for kind in ("KIND_GPU", "KIND_MODEL")}
    assert all(each.environment["MPS"] == "here" for each in kinds.values())
    assert "MPS" not in program("identity")[1].environment
    config: dict[str, Any] = {"backend": "identity"}
    context = SimpleNamespace(options=ServerOptions(), log_settings={})
    told = load_message(
        ModelVersion("m", 1, 1, 0, Path("/r/m/1"), config), placement, None, cast(InstanceContext, context)
    )
    assert (told.kind, told.device_id, told.gpu, told.gpu_pool_nbytes) == ("KIND_GPU", 0, 3, 64 << 20)


def test_a_worker_hears_whether_it_may_execute_a_request_again() -> None:
    # All that is looked at of it.
    context = cast(InstanceContext, SimpleNamespace(options=ServerOptions(), log_settings={}))
    for backend, expected in (("identity", True), ("python", False)):
        version = ModelVersion("m", 1, 1, 0, Path("/r/m/1"), {"backend": backend})
        assert load_message(version, PLACEMENT, None, context).may_run_again is expected


def test_only_a_process_of_one_instance_on_a_gpu_keeps_outputs_there() -> None:
    context = cast(InstanceContext, SimpleNamespace(options=ServerOptions(), log_settings={}))
    version = ModelVersion("m", 1, 1, 0, Path("/r/m/1"), {"backend": "python"})
    on_gpu = PLACEMENT._replace(kind="KIND_GPU")
    kept = [
        load_message(version, placement, None, context).gpu_pool_nbytes
        for placement in (on_gpu, on_gpu._replace(process_cores=(0, 1)), PLACEMENT)
    ]
    assert kept == [64 << 20, 0, 0]
