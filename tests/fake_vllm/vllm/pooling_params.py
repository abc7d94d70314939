"""What a request for an embedding may ask for."""

from dataclasses import dataclass


@dataclass
class PoolingParams:
    task: str = ""
    dimensions: int | None = None
