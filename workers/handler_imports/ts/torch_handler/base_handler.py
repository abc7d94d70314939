"""The handler that most handlers derive from: load a model, preprocess, infer, postprocess.

torch is imported when a handler is initialized, not with this module.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from ts.handler_utils.timer import timed
from ts.utils.util import (
    check_valid_pt2_backend,
    list_classes_from_module,
    load_label_mapping,
)

if TYPE_CHECKING:
    from ts.context import Context

logger = logging.getLogger(__name__)

#: The name of the environment variable that lets a handler load files of pickled objects, which torch refuses by
#: default (ours).
LOAD_OBJECTS = "TS_TORCH_LOAD_OBJECTS"
_YES = ("1", "true", "yes")


class BaseHandler:
    """A handler with one model. Users override any of its methods."""

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: dict[str, Any] | None = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.model_pt_path: str | None = None
        self.manifest: Any = None
        self.map_location: str | None = None
        self.explain = False
        self.target = 0
        self.profiler_args: dict[str, Any] = {}
        self.model_yaml_config: dict[str, Any] = {}

    # -- loading --

    def initialize(self, context: Context) -> None:
        """Choose the device and load the archive's model: an eager one if the manifest names a model file, else
        TorchScript, ONNX or AOTInductor by the file's name. Raises RuntimeError if the archive has none of these."""
        import torch

        properties = context.system_properties
        self.context = context
        self.manifest = context.manifest
        self.model_yaml_config = context.model_yaml_config or {}
        self.map_location, self.device = _device(properties.get("gpu_id"))
        _prefer_tensor_cores(self.device)
        model_dir = str(properties.get("model_dir"))
        described = (self.manifest or {}).get("model", {})
        serialized = described.get("serializedFile")
        self.model_pt_path = os.path.join(model_dir, str(serialized)) if serialized else None
        model_file = described.get("modelFile") or ""
        name = str(serialized or "")
        if model_file:
            logger.debug("Loading eager model")
            self.model = self._load_pickled_model(model_dir, model_file, self.model_pt_path)
            self.model.to(self.device)
            self.model.eval()
        elif name.endswith(".pt"):
            self.model = self._load_torchscript_model(self.model_pt_path)
            self.model.eval()
        elif name.endswith(".onnx"):
            self.model = self._load_onnx_model(self.model_pt_path)
        elif name.endswith(".so") and self._wants_aot():
            self.model = self._load_aot_model(self.model_pt_path)
        else:
            raise RuntimeError(
                f"No model weights could be loaded: the manifest's serializedFile is {serialized!r}, and it names no "
                "modelFile. A .pt file must be TorchScript, an .onnx file needs onnxruntime, an .so file "
                "'pt2: {export: {aot_compile: true}}'; a file of weights (.pth) needs a modelFile with its class"
            )
        self._compile(torch)
        self.mapping = load_label_mapping(os.path.join(model_dir, "index_to_name.json"))
        self.initialized = True

    def _load_torchscript_model(self, model_pt_path: str | None) -> Any:
        """A TorchScript model on the handler's device."""
        import torch

        load: Any = torch.jit.load
        return load(model_pt_path, map_location=self.device)

    def _load_onnx_model(self, model_path: str | None) -> Any:
        """An ONNX model as a session of onnxruntime. Raises ImportError without onnxruntime."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        providers = ["CPUExecutionProvider"]
        if self.map_location == "cuda":
            providers.insert(0, "CUDAExecutionProvider")
        return onnxruntime.InferenceSession(str(model_path), sess_options=options, providers=providers)

    def _load_aot_model(self, model_path: str | None) -> Any:
        """A library that AOTInductor has compiled."""
        import torch

        torch_: Any = torch  # torch's only function that loads such libraries has no public name
        return torch_._export.aot_load(model_path, self.map_location)

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: str | None) -> Any:
        """A model of the one class that a Python file of the archive defines, with the weights of another file if
        there is one. Raises RuntimeError if the file is missing, ValueError if it defines no class or several."""
        path = os.path.join(model_dir, model_file)
        if not os.path.isfile(path):
            raise RuntimeError(f"Missing the model definition file '{path}'")
        classes = list_classes_from_module(_import_file(path))
        if len(classes) != 1:
            found = [each.__name__ for each in classes]
            raise ValueError(f"Expected only one class as model definition in '{path}', found {found}")
        model = classes[0]()
        if model_pt_path:
            import torch

            loads_objects = os.environ.get(LOAD_OBJECTS, "").lower() in _YES
            weights = torch.load(model_pt_path, map_location=self.device, weights_only=not loads_objects)
            model.load_state_dict(weights)
        return model

    def _wants_aot(self) -> bool:
        pt2 = self.model_yaml_config.get("pt2")
        return isinstance(pt2, dict) and bool((pt2.get("export") or {}).get("aot_compile"))

    def _compile(self, torch: Any) -> None:
        """Compile the model with torch.compile where the YAML file says so: `pt2: {compile: {enable: true, …}}`, or
        the older `pt2: BACKEND` and `pt2: {backend: BACKEND}`. A model that cannot be compiled is served as it is."""
        pt2 = self.model_yaml_config.get("pt2")
        if not pt2:
            return
        if isinstance(pt2, str):
            settings = {"backend": pt2}
        elif "compile" in pt2:
            settings = dict(pt2["compile"] or {})
            if not settings.pop("enable", False):
                return
        elif "backend" in pt2:
            settings = dict(pt2)
        else:
            return
        if "backend" in settings and not check_valid_pt2_backend(str(settings["backend"])):
            logger.warning("torch.compile has no backend %r that pt2 may name; the model runs uncompiled", settings)
            return
        try:
            self.model = torch.compile(self.model, **settings)
        except Exception:
            logger.warning("the model cannot be compiled with %s, it runs uncompiled", settings, exc_info=True)

    # -- serving --

    def handle(self, data: Any, context: Context) -> Any:
        """Answer one batch: a list with an element per request."""
        start_ns = time.monotonic_ns()
        self.context = context
        if os.environ.get("ENABLE_TORCH_PROFILER", "").lower() in _YES:
            output, _ = self._infer_with_profiler(data)
        elif self._is_describe():
            output = [self.describe_handle()]
        else:
            preprocessed = self.preprocess(data)
            if self._is_explain():
                output = self.explain_handle(preprocessed, data)
            else:
                output = self.postprocess(self.inference(preprocessed))
        if context.metrics is not None:
            context.metrics.add_time("HandlerTime", round((time.monotonic_ns() - start_ns) / 1e6, 2), None, "ms")
        return output

    @timed
    def preprocess(self, data: Any) -> Any:
        """The batch as a tensor on the handler's device."""
        import torch

        return torch.as_tensor(data, device=self.device)

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """The model's output for a batch; further arguments go to the model, too."""
        import torch

        with torch.inference_mode():
            marshalled = data.to(self.device) if hasattr(data, "to") else data
            return self.model(marshalled, *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """The model's output as a list with an element per request."""
        result: list[Any] = data.tolist()
        return result

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> list[Any]:
        """The explanation of the batch's first request for the class that the request names as its `target` (default
        0)."""
        row = raw_data[0]
        inputs = row.get("data") or row.get("body")
        target = inputs.get("target") if isinstance(inputs, dict) else row.get("target")
        self.target = int(bytes(target) if isinstance(target, bytearray) else target or 0)
        insights: Any = getattr(self, "get_insights", None)
        if insights is None:
            raise NotImplementedError(f"{type(self).__name__} has no get_insights, so it can explain nothing")
        result: list[Any] = insights(data_preprocess, inputs, self.target)
        return result

    def describe_handle(self) -> Any:
        """The handler's part of a description of the model: None, or a value that json.dumps takes."""
        return None

    def get_device(self) -> Any:
        return self.device

    def _is_explain(self) -> bool:
        return self._asks_for("explain")

    def _is_describe(self) -> bool:
        return self._asks_for("describe")

    def _asks_for(self, header: str) -> bool:
        if not self.context or not self.context.request_processor:
            return False
        return bool(self.context.get_request_header(0, header) == "True")

    def _infer_with_profiler(self, data: Any) -> tuple[Any, Any]:
        """The output of a batch, and torch's profile of the run; a trace of the run is written for TensorBoard."""
        import torch

        if not self.profiler_args:
            name = (self.manifest or {}).get("model", {}).get("modelName", "model")
            directory = os.path.join("/tmp", "pytorch_profiler", name)
            self.profiler_args = {
                "activities": [torch.profiler.ProfilerActivity.CPU],
                "record_shapes": True,
                "on_trace_ready": torch.profiler.tensorboard_trace_handler(directory),
            }
            if self.map_location == "cuda":
                self.profiler_args["activities"].append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(**self.profiler_args) as profile:
            preprocessed = self.preprocess(data)
            if self._is_explain():
                output: Any = self.explain_handle(preprocessed, data)
            else:
                output = self.postprocess(self.inference(preprocessed))
        logger.info("%s", profile.key_averages().table(sort_by="cpu_time_total", row_limit=10))
        return output, profile


def _device(gpu_id: int | None) -> tuple[str, Any]:
    """The name of the device's kind, as torch.load takes it, and the handler's device."""
    import torch

    if gpu_id is not None:
        if torch.cuda.is_available():
            return "cuda", torch.device("cuda", int(gpu_id))
        if os.environ.get("TS_IPEX_GPU_ENABLE") == "true" and hasattr(torch, "xpu") and torch.xpu.is_available():
            return "xpu", torch.device("xpu", int(gpu_id))
        if torch.backends.mps.is_available():
            return "mps", torch.device("mps")
    return "cpu", torch.device("cpu")


def _prefer_tensor_cores(device: Any) -> None:
    """Let a GPU's tensor cores multiply float32 matrices, which those of Ampere and later GPUs can."""
    import torch

    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        torch.set_float32_matmul_precision("high")


def _import_file(path: str) -> Any:
    """The module of a Python file, named as the file, since pickled objects name their class's module so."""
    name = os.path.basename(path).removesuffix(".py")
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == path:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"'{path}' is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
