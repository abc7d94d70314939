"""Every field of ModelConfig takes effect, is refused by its name, or is known to be harmless: none is just ignored."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.batcher.scheduling.scheduler import QueuedRequest, from_config
from shoal.errors import InvalidArgumentError, ShoalError, UnavailableError
from shoal.model_config import pbtxt
from shoal.model_config.finish import finish_config
from shoal.model_config.load import prepare_config
from shoal.model_config.messages import Config
from shoal.model_config.signature import Signature
from shoal.model_config.support import FEATURES, HARMLESS
from shoal.placement import Gpu, Machine, place
from shoal.repository.scan import model_file, wanted_versions
from shoal.workers.backends.backend import Device
from shoal.workers.backends.onnxruntime_options import CPU, CUDA, OPENVINO, TENSORRT, session_settings
from shoal.workers.warmup import warm_up
from tests.workers.worker_harness import Returning, model

#: Refused by `checks` before `support` is asked, since Triton refuses it there.
CHECKED = {"instance_group[].profile": 'instance_group { profile: "0" }'}
ELSEWHERE = {
    "dynamic_batching.preserve_ordering": "tests/batcher/test_exchange_policies.py",
    "ensemble_scheduling.max_inflight_requests": "tests/batcher/test_decoupled_ensembles.py",
    "model_transaction_policy.decoupled": "tests/workers/backends/python/test_backend.py",
    "response_cache.enable": "tests/end_to_end/cached_models.py",
    "metric_tags.*": "tests/frontend/metrics/test_exposition.py",
    **{
        f"{parent}.{field}": test
        for test, parent, fields_ in (
            (
                "tests/end_to_end/ensemble_models.py",
                "ensemble_scheduling.step[]",
                "model_name model_version input_map.* output_map.*",
            ),
            (
                "tests/batcher/scheduling/test_sequence.py",
                "sequence_batching",
                "direct.max_queue_delay_microseconds direct.minimum_slot_utilization oldest.max_candidate_sequences "
                "oldest.preferred_batch_size oldest.max_queue_delay_microseconds max_sequence_idle_microseconds "
                "iterative_sequence",
            ),
            (
                "tests/workers/test_sequences.py",
                "sequence_batching.control_input[]",
                "name control[].kind control[].int32_false_true control[].fp32_false_true control[].bool_false_true "
                "control[].data_type",
            ),
            (
                "tests/workers/test_sequences.py",
                "sequence_batching.state[]",
                "input_name output_name data_type dims initial_state[].data_type initial_state[].dims "
                "initial_state[].zero_data initial_state[].data_file initial_state[].name",
            ),
            (
                "tests/model_config/test_model_metrics.py",
                "model_metrics.metric_control[]",
                "metric_identifier.family histogram_options.buckets",
            ),
        )
        for field in fields_.split()
    },
}

MACHINE = Machine(
    (0, 1, 2, 3), tuple(Gpu(number, f"GPU-{number}", "9.0", (0, 1, 2, 3)) for number in (0, 1)), {"night": (3,)}
)
BATCHING = "max_batch_size: 8 dynamic_batching"
GPU = "instance_group { kind: KIND_GPU } optimization { execution_accelerators"
OUTPUT = 'output { name: "Y" data_type: TYPE_FP32 dims: 2 }'


def x(fields: str) -> str:
    return f"input {{ {fields} }} {OUTPUT}"


def y(fields: str) -> str:
    return f'input {{ name: "X" data_type: TYPE_FP32 dims: 2 }} output {{ {fields} }}'


def warm(fields: str, given: str = "data_type: TYPE_FP32 dims: 2 zero_data: true") -> str:
    return f'max_batch_size: 4 model_warmup {{ {fields} inputs {{ key: "X" value {{ {given} }} }} }}'


def every_level(policy: str) -> str:
    return f"{BATCHING} {{ default_queue_policy {{ {policy} }} }}"


def level_1(policy: str) -> str:
    levels = "priority_levels: 2 default_priority_level: 2"
    return f"{BATCHING} {{ {levels} priority_queue_policy {{ key: 1 value {{ {policy} }} }} }}"


TENSOR = 'name: "T" data_type: TYPE_FP32 dims: 2'
#: Field of an input or an output → TENSOR with another value of that.
TENSORS = {
    "name": TENSOR.replace('"T"', '"Z"'),
    "data_type": TENSOR.replace("FP32", "FP16"),
    "dims": TENSOR.replace("dims: 2", "dims: 3"),
    "reshape.shape": f"{TENSOR} reshape {{ shape: [ 1, 2 ] }}",
}
#: Field → two configurations that differ in it; `observed` must tell them apart.
EFFECTS: dict[str, tuple[str, str]] = {
    "name": ('name: "m"', 'name: "n"'),
    "platform": ("", 'platform: "tensorrt_plan"'),
    "backend": ('backend: "identity"', 'backend: "onnxruntime"'),
    "runtime": ("", 'runtime: "model.py"'),
    "version_policy.latest.num_versions": ("", "version_policy { latest { num_versions: 2 } }"),
    "version_policy.all": ("", "version_policy { all { } }"),
    "version_policy.specific.versions": ("", "version_policy { specific { versions: 1 } }"),
    "max_batch_size": ("", "max_batch_size: 8"),
    **{f"input[].{field}": (x(TENSOR), x(changed)) for field, changed in TENSORS.items()},
    "input[].optional": (x(TENSOR), x(f"{TENSOR} optional: true")),
    **{f"output[].{field}": (y(TENSOR), y(changed)) for field, changed in TENSORS.items()},
    "output[].label_filename": (y(TENSOR), y(f'{TENSOR} label_filename: "labels.txt"')),
    "optimization.graph.level": ("", "optimization { graph { level: 2 } }"),
    "optimization.execution_accelerators.gpu_execution_accelerator[].name": (
        f'{GPU} {{ gpu_execution_accelerator {{ name: "cuda" }} }} }}',
        f'{GPU} {{ gpu_execution_accelerator {{ name: "tensorrt" }} }} }}',
    ),
    "optimization.execution_accelerators.gpu_execution_accelerator[].parameters.*": (
        f'{GPU} {{ gpu_execution_accelerator {{ name: "cuda" }} }} }}',
        f'{GPU} {{ gpu_execution_accelerator {{ name: "cuda" parameters {{ key: "a" value: "b" }} }} }} }}',
    ),
    "optimization.execution_accelerators.cpu_execution_accelerator[].name": (
        "",
        'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }',
    ),
    "optimization.execution_accelerators.cpu_execution_accelerator[].parameters.*": (
        'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }',
        'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" '
        'parameters { key: "a" value: "b" } } } }',
    ),
    **{
        f"dynamic_batching.{field}": (f"{BATCHING} {{ {without} }}", f"{BATCHING} {{ {given} }}")
        for field, without, given in (
            ("preferred_batch_size", "", "preferred_batch_size: 2"),
            ("max_queue_delay_microseconds", "", "max_queue_delay_microseconds: 100"),
            ("priority_levels", "", "priority_levels: 2 default_priority_level: 2"),
            (
                "default_priority_level",
                "priority_levels: 2 default_priority_level: 1",
                "priority_levels: 2 default_priority_level: 2",
            ),
        )
    },
    **{
        f"dynamic_batching.{path}.{field}": (policy(without), policy(given))
        for path, policy in (("default_queue_policy", every_level), ("priority_queue_policy.*", level_1))
        for field, without, given in (
            ("max_queue_size", "", "max_queue_size: 1"),
            ("default_timeout_microseconds", "", "default_timeout_microseconds: 1"),
            (
                "timeout_action",
                "default_timeout_microseconds: 1",
                "default_timeout_microseconds: 1 timeout_action: DELAY",
            ),
            (
                "allow_timeout_override",
                "default_timeout_microseconds: 9",
                "default_timeout_microseconds: 9 allow_timeout_override: true",
            ),
        )
    },
    "instance_group[].name": ("instance_group { }", 'instance_group { name: "g" }'),
    "instance_group[].kind": ("instance_group { kind: KIND_CPU }", "instance_group { kind: KIND_GPU }"),
    "instance_group[].count": ("instance_group { count: 1 }", "instance_group { count: 3 }"),
    "instance_group[].gpus": ("instance_group { kind: KIND_GPU }", "instance_group { kind: KIND_GPU gpus: 1 }"),
    **{
        f"instance_group[].rate_limiter.{field}": (
            'instance_group { rate_limiter { resources { name: "R" } } }',
            f"instance_group {{ rate_limiter {{ {text} }} }}",
        )
        for field, text in {
            "resources[].name": 'resources { name: "S" }',
            "resources[].global": 'resources { name: "R" global: true }',
            "resources[].count": 'resources { name: "R" count: 3 }',
            "priority": 'resources { name: "R" } priority: 3',
        }.items()
    },
    "instance_group[].host_policy": ("instance_group { }", 'instance_group { host_policy: "night" }'),
    "cc_model_filenames.*": ("", 'cc_model_filenames { key: "9.0" value: "other.onnx" }'),
    "default_model_filename": ("", 'default_model_filename: "other.onnx"'),
    "parameters.*.string_value": ("", 'parameters { key: "intra_op_thread_count" value { string_value: "7" } }'),
    "model_warmup[].name": (warm('batch_size: 9 name: "a"'), warm('batch_size: 9 name: "b"')),
    "model_warmup[].batch_size": (warm("batch_size: 1"), warm("batch_size: 2")),
    "model_warmup[].count": (warm("batch_size: 1"), warm("batch_size: 1 count: 2")),
    **{
        f"model_warmup[].inputs.*.{field}": (warm("batch_size: 1"), warm("batch_size: 1", given))
        for field, given in {
            "data_type": "data_type: TYPE_INT8 dims: 2 zero_data: true",
            "dims": "data_type: TYPE_FP32 dims: 3 zero_data: true",
            "zero_data": "data_type: TYPE_FP32 dims: 2",
            "random_data": "data_type: TYPE_FP32 dims: 2 random_data: true",
            "input_data_file": 'data_type: TYPE_FP32 dims: 2 input_data_file: "numbers"',
        }.items()
    },
}


def fields(descriptor: Any, prefix: str = "") -> Iterator[str]:
    """The paths of all fields that hold a value, in the form of `support`; `*` stands for any key of a map."""
    for field in descriptor.fields:
        kind, path = field.message_type, prefix + field.name
        if kind is not None and kind.GetOptions().map_entry:
            path, kind = f"{path}.*", kind.fields_by_name["value"].message_type
        elif kind is not None and field.is_repeated:
            path += "[]"
        if kind is None or not kind.fields:
            yield path
        else:
            yield from fields(kind, f"{path}.")


FIELDS = tuple(fields(pbtxt.new_message().DESCRIPTOR))


def is_beneath(field: str, path: str) -> bool:
    return field == path or field.startswith((f"{path}.", f"{path}[]"))


def test_the_fields_are_found() -> None:
    assert len(FIELDS) > 100
    assert {"name", "version_policy.all", "input[].dims", "parameters.*.string_value"} <= set(FIELDS)


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_has_one_fate(field: str) -> None:
    takes_effect = field in EFFECTS or field in ELSEWHERE
    is_harmless = any(is_beneath(field, path) for path in HARMLESS)
    is_refused = field in CHECKED or any(is_beneath(field, feature.path) for feature in FEATURES)
    assert [takes_effect, is_harmless, is_refused].count(True) == 1, field


def test_the_tables_name_only_fields_that_there_are() -> None:
    keys_of_maps = {"parameters.TRITON_BATCH_STRATEGY_PATH"}
    paths = {*EFFECTS, *ELSEWHERE, *HARMLESS, *CHECKED, *(feature.path for feature in FEATURES)} - keys_of_maps
    assert [path for path in paths if not any(is_beneath(field, path) for field in FIELDS)] == []


@pytest.mark.parametrize(("path", "test"), ELSEWHERE.items())
def test_what_is_proved_elsewhere_is(path: str, test: str) -> None:
    assert path.split(".", maxsplit=1)[0] in (Path(__file__).parents[2] / test).read_text()


@pytest.mark.parametrize("text", CHECKED.values(), ids=CHECKED)
def test_what_checks_refuse(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="profile"):
        prepared(text, tmp_path)


@pytest.mark.parametrize("field", EFFECTS)
def test_a_field_takes_effect(field: str, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "numbers").write_bytes(b"\1" * 8)
    without, with_it = (observed(text, tmp_path) for text in EFFECTS[field])
    assert without != with_it


def prepared(text: str, model_dir: Path) -> Config:
    """The configuration as the supervisor works it out on a machine with two GPUs, tensors and backend added."""
    if "input {" not in text:
        text += x('name: "X" data_type: TYPE_FP32 dims: 2')
    if "backend:" not in text and "platform:" not in text:
        text += 'backend: "onnxruntime"'
    config = pbtxt.parse(text, model_dir / "config.pbtxt")
    config["name"] = config["name"] or "m"
    return finish_config(prepare_config(config, model_dir, strict=True), gpus=(0, 1))


def observed(text: str, model_dir: Path) -> list[Any]:
    """What the parts of the server make of a configuration; a sentence where it is refused."""
    try:
        config = prepared(text, model_dir)
    except ShoalError as error:
        return [str(error)]
    signature = Signature.from_config(config)
    placements = place(config, MACHINE)
    return [
        signature,
        placements,
        wanted_versions((1, 2, 3), config["version_policy"], "m"),
        session_settings(model(config), Device(placements[0].kind, 0, (0,)), (CPU, CUDA, TENSORRT, OPENVINO)),
        file(config, model_dir, placements[0].gpu),
        scheduled(config),
        warmed_up(config, signature, model_dir),
    ]


def file(config: Config, model_dir: Path, gpu: Gpu | None) -> str:
    try:
        return str(model_file(model_dir / "1", config, "m_0", gpu.compute_capability if gpu else ""))
    except UnavailableError as error:  # it is not there; which one is what is asked
        return str(error)


def scheduled(config: Config) -> list[object]:
    """How five requests at once, of two levels and with timeouts, expire and are executed by one instance."""
    scheduler = from_config(config, 100)
    told: list[object] = []
    for key in range(5):
        try:
            scheduler.add(QueuedRequest(key, 1, 0, 0, priority=key % 3, timeout_us=2), 0)
        except UnavailableError:
            told.append("full")
    for now_ns in range(0, 10_000, 2_000):
        told.append([request.key for request in scheduler.expire(now_ns)])
        if now_ns == 4_000:
            scheduler.add_instance(1)
        batch = scheduler.take(now_ns)
        told.append((batch and [request.key for request in batch.requests], scheduler.next_deadline_ns()))
        scheduler.complete(1, now_ns, 1_000_000)
    return told


def warmed_up(config: Config, signature: Signature, model_dir: Path) -> list[object]:
    batches: list[object] = []

    def noted(inputs: dict[str, Any]) -> dict[str, Any]:
        batches.append(inputs["X"].tobytes())
        return {"Y": inputs["X"]}

    try:
        warm_up(Returning(noted), replace(model(config), version_dir=str(model_dir / "1")), signature)
    except ShoalError as error:
        batches.append(str(error))
    return batches
