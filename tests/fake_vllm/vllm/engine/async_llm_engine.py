"""The engine."""

import asyncio
from collections.abc import AsyncIterator

from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
from vllm.inputs import TokensPrompt  # pyright: ignore[reportMissingImports]
from vllm.outputs import CompletionOutput, PoolingRequestOutput, RequestOutput  # pyright: ignore[reportMissingImports]
from vllm.pooling_params import PoolingParams  # pyright: ignore[reportMissingImports]
from vllm.sampling_params import SamplingParams  # pyright: ignore[reportMissingImports]


class AsyncLLMEngine:
    def __init__(self, args: AsyncEngineArgs) -> None:
        self.model = args.model
        self.aborted: set[str] = set()

    @classmethod
    def from_engine_args(cls, engine_args: AsyncEngineArgs) -> "AsyncLLMEngine":
        return cls(engine_args)

    async def generate(
        self, prompt: str, sampling_params: SamplingParams, request_id: str, lora_request: object = None
    ) -> AsyncIterator[RequestOutput]:
        """A word at a time, the last first, again and again."""
        words = prompt.split()[::-1]
        if "fail" in words:
            raise ValueError("no words")
        text = ""
        num = sampling_params.max_tokens or 16
        for number in range(1, num + 1):
            await asyncio.sleep(0)
            assert request_id not in self.aborted
            text += f"{words[(number - 1) % len(words)]} "
            is_last = number == num
            answer = CompletionOutput(0, text, list(range(number)), -0.5, None, "length" if is_last else None)
            yield RequestOutput(request_id, prompt, list(range(len(words))), [answer], is_last)

    async def encode(
        self, prompt: str | TokensPrompt, pooling_params: PoolingParams, request_id: str
    ) -> AsyncIterator[PoolingRequestOutput]:
        """The lengths of the words, or the tokens; without numbers for the prompt "null"."""
        lengths = [len(word) for word in prompt.split()] if isinstance(prompt, str) else prompt["prompt_token_ids"]
        embedding = lengths[: pooling_params.dimensions]
        yield PoolingRequestOutput([None] if prompt == "null" else embedding, lengths)

    async def abort(self, request_id: str) -> None:
        self.aborted.add(request_id)

    def shutdown(self) -> None:
        pass
