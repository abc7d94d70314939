"""What an engine answers."""

from dataclasses import dataclass
from typing import Any


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float
    logprobs: list[Any] | None
    finish_reason: str | None


@dataclass
class RequestOutput:
    request_id: str
    prompt: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool


@dataclass
class PoolingRequestOutput:
    outputs: Any
    prompt_token_ids: list[int]


@dataclass
class EmbeddingOutput:
    embedding: list[float | None]


class EmbeddingRequestOutput(PoolingRequestOutput):
    @staticmethod
    def from_base(output: PoolingRequestOutput) -> "EmbeddingRequestOutput":
        embedding = [None if each is None else float(each) for each in output.outputs]
        return EmbeddingRequestOutput(EmbeddingOutput(embedding), output.prompt_token_ids)
