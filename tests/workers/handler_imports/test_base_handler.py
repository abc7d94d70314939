"""BaseHandler without a server, as users test handlers derived from it: with a MockContext."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from ts.handler_utils.micro_batching import MicroBatching
from ts.handler_utils.timer import timed
from ts.metrics.caching_metric import Sample
from ts.metrics.metrics_store import MetricsStore
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.image_processing import CenterCrop, Resize
from ts.torch_handler.text_handler import TextHandler
from ts.torch_handler.unit_tests.test_utils.mock_context import MockContext

from shoal.workers.backends.torchserve.import_path import HANDLER_IMPORTS
from tests.end_to_end.server import wait_until
from tests.end_to_end.torch_archives import save_script

#: TorchScript is deprecated, and what archives hold.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def script(path: Path) -> None:
    save_script(torch.nn.Softmax(dim=1), torch.zeros(1, 3), path / "model.pt")


def test_initialize_handle_and_the_metric_of_its_time(tmp_path: Path) -> None:
    script(tmp_path)
    context = MockContext(model_dir=str(tmp_path))
    handler = BaseHandler()
    handler.initialize(context)
    assert handler.initialized
    assert str(handler.get_device()) == handler.map_location == "cpu"
    assert handler.handle([[0.0, 0.0, 0.0]], context) == [pytest.approx([1 / 3] * 3)]
    assert context.metrics is not None
    assert [metric.metric_name for metric in context.metrics.store] == ["HandlerTime"]


def test_stages_are_timed_where_the_yaml_file_says_so(tmp_path: Path) -> None:
    script(tmp_path)
    (tmp_path / "config.yaml").write_text("handler:\n  profile: true\n")
    context = MockContext(model_dir=str(tmp_path), model_yaml_config_file="config.yaml")
    handler = BaseHandler()
    handler.initialize(context)
    handler.handle([[0.0]], context)
    assert context.metrics is not None
    names = {metric.metric_name for metric in context.metrics.store}
    assert names == {f"ts_handler_{stage}" for stage in ("preprocess", "inference", "postprocess")} | {"HandlerTime"}


def test_the_gpus_work_counts_for_the_method_that_launches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method returns before the GPU has done its work, as by torch's own streams."""
    now_ms, launched_ms = 0, 0
    recorded: list[Sample] = []

    def synchronize(device: torch.device) -> None:
        nonlocal now_ms, launched_ms
        assert device.type == "cuda"
        now_ms, launched_ms = now_ms + launched_ms, 0

    class Handler:
        device = torch.device("cuda", 0)
        context = MockContext()

        @timed
        def inference(self) -> None:
            nonlocal launched_ms
            launched_ms = 5

        @timed
        def postprocess(self) -> None:
            """Launch nothing."""

    Handler.context.model_yaml_config = {"handler": {"profile": True}}
    Handler.context.metrics = MetricsStore({}, "m", recorded.append)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr("ts.handler_utils.timer.time.monotonic_ns", lambda: now_ms * 1_000_000)
    handler = Handler()
    handler.inference()
    handler.postprocess()
    assert [(each.name, each.value) for each in recorded] == [
        ("ts_handler_inference", 5),
        ("ts_handler_postprocess", 0),
    ]


def test_an_explanation_needs_get_insights(tmp_path: Path) -> None:
    script(tmp_path)
    context = MockContext(model_dir=str(tmp_path))
    context.explain = True
    handler = BaseHandler()
    handler.initialize(context)
    handler.preprocess = lambda data: data  # type: ignore[method-assign]
    with pytest.raises(NotImplementedError, match="has no get_insights"):
        handler.handle([{"data": b""}], context)
    handler.get_insights = lambda data, _raw, target: [target]  # type: ignore[attr-defined]
    assert handler.handle([{"data": b"", "target": bytearray(b"2")}], context) == [2]
    assert handler.handle([{"data": {"target": 4}}], context) == [4]


