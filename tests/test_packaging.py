"""pyproject.toml's package map, the links in shoal/ and the tree say the same."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import interpreter

ROOT = Path(__file__).parents[1]
FOLDERS = [
    "supervisor",
    "repository",
    "tracer",
    "recorder",
    "frontend",
    "batcher",
    "workers",
    "shm",
    "systemd",
    "model_repository",
]
#: Hold no modules of Shoal's, only what is installed beside them.
DATA = {"shoal.systemd", "shoal.model_repository"}
#: In workers/pb_utils, under names of their own: models import them by these.
OF_MODELS = ["triton_python_backend_utils", "c_python_backend_utils"]
#: The path of TorchServe's handlers' own, in which `ts` lies.
HANDLER_IMPORTS = ROOT / "workers" / "handler_imports"


def section(name: str) -> str:
    """The text of one section of pyproject.toml. (Python 3.10 has no TOML parser of its own.)"""
    text = (ROOT / "pyproject.toml").read_text()
    found = re.search(rf"^\[{re.escape(name)}\]$(.*?)(?=^\[)", text, re.MULTILINE | re.DOTALL)
    assert found, f"pyproject.toml has no section [{name}]"
    return found[1]


def folders_with_modules(folder: Path, package: str) -> set[str]:
    """The import names of `folder` and of the folders below it that hold Python files; links are left out."""
    found = {package} if any(folder.glob("*.py")) else set()
    for below in folder.iterdir():
        if below.is_dir() and not below.is_symlink() and below.name not in ("__pycache__", "pb_utils"):
            found |= folders_with_modules(below, f"{package}.{below.name}")
    return found


def test_the_package_list_names_every_folder_that_holds_python_files() -> None:
    in_tree = folders_with_modules(ROOT / "shoal", "shoal")
    for folder in sorted({*FOLDERS} - {"model_repository"}):  # whose modules are users' code
        in_tree |= folders_with_modules(ROOT / folder, f"shoal.{folder}")
    assert set(re.findall(r'"(shoal[\w.]*)"', section("tool.setuptools"))) == in_tree | DATA


@pytest.mark.parametrize("name", OF_MODELS)
def test_what_models_import_is_a_package_of_its_own(name: str) -> None:
    assert f'"{name}"' in section("tool.setuptools")
    assert f'"{name}" = "workers/pb_utils/{name}"' in section("tool.setuptools.package-dir")
    assert (ROOT / "workers" / "pb_utils" / name / "__init__.py").is_file()


def test_no_package_but_shoal_s_own_has_torchserve_s_name() -> None:
    """Installed as `ts` it would take the place of the real one, which may lie beside Shoal."""
    assert [path.name for path in HANDLER_IMPORTS.iterdir() if path.is_dir()] == ["ts"]
    assert '"ts"' not in section("tool.setuptools") + section("tool.setuptools.package-dir")


def extra(name: str) -> set[str]:
    """The requirements of an extra, those of other extras in it included."""
    listed = re.search(rf"^{name} = \[.*$", section("project.optional-dependencies"), re.MULTILINE)
    assert listed, f"there is no extra '{name}'"
    found: set[str] = set()
    for requirement in re.findall(r'"([^"]+)"', listed[0].partition("#")[0]):
        others = re.fullmatch(r"shoal\[([\w,-]+)\]", requirement)
        found |= set().union(*map(extra, others[1].split(","))) if others else {requirement}
    return found


def test_all_needs_no_compiler() -> None:
    assert not extra("all") & extra("fast")  # which is the one that has no wheels


@pytest.mark.parametrize("name", ["onnx-gpu", "tensorrt", "torch", "all"])
def test_what_runs_on_gpus_tells_of_them(name: str) -> None:
    assert extra("gpu-metrics") <= extra(name)


def test_tensorrt_is_the_one_that_onnxruntime_s_provider_is_linked_to() -> None:
    """libonnxruntime_providers_tensorrt.so of onnxruntime-gpu 1.18 to 1.31 needs libnvinfer.so.10."""
    [tensorrt] = [each for each in extra("tensorrt") if each.startswith("tensorrt")]
    assert tensorrt.endswith(",<11")


def test_every_package_has_an_init_file() -> None:
    for package in set(re.findall(r'"(shoal[\w.]*)"', section("tool.setuptools"))) - DATA:
        assert (ROOT / package.replace(".", "/") / "__init__.py").is_file(), package


def test_the_map_names_the_root_folders() -> None:
    mapped = re.findall(r'^"shoal\.(\w+)" = "(\w+)"$', section("tool.setuptools.package-dir"), re.MULTILINE)
    assert mapped == [(folder, folder) for folder in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_link_leads_to_its_folder(folder: str) -> None:
    link = ROOT / "shoal" / folder
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{folder}"
    assert link.resolve() == ROOT / folder


def compiled_modules() -> set[str]:
    """The import names of the modules that setup.py compiles where it is asked to."""
    found = re.search(r"^COMPILED = (\{.*?^\})", (ROOT / "setup.py").read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return {f"{package}.{name}" for package, names in ast.literal_eval(found[1]).items() for name in names}


def file_of(module: str) -> Path:
    return (ROOT / module.replace(".", "/")).with_suffix(".py")


def bases(tree: ast.Module) -> set[str]:
    """What the classes of a module inherit from, as module.Name where it was imported."""
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    named = {ast.unparse(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases}
    return {imported.get(name.partition("[")[0], name) for name in named}


def test_every_compiled_module_is_there() -> None:
    assert "shoal.memo" in compiled_modules()  # by which shoal.interpreter knows a compiled build
    for module in compiled_modules():
        assert file_of(module).is_file(), module


def test_modules_are_compiled_where_this_shoal_is() -> None:
    kind = ".so" if interpreter.is_compiled() else ".py"
    for module in compiled_modules():
        assert (importlib.import_module(module).__file__ or "").endswith(kind), module


def test_no_call_with_an_effect_bounds_a_slice_in_a_compiled_module() -> None:
    """mypyc 2.4 makes such a call twice where the sequence may be of several types, as in `data[take(data):]`."""
    without_effect = {"len", "min", "max", "find", "bisect_left", "bisect_right"}
    calls = {
        f"{module}:{call.lineno}: {ast.unparse(call.func)}"
        for module in compiled_modules()
        for part in ast.walk(ast.parse(file_of(module).read_text()))
        if isinstance(part, ast.Slice)
        for call in ast.walk(part)
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] not in without_effect
    }
    assert calls == set()


def test_no_compiled_module_has_what_mypyc_translates_and_breaks() -> None:
    """mypyc 2.4 takes a slice object for the index of bytes, and looks for the type of a NamedTuple's memoryview among
    the module's own names."""
    for module in sorted(compiled_modules()):
        for node in ast.walk(ast.parse(file_of(module).read_text())):
            if isinstance(node, ast.Subscript):
                assert not ast.unparse(node.slice).startswith("slice("), f"{module}:{node.lineno}"
            if isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["NamedTuple"]:
                types = [ast.unparse(field.annotation) for field in node.body if isinstance(field, ast.AnnAssign)]
                assert "memoryview" not in types, f"{module}.{node.name}"


