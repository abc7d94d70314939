"""An identity model that takes its time, the requests to it, and those that wait behind it."""

from pathlib import Path

import numpy as np

from tests.end_to_end.asking import infer
from tests.end_to_end.repositories import add_model
from tests.end_to_end.server import Server


def identity_model(repository: Path, name: str = "slow", delay_ms: int = 0, *, may_run_again: bool = True) -> Path:
    """A repository with one identity model that takes its time."""
    add_model(
        repository,
        name,
        f"""
        backend: "identity"
        max_batch_size: 8
        input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 4 ] }}
        output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 4 ] }}
        instance_group {{ count: 1 kind: KIND_CPU }}
        parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay_ms}" }} }}
        parameters {{ key: "idempotent" value {{ string_value: "{str(may_run_again).lower()}" }} }}
        """,
    )
    return repository


def ask(server: Server, number: int, model: str = "slow") -> int:
    """One request whose answer carries its number."""
    return int(infer(server, model, {"INPUT0": np.full((1, 4), number, np.int32)})["OUTPUT0"][0, 0])
