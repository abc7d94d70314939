"""deploy/Containerfile, as far as it can be checked without a container engine."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
import yaml

from shoal.cli.serve import parse
from shoal.options import ServerOptions

ROOT = Path(__file__).parents[2]
DEFAULTS = ServerOptions(http_address="0.0.0.0")
Instruction = tuple[str, str]


def stages(file: str = "Containerfile") -> list[list[Instruction]]:
    """Each stage's instructions: the word, and the rest with its continued lines joined."""
    lines = [line for line in (ROOT / "deploy" / file).read_text().splitlines() if line[:1] != "#"]
    text = "\n".join(lines).replace("\\\n", "")
    found: list[list[Instruction]] = []
    for line in filter(None, text.splitlines()):
        word, rest = line.split(maxsplit=1)
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found


BUILD, IMAGE = stages()


def values(stage: list[Instruction], word: str) -> list[str]:
    return [rest for each, rest in stage if each == word]


def pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text()


def test_only_known_instructions_are_used() -> None:
    assert [word for word, _ in BUILD] == ["FROM", "ARG", "ARG", "RUN", "RUN", "WORKDIR", *["COPY"] * 12, "RUN"]
    assert [word for word, _ in IMAGE] == ["FROM", "COPY", "COPY", "RUN", "ENV", "WORKDIR", "USER", "EXPOSE", "CMD"]


def test_both_stages_have_the_same_base_since_the_environment_is_copied() -> None:
    [build], [image] = values(BUILD, "FROM"), values(IMAGE, "FROM")
    assert build == f"{image} AS build"
    version = re.fullmatch(r"docker\.io/library/python:(3\.\d+)-slim", image)
    assert version
    assert int(version[1].split(".")[1]) >= 10  # what pyproject.toml requires
    assert values(IMAGE, "COPY")[0] == "--from=build /opt/shoal /opt/shoal"
    assert "python -m venv /opt/shoal" in values(BUILD, "RUN")


def test_what_the_package_is_built_of_is_copied_and_nothing_else() -> None:
    copied = [source for line in values(BUILD, "COPY") for source in shlex.split(line)[:-1]]
    folders = re.findall(r'^"shoal\.\w+" = "(\w+)"$', pyproject(), re.MULTILINE)
    assert sorted(copied) == sorted(["pyproject.toml", "setup.py", "README.md", "LICENSE", "shoal", *folders])
    for line in values(BUILD, "COPY"):
        *sources, target = shlex.split(line)
        assert [target] == sources or target == "./"  # the links in shoal/ lead to ../frontend and so on


def test_sagemaker_finds_the_executable_that_it_starts() -> None:
    source, target = shlex.split(values(IMAGE, "COPY")[1])
    assert target == "/usr/local/bin/serve"
    assert os.access(ROOT / source, os.X_OK)


def test_what_is_installed_is_what_the_readme_installs() -> None:
    extras = installed(BUILD)
    install = 'SHOAL_COMPILED=${COMPILED} /opt/shoal/bin/pip install --no-cache-dir ".[${EXTRAS}]"'
    assert values(BUILD, "RUN")[-1] == install
    assert f"pip install 'shoal[{extras[0]}]'" in (ROOT / "README.md").read_text()
    assert "s3" in extras  # where the repositories of those who change their image lie most often
    assert "redis" in extras  # Triton's image has its Redis cache, so a manifest with --cache-config=redis starts


def test_the_image_is_compiled_and_has_no_compiler() -> None:
    assert "COMPILED=1" in values(BUILD, "ARG")
    assert " gcc " in values(BUILD, "RUN")[0]
    assert "gcc" not in " ".join(values(IMAGE, "RUN"))


def installed(stage: list[Instruction]) -> list[str]:
    """The extras that are installed unless the build says otherwise; each is one."""
    default, _compiled = values(stage, "ARG")
    extras = default.removeprefix("EXTRAS=").split(",")
    assert all(re.search(rf"^{extra} = \[", pyproject(), re.MULTILINE) for extra in extras)
    return extras


def test_the_image_for_gpus_differs_in_its_extras_and_in_the_word_for_nvidia_s_runtime() -> None:
    build, image = stages("Containerfile.gpu")
    assert installed(build) == ["onnx-gpu", "s3", "redis"]
    [path, log_format, *nvidia] = values(image, "ENV")[0].split()
    assert [f"{path} {log_format}"] == values(IMAGE, "ENV")
    assert nvidia == ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
    for one, other in ((build, BUILD), (image, IMAGE)):
        assert [each for each in one if each[0] not in ("ARG", "ENV")] == [
            each for each in other if each[0] not in ("ARG", "ENV")
        ]


@pytest.mark.parametrize("file", ["Containerfile", "Containerfile.gpu"])
def test_every_extra_that_its_head_names_is_one(file: str) -> None:
    head = (ROOT / "deploy" / file).read_text().partition("\nFROM")[0]
    named = {extra for extras in re.findall(r"EXTRAS=([\w,-]+)", head) for extra in extras.split(",")}
    assert named
    for extra in named:
        assert re.search(rf"^{extra} = \[", pyproject(), re.MULTILINE), extra


def test_the_command_is_a_server_on_the_mounted_repository() -> None:
    [command] = values(IMAGE, "CMD")
    name, *arguments = json.loads(command)
    assert re.search(rf'^{name} = "shoal\.cli:\w+"$', pyproject(), re.MULTILINE)
    [path, log_format] = values(IMAGE, "ENV")[0].split()
    assert path == "PATH=/opt/shoal/bin:$PATH"
    assert values(IMAGE, "ENTRYPOINT") == []  # manifests say `args: [tritonserver, …]`
    environ = dict([log_format.split("=")])
    options, warnings = parse(arguments, prog=name, defaults=DEFAULTS, environ=environ)
    assert (options.model_repository, options.log_format, warnings) == ((Path("/models"),), "json", ())


def test_the_ports_are_the_server_s() -> None:
    assert values(IMAGE, "EXPOSE") == [f"{DEFAULTS.http_port} {DEFAULTS.grpc_port} {DEFAULTS.metrics_port}"]


def test_it_runs_as_the_user_that_the_manifests_name() -> None:
    deployment = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "cpu" / "deployment.yaml").read_text())
    context = deployment["spec"]["template"]["spec"]["securityContext"]
    assert values(IMAGE, "USER") == [f"{context['runAsUser']}:{context['runAsGroup']}"]
    [run] = values(IMAGE, "RUN")
    assert f"useradd --uid {context['runAsUser']} " in run


@pytest.mark.parametrize("path", ["/opt/tritonserver/bin/tritonserver", "bin/tritonserver"])
def test_scripts_find_the_server_where_triton_has_it(path: str) -> None:
    [folder] = values(IMAGE, "WORKDIR")
    [run] = values(IMAGE, "RUN")
    assert f"ln -s /opt/shoal/bin/tritonserver {Path(folder) / path}" in " ".join(run.split())