def test_no_compiled_class_is_an_abc() -> None:
    """Compiled, an ABC and all classes that inherit from it share what isinstance and issubclass remember: a scheduler
    that has once been found to be one is an object of every kind of scheduler."""
    assert [
        module for module in sorted(compiled_modules()) if "abc.ABC" in bases(ast.parse(file_of(module).read_text()))
    ] == []


def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    """The compiled class would refuse to make an object of it, unless it says that it has interpreted subclasses."""
    compiled = {file_of(module).resolve(): module for module in compiled_modules()}
    classes = {
        f"{module}.{node.name}"
        for path, module in compiled.items()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
        and not any("allow_interpreted_subclasses" in ast.unparse(each) for each in node.decorator_list)
    }
    names = "|".join(name.rpartition(".")[2] for name in classes)
    inherits = re.compile(rf"^ *class \w+\([^)]*\b({names})\b", re.MULTILINE)  # or from another class of that name
    for folder in ("shoal", *FOLDERS, "tests", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.resolve() not in compiled and inherits.search(text := path.read_text()):
                assert not bases(ast.parse(text)) & classes, path


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "import numpy as np\nArray = np.ndarray[int, np.dtype[np.int8]]\ndef f(it: Array) -> None: ...",
            "not valid as a type",
        ),
        ("class Record:\n    HIGH, LOW = 3, 4", "Only assignment to variables"),
    ],
    ids=["a type", "a class body"],
)
def test_the_checks_find_what_the_compiled_build_refuses(tmp_path: Path, fault: str, said: str) -> None:
    """A type that is none where numpy's are left out, which mypy's own check of this tree does not see, and a statement
    that is right in Python alone."""
    command = "python setup.py translate"
    assert f"'{command}'" in (ROOT / "scripts" / "check").read_text()
    text = (ROOT / "setup.py").read_text()
    (listed,) = re.findall(r"^COMPILED = \{.*?^\}", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "setup.py").write_text(text.replace(listed, 'COMPILED = {"shoal": ["memo"]}'))
    (tmp_path / "shoal").mkdir()
    (tmp_path / "shoal" / "__init__.py").touch()
    (tmp_path / "shoal" / "memo.py").write_text(fault)
    done = subprocess.run(
        [sys.executable, *command.split()[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done
    assert said in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["setup.py", "shoal"]


#: Words that gcc knows beside those of the standard, without the first of their underscores.
WORDS_OF_C = {
    "_alignof", "_asm", "_attribute", "_complex", "_const", "_extension", "_imag", "_inline", "_label", "_real",
    "_restrict", "_signed", "_thread", "_typeof", "_volatile",
}  # fmt: skip


def test_no_attribute_in_a_compiled_module_becomes_a_word_of_c() -> None:
    """mypyc makes of an attribute a field of a struct, with an underscore in front of its name."""
    for module in sorted(compiled_modules()):
        attributes = {
            node.attr for node in ast.walk(ast.parse(file_of(module).read_text())) if isinstance(node, ast.Attribute)
        }
        assert not attributes & WORDS_OF_C, module


def test_no_extension_module_lies_beside_the_sources() -> None:
    """Python would prefer it to the source, however old it is."""
    assert not [path for folder in ("shoal", *FOLDERS) for path in (ROOT / folder).rglob("*.so")]


def test_no_other_link_lies_in_the_package() -> None:
    assert sorted(path.name for path in (ROOT / "shoal").iterdir() if path.is_symlink()) == sorted(FOLDERS)


def test_the_source_distribution_has_every_folder() -> None:
    grafted = set(re.findall(r"^graft (\w+)$", (ROOT / "MANIFEST.in").read_text(), re.MULTILINE))
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {path.partition("/")[0] for path in tracked.splitlines() if "/" in path and not path.startswith(".")}
    assert folders == grafted | {*FOLDERS} | {"shoal"}
