"""What a request may ask for."""

from dataclasses import dataclass, field


@dataclass
class SamplingParams:
    n: int = 1
    temperature: float = 1.0
    seed: int | None = None
    stop: str | list[str] | None = field(default=None)
    max_tokens: int | None = 16
    logprobs: int | None = None

    def __post_init__(self) -> None:
        assert type(self.temperature) in (int, float)
        assert self.max_tokens is None or type(self.max_tokens) is int
