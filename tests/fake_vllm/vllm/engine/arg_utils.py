"""The settings of an engine."""

from dataclasses import dataclass


@dataclass
class AsyncEngineArgs:
    model: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enable_lora: bool = False
