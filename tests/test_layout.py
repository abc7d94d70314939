"""What files import: no cycle, for type checkers and inside functions, too; nothing heavy where it is not used."""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Directories whose packages have import names of their own.
OF_MODELS = re.compile(r"workers/(pb_utils|handler_imports)/")
ROOMS = ["shoal", "supervisor", "repository", "tracer", "recorder", "frontend", "batcher", "workers", "shm"]


def modules() -> dict[str, Path]:
    """Every file of the product by its import name."""
    found = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):  # which follows no link
            name = path.relative_to(ROOT).as_posix()
            of_models = OF_MODELS.match(name)
            name = name[of_models.end() :] if of_models else name if room == "shoal" else f"shoal/{name}"
            found[name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = path
    return found


def imported(source: str, files: Collection[str]) -> set[str]:
    """The files that the import statements of a source name, wherever they stand."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            nouns = [f"{node.module}.{each.name}" for each in node.names]
            names |= {noun if noun in files else str(node.module) for noun in nouns}
    return names & {*files}


def cycle(imports: dict[str, set[str]]) -> list[str]:
    """A cycle among files, by what each of them imports; [] where there is none."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_cycle_of_files() -> None:
    files = modules()
    some = {"shoal", "shoal.log", "shoal.supervisor.main", "triton_python_backend_utils.request", "ts.context"}
    assert some <= files.keys()
    imports = {name: imported(path.read_text(), files) for name, path in files.items()}
    assert not cycle(imports)


@pytest.mark.parametrize(
    "back",
    [
        "import room.first",
        "from room import first",
        "if TYPE_CHECKING:\n    from room.first import Noun",
        "def late():\n    from room.first import verb",
    ],
)
def test_a_cycle_is_found(back: str) -> None:
    files = {"room.first": "from room.second import noun", "room.second": "import room.third", "room.third": back}
    imports = {name: imported(source, files) for name, source in files.items()}
    assert set(cycle(imports)) == files.keys()
    assert not cycle({**imports, "room.third": set()})


@pytest.mark.parametrize(
    ("entry", "absent"),
    [
        (
            "shoal.cli.serve, shoal.supervisor.main",
            {"numpy", "google.protobuf", "importlib.metadata", "zipfile", "calendar", "shoal.environments.enter"},
        ),
        ("shoal.repository.main", {"numpy", "asyncio", "fsspec"}),
        ("shoal.batcher.main", {"numpy", "google.protobuf", "asyncio", "statistics"}),
        ("shoal.zygote", {"numpy", "google.protobuf", "asyncio", "hashlib"}),
        ("shoal.environments.enter", {"numpy", "google.protobuf", "asyncio"}),
        (
            "shoal.frontend.gunicorn_main, shoal.frontend.lane, shoal.frontend.grpc.lane, shoal.frontend.road.road",
            {
                *("flask", "werkzeug", "jinja2", "asyncio", "http.client"),
                *("ssl", "html", "email.utils", "importlib.metadata", "zipfile"),  # of gunicorn: late_modules.py
                *("google.protobuf.descriptor_pb2", "shoal.frontend.grpc.torchserve.messages"),
                "shoal.frontend.grpc.reflection",
            },
        ),
    ],
)
def test_a_process_starts_without(entry: str, absent: set[str]) -> None:
    """The import of numpy costs 50 ms of CPU and starts threads, that of protobuf 30 ms, of asyncio 18, of
    importlib.metadata 14. What a process has imported it keeps: of MiB, importlib.metadata takes 1.3, protobuf's
    descriptor_pb2 1.1, ssl 0.8, others 0.3 to 0.6."""
    script = f"import sys, {entry}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert {*entry.split(", ")} <= {*loaded}
    assert not absent & {*loaded}
