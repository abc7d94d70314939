"""Each verb's --help has examples; one of each runs here as it is printed, or in the test of the verb that is named."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli import _VERBS, main
from tests.end_to_end.server import SAMPLES, Server

ROOT = Path(__file__).parents[2]
#: Verb → an example of its help, and the exit codes that it may have.
RUN: dict[str, tuple[str, tuple[int, ...]]] = {
    "run": ("shoal run models/simple --sample ones", (0,)),
    "samples": ("shoal samples models", (0,)),
    "init": ("shoal init models/doubler", (0,)),
    "check": ("shoal check model_repository", (0,)),
    "import": ("shoal import model_store", (0,)),
    "pack": ("shoal pack --model-name digits --version 1.0 --handler handler.py --serialized-file digits.pt", (0,)),
    "infer": ("shoal infer simple --sample ones", (0,)),
    "models": ("shoal models digits", (0,)),
    "top": ("shoal top --requests --model digits --count 1", (0,)),
    "explain": ("shoal explain digits", (0,)),
    "logs": ("shoal logs", (2,)),  # this server has no log file
    "key": ("shoal key shop --model 'resnet*' --file keys.json", (0,)),
    "doctor": ("shoal doctor", (0, 2)),  # 2: something of this machine is bad
    "fleet": ("shoal fleet haproxy --server gpu-1 --server gpu-2 --server gpu-3", (0,)),
    "completion": ("shoal completion fish", (0,)),
}
#: Verb → the file of the test that runs it with flags of its examples: on a server, a cluster or a machine of its own.
ELSEWHERE = {
    "serve": "tests/end_to_end/test_served_paths.py",
    "bench": "tests/end_to_end/test_bench.py",
    "tune": "tests/end_to_end/test_tune.py",
    "load": "tests/end_to_end/test_operating.py",
    "unload": "tests/end_to_end/test_operating.py",
    "scale": "tests/end_to_end/test_operating.py",
    "upgrade": "tests/end_to_end/upgrades.py",
    "record": "tests/end_to_end/test_recording.py",
    "records": "tests/end_to_end/test_recording.py",
    "replay": "tests/end_to_end/test_recording.py",
    "shadow": "tests/end_to_end/test_shadow.py",
    "rollout": "tests/docs/test_rollout.py",
    "ray": "tests/cli/test_ray_serve.py",
    "build-engine": "tests/cli/test_build_engine.py",
    "install-systemd": "tests/cli/test_install_systemd.py",
}


def help_of(verb: str, capsys: pytest.CaptureFixture[str]) -> str:
    try:
        assert main([verb, "--help"]) == 0
    except SystemExit as end:
        assert end.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", _VERBS)
def test_the_help_of_a_verb_has_examples_and_one_of_them_is_run(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = help_of(verb, capsys)
    _, found, examples = printed.partition("\nExample")
    assert found
    assert re.search(rf"^ .*\bshoal {verb}\b", examples, re.MULTILINE)
    if verb in RUN:
        assert RUN[verb][0] in examples
    else:
        text = (ROOT / ELSEWHERE[verb]).read_text()
        assert re.search(rf"\b{verb.replace('-', '.')}\b", text)


def test_the_examples_run(samples: Server, tmp_path: Path) -> None:
    (tmp_path / "model_repository").symlink_to(SAMPLES)
    (tmp_path / "models").mkdir()
    for model in ("simple", "digits"):
        shutil.copytree(SAMPLES / model, tmp_path / "models" / model)
    (tmp_path / "handler.py").write_text("def handle(data, context):\n    return data\n")
    (tmp_path / "digits.pt").write_bytes(b"weights")
    (tmp_path / "model_store").mkdir()
    variables = {
        **os.environ, "PYTHONPATH": f"{ROOT}", "SHOAL_URL": samples.url, "SHOAL_CLIENT_SOCKET": samples.client_socket
    }  # fmt: skip
    # One process for all, since most of a command is Python's start. `samples` takes an empty directory.
    commands = [shlex.split(example.replace("samples models", "samples more"))[1:] for example, _ in RUN.values()]
    program = (
        "import json, os, sys\n"
        "from shoal.cli import main\n"
        "codes = []\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    if words[0] == 'infer': os.environ.pop('SHOAL_URL')\n"
        "    try: codes.append(main(words))\n"
        "    except SystemExit as end: codes.append(end.code)\n"
        "    os.environ['SHOAL_URL'] = sys.argv[2]\n"
        "print(json.dumps(codes), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(commands), samples.url],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    codes = dict(zip((words[0] for words in commands), json.loads(done.stderr.splitlines()[-1]), strict=True))
    wrong = {verb: code for verb, code in codes.items() if code not in RUN[verb][1]}
    assert not wrong, done.stdout + done.stderr
    assert (tmp_path / "digits.mar").is_file()
    assert (tmp_path / "models" / "doubler" / "1" / "model.py").is_file()