@pytest.mark.parametrize(
    ("files", "options", "says"),
    [
        ({}, {"model_pt_file": None}, "No model weights could be loaded"),
        ({}, {"model_pt_file": "weights.pth"}, "needs a modelFile"),
        ({}, {"model_file": "absent.py"}, "Missing the model definition file"),
        ({"two.py": "class A: pass\nclass B: pass\n"}, {"model_file": "two.py"}, "Expected only one class"),
    ],
)
def test_an_archive_without_a_model_says_what_is_missing(
    tmp_path: Path, files: dict[str, str], options: Any, says: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises((RuntimeError, ValueError), match=says):
        BaseHandler().initialize(MockContext(model_dir=str(tmp_path), **options))


def test_an_onnx_model_is_a_session(tmp_path: Path) -> None:
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    values = [helper.make_tensor_value_info(name, kind, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", values[:1], values[1:])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "model.onnx")
    handler = BaseHandler()
    handler.initialize(MockContext("model.onnx", str(tmp_path)))
    assert handler.model.run(None, {"x": torch.ones(1).numpy()})[0].tolist() == [-1.0]


def test_ts_needs_no_torch_before_a_handler_is_initialized() -> None:
    """Nor Pillow, PyYAML or numpy: a handler that uses none of them has a small worker."""
    program = (
        "import sys, ts.torch_handler.image_classifier, ts.torch_handler.text_classifier, ts.context\n"
        "print(sorted({'torch', 'PIL', 'yaml', 'captum', 'torchvision', 'numpy'} & sys.modules.keys()))"
    )
    environment = {"PYTHONPATH": HANDLER_IMPORTS}
    said = subprocess.run([sys.executable, "-S", "-c", program], env=environment, capture_output=True, check=True)
    assert said.stdout == b"[]\n"


class Adding:
    """A handler of numbers, whose second stage refuses 13."""

    def preprocess(self, data: list[int]) -> list[int]:
        return [each + 1 for each in data]

    def inference(self, data: list[int]) -> list[int]:
        if 13 in data:
            raise ValueError("unlucky")
        return [each * 10 for each in data]

    def postprocess(self, data: list[int]) -> list[int]:
        return data


def test_micro_batches_keep_the_order_and_raise_the_first_error() -> None:
    batching = MicroBatching(Adding(), 2, {"inference": 3})
    context = MockContext()
    assert batching(list(range(7)), context) == [10, 20, 30, 40, 50, 60, 70]
    with pytest.raises(ValueError, match="unlucky"):
        batching([12, 1], context)
    batching.parallelism = {"postprocess": 2}
    assert batching.parallelism == {"preprocess": 1, "inference": 3, "postprocess": 2}
    batching.micro_batch_size = 5
    assert batching([1], context) == [20]
    for wrong in ({"sleep": 1}, {"inference": 0}):
        with pytest.raises(ValueError, match="parallelism is a number of threads"):
            batching.parallelism = wrong
    with pytest.raises(ValueError, match="must be a number of requests"):
        batching.micro_batch_size = 0
    batching.shutdown()


def test_parts_that_are_under_way_pass_all_stages_before_the_threads_end() -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()

    class Waiting(Adding):
        def preprocess(self, data: list[int]) -> list[int]:
            has_begun.set()
            assert may_go_on.wait(60)
            return super().preprocess(data)

    batching = MicroBatching(Waiting())
    results: list[Any] = []
    handling = threading.Thread(target=lambda: results.extend(batching.handle([1, 2])), daemon=True)
    handling.start()
    assert has_begun.wait(60)
    ending = threading.Thread(target=batching.shutdown, daemon=True)
    ending.start()
    wait_until(batching._lock.locked)  # shutdown has begun
    may_go_on.set()
    for thread in (ending, handling):
        thread.join(60)
        assert not thread.is_alive()
    assert results == [20, 30]


@pytest.mark.parametrize(
    ("size", "expected"),
    [((300, 400), (256, 341)), ((400, 300), (341, 256)), ((256, 900), (256, 900)), ((10, 30), (256, 768))],
)
def test_the_shorter_side_is_scaled_and_the_longer_one_cut(size: tuple[int, int], expected: tuple[int, int]) -> None:
    from PIL import Image

    assert Resize(256)(Image.new("RGB", size)).size == expected


@pytest.mark.parametrize("size", [(5, 5), (4, 9), (9, 3), (2, 2)])
def test_the_middle_of_an_image_whatever_its_size(size: tuple[int, int]) -> None:
    from PIL import Image

    assert CenterCrop(4)(Image.new("L", size, 255)).size == (4, 4)


TEXTS = [
    ("_expand_contractions", "I can't, it's DON'T", "I cannot, it is do not"),
    ("_remove_accented_characters", "Café naïve", "Cafe naive"),
    ("_remove_punctuation", "a, b. (c)!", "a b c"),
    ("_remove_html_tags", "<p>a &amp; b</p>", "a  b"),
]


@pytest.mark.parametrize(("method", "text", "cleaned"), TEXTS)
def test_a_text_is_cleaned(method: str, text: str, cleaned: str) -> None:
    assert getattr(TextHandler(), method)(text) == cleaned
