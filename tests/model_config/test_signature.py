"""signature.py: a configuration compiled, and what its import costs."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from shoal.datatypes import BYTES, FP32
from shoal.model_config import pbtxt
from shoal.model_config.signature import Signature, TensorSpec, reshaped


def test_a_configuration_compiled() -> None:
    text = """
        name: "m" max_batch_size: 8
        input [
            { name: "B" data_type: TYPE_FP32 dims: [ 1, -1 ] reshape { shape: [ -1 ] } optional: true },
            { name: "A" data_type: TYPE_STRING dims: 1 reshape { shape: [ ] } allow_ragged_batch: true }
        ]
        output { name: "Y" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" }
    """
    signature = Signature.from_config(pbtxt.parse(text, Path("config.pbtxt")))
    assert signature == Signature(
        name="m",
        max_batch_size=8,
        inputs={
            "B": TensorSpec("B", FP32, (1, -1), (-1,), optional=True, ragged=False, label_filename=""),
            "A": TensorSpec("A", BYTES, (1,), (), optional=False, ragged=True, label_filename=""),
        },
        outputs={"Y": TensorSpec("Y", FP32, (10,), None, optional=False, ragged=False, label_filename="labels.txt")},
    )
    assert list(signature.inputs) == ["B", "A"]


def test_no_process_on_a_requests_path_pays_for_protobuf() -> None:
    program = (
        "import sys, shoal.model_config.signature, shoal.model_config.autocomplete; "
        "print([name for name in sys.modules if name.startswith(('google', 'tritonclient'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_reshaped_moves_the_variable_sizes_in_their_order() -> None:
    assert reshaped((3, 5, 1, 7), (3, -1, 1, -1), (-1, 3, -1)) == (5, 3, 7)
    assert reshaped((5, 3, 7), (-1, 3, -1), (3, -1, 1, -1)) == (3, 5, 1, 7)
    assert reshaped((1,), (1,), ()) == ()


def test_a_model_sees_the_reshaped_dims() -> None:
    spec = TensorSpec("A", FP32, (1, -1), None, optional=False, ragged=False, label_filename="")
    assert spec.model_dims == (1, -1)
    assert replace(spec, reshape=()).model_dims == ()
