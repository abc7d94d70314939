"""model_warmup on a server: who serves afterwards, who does not load and why, and what is counted."""

from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from tests.end_to_end.server import SAMPLES, Server, serving_to_the_end

SAMPLE = 'inputs { key: "features" value { data_type: TYPE_FP32 dims: 512 %s } }'


def add_model(repository: Path, name: str, samples: str, data: bytes = b"") -> None:
    """The sample model `mlp` under another name, with two instances and samples."""
    directory = repository / name
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.onnx").symlink_to(SAMPLES / "mlp" / "1" / "model.onnx")
    (directory / "warmup").mkdir()
    (directory / "warmup" / "features").write_bytes(data)
    (directory / "config.pbtxt").write_text(
        f'backend: "onnxruntime" max_batch_size: 8 instance_group {{ kind: KIND_CPU count: 2 }} {samples}\n'
        'input { name: "features" data_type: TYPE_FP32 dims: 512 }\n'
        'output { name: "scores" data_type: TYPE_FP32 dims: 10 }\n'
    )


def samples(name: str, given: str, fields: str = "batch_size: 8 count: 3") -> str:
    return f'model_warmup {{ name: "{name}" {fields} {SAMPLE % given} }}'


def refusal(server: Server, name: str) -> str:
    (line,) = [line for line in server.log.decode().splitlines() if f"failed to load '{name}'" in line]
    return line


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One model whose samples are good, and three whose samples are not."""
    random, zeros, file = (samples(f"a {word} sample", f"{word}_data: true") for word in ("random", "zero", "file"))
    file = samples("a file sample", 'input_data_file: "features"', "batch_size: 1")
    add_model(tmp_path, "warm", random + zeros + file, np.arange(512, dtype=np.float32).tobytes())
    add_model(tmp_path, "short", file, bytes(100))
    add_model(tmp_path, "outside", samples("s", 'input_data_file: "../config.pbtxt"'))
    add_model(tmp_path, "large", samples("much", "zero_data: true", "batch_size: 9"))
    return tmp_path


def test_samples_run_on_every_instance_before_a_model_is_ready_and_are_not_counted(repository: Path) -> None:
    flags = ("--exit-on-error=false", "--log-verbose=1")
    with serving_to_the_end(repository, *flags) as server, triton.InferenceServerClient(server.url) as client:
        assert client.is_model_ready("warm")
        log = server.log.decode()
        ready = log.index("successfully loaded 'warm'")
        for instance in ("warm_0_0", "warm_0_1"):
            for sample, count in (("random", 3), ("zero", 3), ("file", 1)):
                what = f"model 'warm' instance {instance} is running warmup sample 'a {sample} sample' for iteration "
                assert log.count(what) == count
                assert log.index(what) < ready

        (row,) = client.get_inference_statistics("warm")["model_stats"]
        assert (row["inference_count"], row["execution_count"], row["last_inference"]) == (0, 0, 0)
        given = triton.InferInput("features", [1, 512], "FP32")
        given.set_data_from_numpy(np.zeros((1, 512), np.float32))
        client.infer("warm", [given])
        (row,) = client.get_inference_statistics("warm")["model_stats"]
        assert (row["inference_count"], row["execution_count"]) == (1, 1)

        assert "expects 2048 bytes, but the data provided from featuresonly has 100 bytes" in refusal(server, "short")
        assert "is outside directory 'warmup' of the model" in refusal(server, "outside")
        assert "failed to run warmup sample 'much': batch size 9 for 'large_0_" in refusal(server, "large")
        assert not any(client.is_model_ready(name) for name in ("short", "outside", "large"))
