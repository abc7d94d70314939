"""`shoal serve model.onnx`: files and directories of models answer under their names, without a repository."""

import shutil
from pathlib import Path

import numpy as np
import tritonclient.http as triton

from tests.end_to_end.server import SAMPLES, serving_to_the_end, wait_until

FORESTS = Path(__file__).parents[1] / "data" / "forests"
DOUBLE = """
import numpy as np
import triton_python_backend_utils as pb_utils
from beside import FACTOR


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [2]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [2]})
        config.set_max_batch_size(0)
        return config

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", FACTOR * x)]) for x in inputs]
"""


def test_files_and_a_model_s_directory_are_served(tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "digits" / "1" / "model.onnx", tmp_path / "numbers.onnx")
    (tmp_path / "double.py").write_text(DOUBLE)
    (tmp_path / "beside.py").write_text("FACTOR = 2\n")
    shutil.copy(FORESTS / "xgboost.ubj", tmp_path / "forest.ubj")
    paths = [tmp_path / "numbers.onnx", tmp_path / "double.py", SAMPLES / "add_sub", tmp_path / "forest.ubj"]
    with serving_to_the_end((), "--reload", paths=paths) as server, triton.InferenceServerClient(server.url) as client:
        assert f"'{tmp_path}/numbers.onnx' is served as model 'numbers'\n" in server.log.decode()
        assert {row["name"] for row in client.get_model_repository_index()} == {
            "numbers",
            "double",
            "add_sub",
            "forest",
        }
        features = triton.InferInput("input__0", [1, 13], "FP32")
        features.set_data_from_numpy(np.zeros((1, 13), np.float32))
        label = client.infer("forest", [features]).as_numpy("output__0")
        assert label is not None
        assert label.shape == (1,)
        assert label.item() in range(3)
        image = triton.InferInput("image", [1, 64], "FP32")
        image.set_data_from_numpy(np.zeros((1, 64), np.float32))
        probabilities = client.infer("numbers", [image]).as_numpy("probabilities")
        assert probabilities is not None
        assert probabilities.shape == (1, 10)
        x = triton.InferInput("X", [2], "FP32")
        x.set_data_from_numpy(np.array([1, 2], np.float32))
        doubled = client.infer("double", [x]).as_numpy("Y")
        assert doubled is not None
        assert doubled.tolist() == [2, 4]
        # --reload: what is edited is loaded again, and the old one serves until then.
        (tmp_path / "beside.py").write_text("FACTOR = 3\n")

        def is_reloaded() -> bool:
            tripled = client.infer("double", [x]).as_numpy("Y")
            return tripled is not None and tripled.tolist() == [3, 6]

        wait_until(is_reloaded)
