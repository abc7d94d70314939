"""The modules of TorchServe's package that Shoal does not have. Importing one raises an ImportError that says what to
do instead, not only "no module named".

Handlers do not need TorchServe's own worker and command; the other modules drive one vendor's libraries or hardware.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

_OWN_RANKS = (
    "with 'parallelType' and 'torchrun' in the YAML file a handler may call torch.distributed itself, in `initialize`"
)
_WORKER = "it is a part of TorchServe's own worker, which handlers do not call"
_NO_METRIC_FILES = "context.metrics has the methods of handlers' metrics"

#: Name of a module, or of a package with all its modules → the sentence of the ImportError.
REFUSED: Mapping[str, str] = {
    "ts.handler_utils.distributed": f"DeepSpeed and PiPPy are not supported: {_OWN_RANKS}",
    "ts.torch_handler.distributed": f"DeepSpeed, PiPPy and Neuron are not supported: {_OWN_RANKS}",
    "ts.torch_handler.vllm_handler": "it is written for one version of vLLM's internals: serve the model by a handler "
    "of your own with vLLM's AsyncLLMEngine and 'asyncCommunication: true', or by vLLM itself",
    "ts.torch_handler.trt_llm_handler": "it is written for one version of TensorRT-LLM: serve the model by a handler "
    "of your own with 'asyncCommunication: true'",
    "ts.torch_handler.dali_image_classifier": "NVIDIA DALI is not supported: preprocess with torchvision",
    "ts.torch_handler.dali_handler": "NVIDIA DALI is not supported: preprocess with torchvision",
    "ts.handler_utils.preprocess": "NVIDIA DALI is not supported: preprocess with torchvision",
    "ts.handler_utils.torch_export": "BaseHandler loads AOTInductor's .so files, with 'pt2: {export: {aot_compile: "
    "true}}' in the YAML file",
    "ts.handler_utils.text_utils": "TextHandler of ts.torch_handler.text_handler has its functions as methods",
    "ts.model_service": "it is that of Multi Model Server, which TorchServe has replaced: write a class with "
    "'initialize' and 'handle'",
    "ts.launcher": "start the command `torchserve` as a process, and call its APIs",
    "ts.llm_launcher": "start the command `torchserve` as a process, and call its APIs",
    "ts.model_server": "start the command `torchserve` as a process",
    "ts.arg_parser": _WORKER,
    "ts.async_service": f"{_WORKER}; 'asyncCommunication: true' takes a coroutine function `handle`",
    "ts.model_loader": _WORKER,
    "ts.model_service_worker": _WORKER,
    "ts.protocol.otf_async_message_handler": _WORKER,
    "ts.metrics.metric_cache_abstract": _NO_METRIC_FILES,
    "ts.metrics.metric_cache_yaml_impl": _NO_METRIC_FILES,
    "ts.metrics.metric_cache_errors": _NO_METRIC_FILES,
    "ts.metrics.metric_abstract": _NO_METRIC_FILES,
    "ts.metrics.metric_encoder": _NO_METRIC_FILES,
    "ts.metrics.metric_collector": "figures of the machine are read when /metrics is asked",
    "ts.metrics.system_metrics": "figures of the machine are read when /metrics is asked",
    "ts.metrics.process_memory_metric": "figures of the machine are read when /metrics is asked",
    "ts.utils.hf_utils": "read the model with transformers' from_pretrained",
    "ts.utils.serve_decorator": "write a class with 'initialize' and 'handle'",
    "ts.utils.timeit_decorator": "decorate methods with ts.handler_utils.timer.timed",
    "ts.utils.setup_model_venv": "environments of models are made by shoal, with 'useVenv: true'",
}


class RefusedModule(importlib.abc.Loader):
    """The loader of a refused module, which raises ImportError."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Raise ImportError with the sentence, before a module is made and put into sys.modules."""
        raise ImportError(f"'{spec.name}' of TorchServe is not there: {self._sentence}", name=spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Not called: `create_module` raises."""


class RefusedFinder(importlib.abc.MetaPathFinder):
    """The finder of refused modules. Python asks it after all other finders, so that it gets only modules that do not
    exist."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec whose loading raises ImportError, for a module in REFUSED; None for any other module."""
        del path, target
        sentence = REFUSED.get(fullname)
        return None if sentence is None else importlib.machinery.ModuleSpec(fullname, RefusedModule(sentence))


def install() -> None:
    """Install the finder of refused modules in this process, unless it is installed already."""
    if not any(isinstance(each, RefusedFinder) for each in sys.meta_path):
        sys.meta_path.append(RefusedFinder())
