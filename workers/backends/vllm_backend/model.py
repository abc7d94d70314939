"""Models of the backend `vllm`: an engine of vLLM for each, made from the model's model.json. Runs in workers.

Tensors, files and parameters are those of Triton's vLLM backend, except for `image`, REPORT_CUSTOM_METRICS and
ENABLE_VLLM_HEALTH_CHECK. This file is a model.py like a user's: it imports nothing of Shoal, so that it runs in a
Python environment that the model brings along. vLLM is imported when a model loads.
"""

import asyncio
import json
import os
import typing
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

ENGINE_FILE, LORA_FILE = "model.json", "multi_lora.json"
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
#: Inputs by which a request asks for an output, whose name is the input's without `return_`.
ASKED = (
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_logprobs",
    "return_num_input_tokens",
    "return_num_output_tokens",
)
INPUTS: list[dict[str, Any]] = [
    {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]},
    {"name": "stream", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
    {"name": "sampling_parameters", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
    {"name": "exclude_input_in_output", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
    *({"name": name, "data_type": "TYPE_BOOL", "dims": [1], "optional": True} for name in ASKED),
    {"name": "embedding_request", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
]
OUTPUTS: list[dict[str, Any]] = [
    {"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]},
    {"name": "finish_reason", "data_type": "TYPE_STRING", "dims": [-1]},
    {"name": "cumulative_logprob", "data_type": "TYPE_FP32", "dims": [-1]},
    {"name": "logprobs", "data_type": "TYPE_STRING", "dims": [-1]},
    {"name": "num_input_tokens", "data_type": "TYPE_UINT32", "dims": [1]},
    {"name": "num_output_tokens", "data_type": "TYPE_UINT32", "dims": [-1]},
]


class TritonPythonModel:
    """One model: one engine of vLLM."""

    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Add the backend's tensors, make the model decoupled, and turn batching off: vLLM batches by itself."""
        known = config.as_dict()
        for tensors, role, add in ((INPUTS, "input", config.add_input), (OUTPUTS, "output", config.add_output)):
            names = {each["name"] for each in known[role]}
            for tensor in tensors:
                if tensor["name"] not in names:
                    add(tensor)
        config.set_model_transaction_policy({"decoupled": True})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Start the engine. Raises TritonModelException if vLLM is missing, a file is no JSON object or the GPUs do not
        fit, and whatever vLLM raises for its settings."""
        self.name = args["model_name"]
        self.config = json.loads(args["model_config"])
        self.directory = os.path.join(args["model_repository"], args["model_version"])
        settings = self._read(ENGINE_FILE)
        num_gpus = int(settings.get("tensor_parallel_size", 1)) * int(settings.get("pipeline_parallel_size", 1))
        self._choose_gpus(args["model_instance_kind"], num_gpus)
        self.has_loras = str(settings.get("enable_lora", "")).lower() == "true"
        self.loras: dict[str, str] = self._read(LORA_FILE) if self.has_loras else {}
        try:
            from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
            from vllm.engine.async_llm_engine import AsyncLLMEngine  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise pb_utils.TritonModelException(
                f"model '{self.name}' needs vLLM ({error}): install it with `pip install vllm`, or name an environment "
                "that has it by the parameter EXECUTION_ENV_PATH or PYTHON_INTERPRETER"
            ) from None
        self.engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(**settings))

    def _read(self, name: str) -> dict[str, Any]:
        path = os.path.join(self.directory, name)
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError) as error:
            raise pb_utils.TritonModelException(
                f"model '{self.name}' needs '{path}', a JSON object with vLLM's settings: {error}"
            ) from None
        if not isinstance(found, dict):
            raise pb_utils.TritonModelException(f"model '{self.name}' needs a JSON object in '{path}'")
        return found

    def _choose_gpus(self, kind: str, num_gpus: int) -> None:
        """For KIND_MODEL, limit the engine to the GPUs of GPU_DEVICE_IDS; for KIND_GPU the server has done so. Raises
        TritonModelException."""
        if kind == "GPU" and num_gpus > 1:
            raise pb_utils.TritonModelException(
                f"model '{self.name}' takes {num_gpus} GPUs, and an instance of KIND_GPU has one: specify KIND_MODEL"
            )
        named = self.config.get("parameters", {}).get("GPU_DEVICE_IDS", {}).get("string_value", "")
        if kind != "MODEL" or not named:
            return
        numbers = [each.strip() for each in named.split(",")]
        if len({*numbers}) != len(numbers) or not all(each.isdecimal() for each in numbers):
            raise pb_utils.TritonModelException(f"GPU_DEVICE_IDS is '{named}', must be different numbers like '0,1'")
        if num_gpus > 1 and len(numbers) != num_gpus:
            raise pb_utils.TritonModelException(f"GPU_DEVICE_IDS is '{named}', but the engine takes {num_gpus} GPUs")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(numbers)

    def finalize(self) -> None:
        """End the engine, if it has been started."""
        if hasattr(self, "engine"):
            self.engine.shutdown()

    async def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> None:
        """Answer requests, all at the same time: the engine batches them."""
        await asyncio.gather(*(self._answer(request) for request in requests))

    async def _answer(self, request: pb_utils.InferenceRequest) -> None:
        sender = request.get_response_sender()
        try:
            if pb_utils.get_input_tensor_by_name(request, "embedding_request") is not None:
                await self._embed(request, sender)
            else:
                await self._generate(request, sender)
        except pb_utils.TritonModelException as error:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))), flags=FINAL)
        except Exception as error:  # noqa: BLE001  whatever the engine raises is this request's answer
            told = pb_utils.TritonError(f"Error generating stream: {error}")
            sender.send(pb_utils.InferenceResponse(error=told), flags=FINAL)

    async def _generate(self, request: pb_utils.InferenceRequest, sender: Any) -> None:
        is_stream = bool(first(request, "stream", False))
        excludes = first(request, "exclude_input_in_output", None)
        has_input = not is_stream if excludes is None else not excludes
        if has_input and is_stream:
            raise ValueError("When streaming, `exclude_input_in_output` = False is not allowed.")
        parameters = json.loads(text(request, "sampling_parameters") or request.parameters())
        lora = self._lora(parameters.pop("lora_name", None))
        asked = frozenset(name for name in ASKED if first(request, name, False))
        number = uuid.uuid4().hex
        seen: dict[int, tuple[int, int, int]] = {}
        output = None
        answers = self.engine.generate(text(request, "text_input"), sampling(parameters), number, lora_request=lora)
        async for output in answers:
            if sender.is_cancelled():
                await self.engine.abort(number)
                told = pb_utils.TritonError("Request was cancelled", pb_utils.TritonError.CANCELLED)
                sender.send(pb_utils.InferenceResponse(error=told), flags=FINAL)
                return
            if is_stream:
                sender.send(response(output, seen, asked), flags=FINAL if output.finished else 0)
        if output is None:
            raise ValueError("the engine has ended without an answer")
        if not is_stream:
            sender.send(response(output, {}, asked, output.prompt if has_input else ""), flags=FINAL)

    def _lora(self, name: str | None) -> Any:
        if name is None:
            return None
        if not self.has_loras:
            raise pb_utils.TritonModelException("LoRA feature is not enabled.")
        if name not in self.loras:
            raise pb_utils.TritonModelException(
                f"LoRA {name} is not supported, we currently support {list(self.loras)}"
            )
        from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

        number = list(self.loras).index(name) + 1
        return LoRARequest(str(number), number, self.loras[name])

    async def _embed(self, request: pb_utils.InferenceRequest, sender: Any) -> None:
        from vllm.inputs import TokensPrompt  # pyright: ignore[reportMissingImports]
        from vllm.outputs import EmbeddingRequestOutput  # pyright: ignore[reportMissingImports]
        from vllm.pooling_params import PoolingParams  # pyright: ignore[reportMissingImports]

        asked = json.loads(text(request, "embedding_request"))
        dimensions = asked.get("pooling_params", {}).get("dimensions")
        pooling = PoolingParams(task="embed", **({"dimensions": dimensions[0]} if dimensions else {}))
        prompt = asked["input"]
        if isinstance(prompt, list):
            prompt = TokensPrompt(prompt_token_ids=prompt)
        answers = [each async for each in self.engine.encode(prompt, pooling, uuid.uuid4().hex)]
        if not answers:
            raise ValueError("the engine has ended without an answer")
        output = answers[-1]
        vector = list(EmbeddingRequestOutput.from_base(output).outputs.embedding)
        tensors = [strings("text_output", [json.dumps(vector)])]
        if first(request, "return_num_input_tokens", False):
            tensors.append(counts("num_input_tokens", [len(output.prompt_token_ids)]))
        if first(request, "return_num_output_tokens", False):
            tensors.append(counts("num_output_tokens", [0]))
        sender.send(pb_utils.InferenceResponse(tensors), flags=FINAL)


def first(request: pb_utils.InferenceRequest, name: str, default: Any) -> Any:
    """The first element of an input, or the default where the request has no such input."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy()[0]


def text(request: pb_utils.InferenceRequest, name: str) -> str:
    """The text of an input; "" where the request has none."""
    found = first(request, name, b"")
    return found.decode() if isinstance(found, bytes) else str(found)


def sampling(parameters: Mapping[str, Any]) -> Any:
    """vLLM's sampling parameters; a number or text becomes the int, float or str that vLLM wants: request parameters
    may be texts."""
    from vllm.sampling_params import SamplingParams  # pyright: ignore[reportMissingImports]

    kinds = SamplingParams.__annotations__
    known = {}
    for name, value in parameters.items():
        if name == "structured_outputs":
            from vllm.sampling_params import StructuredOutputsParams  # pyright: ignore[reportMissingImports]

            value = StructuredOutputsParams(**(json.loads(value) if isinstance(value, str) else value))
        elif value is None:
            continue
        else:
            kind = [each for each in (kinds.get(name), *typing.get_args(kinds.get(name))) if each in (int, float, str)]
            value = kind[0](value) if kind and not isinstance(value, (list, dict, bool)) else value
        known[name] = value
    return SamplingParams(**known)


def response(
    output: Any, seen: dict[int, tuple[int, int, int]], asked: Collection[str], before: str = ""
) -> pb_utils.InferenceResponse:
    """A response with the output beyond the lengths in `seen`, which are updated; `before` is put in front of each
    text."""
    answers = output.outputs
    texts, tokens, logprobs = [], [], []
    for index, each in enumerate(answers):
        num_chars, num_tokens, num_logprobs = seen.get(index, (0, 0, 0))
        texts.append(before + each.text[num_chars:])
        tokens.append(len(each.token_ids) - num_tokens)
        logprobs.append(None if each.logprobs is None else each.logprobs[num_logprobs:])
        seen[index] = len(each.text), len(each.token_ids), len(each.logprobs or ())
    tensors = [strings("text_output", texts)]
    if "return_finish_reason" in asked:
        tensors.append(strings("finish_reason", [str(each.finish_reason) for each in answers]))
    if "return_cumulative_logprob" in asked:
        sums = np.array([each.cumulative_logprob for each in answers], dtype=np.float32)
        tensors.append(pb_utils.Tensor("cumulative_logprob", sums))
    if "return_logprobs" in asked:
        tensors.append(strings("logprobs", [json.dumps(as_plain(each)) for each in logprobs]))
    if "return_num_input_tokens" in asked:
        tensors.append(counts("num_input_tokens", [len(output.prompt_token_ids)]))
    if "return_num_output_tokens" in asked:
        tensors.append(counts("num_output_tokens", tokens))
    return pb_utils.InferenceResponse(tensors)


def as_plain(logprobs: Any) -> Any:
    """The logarithms of probabilities by token, in a form for JSON; None if the engine was not asked for them."""
    return logprobs and [
        {
            token: {"logprob": each.logprob, "rank": each.rank, "decoded_token": each.decoded_token}
            for token, each in step.items()
        }
        for step in logprobs
    ]


def strings(name: str, texts: Sequence[str]) -> pb_utils.Tensor:
    """A tensor of strings."""
    return pb_utils.Tensor(name, np.array([each.encode() for each in texts], dtype=np.object_))


def counts(name: str, numbers: Sequence[int]) -> pb_utils.Tensor:
    """A UINT32 tensor."""
    return pb_utils.Tensor(name, np.array(numbers, dtype=np.uint32))
