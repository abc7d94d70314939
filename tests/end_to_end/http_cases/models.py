"""The models that the cases ask beside the samples: identity models of every kind, and one that cannot load."""

from pathlib import Path

from tests.end_to_end.repositories import add_model

#: What the case server is told to accept at most, so that the limits can be reached with small bodies.
MAX_INPUT_SIZE = 65536
MAX_REQUEST_BYTES = 1048576
FLAGS = (
    "--exit-on-error=false",
    f"--http-max-input-size={MAX_INPUT_SIZE}",
    f"--max-request-bytes={MAX_REQUEST_BYTES}",
    "--ui=false",  # as under `tritonserver`
)

TYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING",
    "BF16",
)  # fmt: skip


def tensor(kind: str, name: str, data_type: str, dims: str, more: str = "") -> str:
    """One `input` or `output` of a configuration."""
    return f'{kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: [ {dims} ] {more} }}\n'


def pair(name: str, data_type: str, dims: str, more: str = "", reshape: str = "") -> str:
    """The input NAME and the output OUT_NAME, which repeats it."""
    return tensor("input", name, data_type, dims, more + reshape) + tensor(
        "output", f"OUT_{name}", data_type, dims, reshape
    )


#: Name → configuration and versions. Each has the identity backend: the n-th output is the n-th input.
MODELS: dict[str, tuple[str, tuple[int, ...]]] = {
    # Every datatype; a request gives the inputs it likes and asks for their outputs.
    "types": ("".join(pair(each, each, "2", "optional: true ") for each in TYPES), (1,)),
    "fixed": (pair("A", "INT32", "2, 3"), (1,)),
    "grid": (pair("A", "FP32", "-1, -1"), (1,)),
    "column": (pair("A", "INT16", "-1, 2"), (1,)),
    "word": (pair("A", "STRING", "1"), (1,)),
    "batched": ("max_batch_size: 4\n" + pair("A", "FP32", "-1, 2") + pair("B", "INT32", "3"), (1,)),
    "reshaped": ("max_batch_size: 4\n" + pair("A", "INT32", "4", reshape="reshape { shape: [ 2, 2 ] }"), (1,)),
    "choosy": (pair("A", "INT32", "2") + pair("B", "INT32", "2", "optional: true"), (1,)),
    # Versions 1 and 3 of three are served.
    "versions": (pair("A", "INT32", "1") + "version_policy { specific { versions: [ 1, 3 ] } }", (1, 2, 3)),
    "odd.name-1_": (pair("A", "INT32", "1"), (1,)),
}


def write_models(repository: Path) -> Path:
    """The repository, with a model `broken` that the backend refuses."""
    for name, (tensors, versions) in MODELS.items():
        for version in versions:
            (repository / name / str(version)).mkdir(parents=True)
        config = f'backend: "identity"\n{tensors}instance_group {{ count: 1 kind: KIND_CPU }}\n'
        (repository / name / "config.pbtxt").write_text(config)
    add_model(
        repository,
        "broken",
        'backend: "identity"\n' + tensor("input", "A", "FP32", "1") + tensor("output", "OUT_A", "INT32", "1"),
    )
    return repository
