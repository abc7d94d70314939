"""Commands that are wrong: each is refused with a sentence and its usage, and nothing is changed."""

import os
import shlex
from pathlib import Path

import pytest

from shoal.cli import _VERBS, main, request_arguments
from shoal.recorder.segment_file import file_head, pack_frame
from tests.recorder.entries import made
from tests.testing.models import write_identity

#: The name of no file.
LONG = "a" * 300

#: Command → how what it prints begins.
WRONG = {
    "run": "Which model? Name its directory.",
    "run nowhere": "There is no directory 'nowhere'.",
    "run m.onnx": "'m.onnx' is a file: 'shoal init <model directory> --from m.onnx' writes the directory of a model",
    f"run {LONG}": "'/",
    "run echo": "missing input 'X' (FP32, shape [-1,2]). Give it as X=<value>, or with --data or --sample.",
    "run echo Z=1": "'Z' is no input of model 'echo', which takes 'X' (FP32, shape [-1,2]).",
    "run echo --input X=fish": "Input 'X' (FP32, shape [-1,2]) cannot be 'fish': give it JSON or @file.",
    "run echo X=[1,2,3]": "Input 'X' (FP32, shape [-1,2]) is given in shape [3].",
    "run echo --input X": "argument --input: expected <name>=<value>, got 'X'",
    "run echo X=@none.npy": "Input 'X': cannot read none.npy: No such file or directory",
    "run echo --repeat 0": "argument --repeat: expected a number from 1 on, got '0'",
    "run echo X=@empty.npy": "Input 'X': cannot read empty.npy: No data left in file",
    "run loop": "'loop' is a link to 'loop', which is not there.",
    "run lost": "'lost' is a link to 'gone/away', which is not there.",
    "run lost/model": "'lost' is a link to 'gone/away', which is not there.",
    "check lost": "'lost' is a link to 'gone/away', which is not there.",
    "import lost": "'lost' is a link to 'gone/away', which is not there.",
    "init fresh --from lost": "'lost' is a link to 'gone/away', which is not there.",
    "run echo --data none.json": "--data: cannot read none.json: No such file or directory",
    "run echo --data list.json": "--data: list.json holds no JSON object.",
    "run echo --data numbers.json": "--data: a request is an object of inputs, not 1.",
    "run echo --data inputs.json": "--data: each of the inputs and outputs is an object, as POST …/infer takes it.",
    "run echo --data shape.json": "--data: an input or output has no 'shape'.",
    "run echo --data folder": "There is no recording in 'folder': its files end in .shoalrec.",
    "infer m --url foo://x": "'foo://x' begins with foo://: a server's URL is http://host:port, https://host:port or "
    "grpc://host:port\n",
    "infer m --url http://": "'http://' names no host: a server's URL is http://host:port",
    "infer m --url localhost:http": "'http://localhost:http' has a port that is no number from 1 to 65535: a server's",
    "bench m --url localhost:http": "'localhost:http' has a port that is no number from 1 to 65535: a server's URL is ",
    "bench m --url grpc://localhost:99999": "'grpc://localhost:99999' has a port that is no number from 1 to 65535: a ",
    "check": "Which repository? Name its directory.",
    "check /no/such": "There is no directory '/no/such'.",
    "check m.onnx": "'m.onnx' is a file, and what is checked is the directory of a model or of several.\n",
    f"check {LONG}": f"'{LONG}': File name too long",
    "check --frobnicate": "unrecognized option '--frobnicate'",
    "doctor --http-port=x": "argument --http-port: ",
    "doctor --http-port=70000": "argument --http-port: ",
    "doctor model": "Unexpected argument: model",
    "doctor --nonsense": "unrecognized option '--nonsense'",
    "fleet": "For which balancer? 'haproxy' is known, got ''.",
    "fleet nginx": "For which balancer? 'haproxy' is known, got 'nginx'.",
    "fleet haproxy": "Which servers? Name at least one by --server.",
    "fleet haproxy --server 'a b'": "--server must be <host[:http port[:gRPC port]]>, got 'a b'.",
    "fleet haproxy --server a:70000": "--server must be <host[:http port[:gRPC port]]>, got 'a:70000'.",
    "fleet haproxy --server 'a\n    server evil'": "--server must be <host",
    "fleet haproxy --server a --server a": "--server 'a' is named twice.",
    "fleet haproxy --server a --bind 'x y:1'": "--bind 'x y:1' is not one that HAProxy's configuration",
    "fleet haproxy --server a --sequence-header 'x)'": "--sequence-header 'x)' is not one that",
    "fleet haproxy --server a --admin-socket 's level user'": "--admin-socket 's level user' is not one",
    "fleet haproxy --server a --timeout 0": "--timeout must be at least 1, got 0.",
    "import": "Which store?",
    "import gone": "There is no directory or file 'gone'.",
    "import broken.properties": "Missing mandatory parameter --model-store",
    "import folder --model-store folder": "'folder' is a store itself: --model-store belongs to a config.properties.",
    "import far.properties": "There is no model store 'gone'.",
    "init": "Which model? Name the directory to write",
    "init fresh --from none.onnx": "There is no file 'none.onnx'.",
    "init fresh --from h.py": "'h.py' is no file of .onnx, .xml, .plan",
    "init /proc/fresh": "'/proc/fresh' cannot be written",
    "init fresh --nonsense": "unrecognized option '--nonsense'",
    f"init {LONG}": f"'{LONG}': File name too long",
    "init echo": "'echo' exists already, and is left as it is.",
    "key": "Whose key?",
    "key 'a b'": "'a b' is no name for a key: ",
    "key k --scope=root": "argument --scope: ",
    "key k --model=": "models of key 'k' must be at most 64 names or patterns",
    "key k --burst=3": "key 'k' has a burst and no requests_per_second",
    "key k --rate=0": "requests_per_second of key 'k' must be a number above 0",
    "pack": "--model-name is needed.",
    "pack --model-name m --version 1": "--handler is needed.",
    "pack --model-name ../m --version 1 --handler h.py": "'../m' is no name of a model",
    "pack --model-name m --version 1 --handler gone.py": "There is no file 'gone.py'.",
    "pack --model-name m --version 1 --handler h.py --extra-files h.py,no": "There is no file or directory 'no'.",
    "pack --model-name m --version 1 --handler h.py --extra-files folder": "'folder/fifo' is neither a file nor a",
    "pack --model-name m --version 1 --handler h.py --export-path /no": "There is no directory '/no' to put ",
    "ray": "Which verb? deploy, status and delete are known, got ''.",
    "ray start": "Which verb? deploy, status and delete are known, got 'start'.",
    "ray deploy": "Which model repository? Name a path that every node has, or a URL.",
    "ray deploy m --route-prefix x": "--route-prefix must begin with '/', got 'x'.",
    "ray deploy m --autoscale 3": "--autoscale takes the fewest and the most servers, as in 1:4",
    "ray deploy m --autoscale 1:4 --num-replicas 2": "--autoscale takes the fewest and the most",
    "ray status m": "'status' takes options alone, got 'm'.",
    "ray delete -- --id=a": "'delete' takes options alone, got '--id=a'.",
    "samples": "Into which directory? Name one that is not there yet.",
    "samples echo": "'echo' is there already, and stays as it is",
    "samples /proc/x": "'/proc/x' cannot be written: No such file or directory",
    "build-engine no.onnx out.plan": "there is no file 'no.onnx'\n",
    "build-engine m.onnx no/out.plan": "there is no directory 'no' to put 'out.plan' into\n",
    "build-engine m.onnx out.plan --max-batch-size 0": "--max-batch-size must be at least 1, got 0\n",
    "build-engine": "Of which model? Name its ONNX file, then the file of the engine.\n",
    "build-engine m.onnx": "Into which file? Name that of the engine, as in model.plan.\n",
    "build-engine m.onnx out.plan --shape X": "argument --shape: expected <input>=<least>:<best>:<most>, as in X=",
    "install-systemd": "Which models? Name their directory by --model-repository.\n",
    "install-systemd --model-repository /nowhere": "--model-repository: /nowhere is not a directory\n",
    "install-systemd --model-repository / --user no-such-name": "there is no user 'no-such-name'; make one: "
    "useradd --system --no-create-home no-such-name\n",
    "install-systemd --model-repository / --user daemon --output /nowhere/s.service": "cannot write "
    "/nowhere/s.service: No such file or directory. Run it with sudo, or print the unit with --output -\n",
    "install-systemd --model-repository / --user daemon --color": "unrecognized option '--color'\n",
    # As `shoal serve` would, but before it is a service that does not start.
    "install-systemd --model-repository / --user daemon -- --nonsense": "unrecognized option '--nonsense'\n",
    "records": "Which recording? Name a file, or the folder of --record.",
    "records ''": "Which recording? Name a file, or the folder of --record.",
    "records gone": "There is no recording 'gone'.",
    f"records {LONG}": f"'{LONG}': File name too long",
    "records folder": "There is no recording in 'folder': its files end in .shoalrec.",
    "records one.shoalrec#2": "The recording has no request 2.",
    "records one.shoalrec --limit=-1": "argument --limit: expected a number from 1 on, got '-1'",
    "records one.shoalrec --export json --output no/x": "argument --output: 'no/x' cannot be written\n",
    "records one.shoalrec --export json --output /dev/full": "'/dev/full' cannot be written: No space left on device\n",
    "replay": "Which recording? Name a file, or the folder of --record.",
    "replay ''": "Which recording? Name a file, or the folder of --record.",
    "run echo --record ''": "Which recording? Name a file, or the folder of --record.",
    f"replay {LONG}": f"'{LONG}': File name too long",
    f"import {LONG}": f"'{LONG}': File name too long",
    f"import folder --output {LONG}": f"'{LONG}': File name too long",
    f"pack --model-name m --version 1 --handler h.py --export-path {LONG}": f"'{LONG}': File name too long",
    f"pack --model-name m --version 1 --handler h.py --extra-files {LONG}": f"'{LONG}': File name too long",
    "samples lost": "'lost' is there already, and stays as it is: name another directory.",
    "init lost": "'lost' exists already, and is left as it is.",
    "import folder --output lost": "'lost' exists already, and is left as it is.",
    f"samples {LONG}": f"'{LONG}': File name too long",
    f"tune {LONG} --goal p99=1ms --model-repository .": f"'{LONG}': File name too long",
    f"build-engine {LONG} out.plan": f"'{LONG}': File name too long",
    "replay folder#1": "There is no recording in 'folder': its files end in .shoalrec.",
    "replay one.shoalrec --limit=-1": "argument --limit: expected a number from 1 on, got '-1'",
    "replay one.shoalrec --speed nan": "--speed is a factor from 0 on.",
    "replay one.shoalrec --against 1 --version 2": "--against 1 and --version are two answers to one question",
    "replay one.shoalrec --exact-batches": "--exact-batches needs --repo",
    "replay one.shoalrec --compare python": "--compare: python is for shadows",
    "replay one.shoalrec --report no/r.html": "argument --report: 'no/r.html' cannot be written\n",
    "replay one.shoalrec --report folder": "argument --report: 'folder' cannot be written\n",
    "tune echo --goal p99=1ms --svg no/p.svg": "argument --svg: 'no/p.svg' cannot be written\n",
    "bench echo --svg no/p.svg": "argument --svg: 'no/p.svg' cannot be written\n",
    "rollout": "Which model? 'shoal models' lists those of a server.",
    "rollout digits next": "argument version: invalid int value: 'next'\n",
    "rollout digits --steps 1,100": "Which version? As in: ",
    "rollout digits 2 --abort": "One thing at a time: ",
    "shadow digits 2": "Which version is mirrored? --of says so.",
    "shadow digits --of 2": "To which version? As 'shoal shadow digits 3 --of 2'.",
    "record --sample 0.1": "Which model? 'shoal models' lists those of a server.",
    "scale": "Expected a model and a number of instances, as in digits=4, got ''\n",
    "scale digits": "Expected a model and a number of instances, as in digits=4, got 'digits'\n",
    "logs --lines -1": "argument --lines: expected a number from 1 on, got '-1'\n",
    "top --count 0": "argument --count: expected a number from 1 on, got '0'\n",
    "tune": "Which model, and which goal?",
    "tune echo --goal p99=1ms --model-repository folder": "There is no model 'echo' in folder (--model-repository).",
    "tune echo --goal 1ms": "argument --goal: a goal is p99=20ms",
    "completion": "Which shell? One of bash, zsh, fish.",
    "infer": "Which model? 'shoal models' lists those of a server.",
    "bench": "Which model? 'shoal models' lists those of a server.",
    "load": "Which model? 'shoal models' lists those of a server.",
    "unload": "Which model? 'shoal models' lists those of a server.",
    "explain": "Which model? 'shoal models' lists those of a server.",
    "infer ''": "Which model? 'shoal models' lists those of a server.",
    "models ''": "Which model? 'shoal models' lists those of a server.",
    "top ''": "Which model? 'shoal models' lists those of a server.",
    "top --model ''": "Which model? 'shoal models' lists those of a server.",
    "record ''": "Which model? 'shoal models' lists those of a server.",
    "shadow '' 2 --of 1": "Which model? 'shoal models' lists those of a server.",
    "tune '' --goal p99=1ms": "Which model, and which goal?",
    "tune echo --goal p99=1ms --model-repository ''": "Where does the model lie? --model-repository names the ",
    "replay one.shoalrec --repo ''": "Which models? --repo names the directory above them.",
    "bench echo --compare ''": "With which server? --compare <url> names the second one.",
    "install-systemd --model-repository ''": "Which models? Name their directory by --model-repository.",
    "ray deploy ''": "Which model repository? Name a path that every node has, or a URL.",
    "models --url 'http://a b:8000'": "'http://a b:8000' names a host that cannot be one: a server's URL is ",
    "bench m --url HTTP://localhost:http": "'HTTP://localhost:http' has a port that is no number from 1 to 65535: a ",
    "run ''": "Which model? Name its directory",
    "check ''": "Which repository? Name its directory.",
    "check echo ''": "Which repository? Name its directory.",
    "init ''": "Which model? Name the directory to write",
    "samples ''": "Into which directory? Name one that is not there yet.",
    "import ''": "Which store? Name its directory, or a config.properties.",
    "completion ''": "Which shell? One of bash, zsh, fish.",
    "build-engine '' out.plan": "Of which model? Name its ONNX file, then the file of the engine.",
    "load echo --config none.json": "--config: cannot read none.json: No such file or directory\n",
    "upgrade --pid-file none": "--pid-file: cannot read 'none': No such file or directory\n",
    "upgrade --pid=1 --pid-file=x": "argument --pid-file: not allowed with argument --pid",
}
FILES = {
    "m.onnx": "",
    "empty.npy": "",
    "h.py": "",
    "broken.properties": "a=b",
    "far.properties": "model_store=gone",
    "list.json": "[1]",
    "numbers.json": '{"data": [1]}',
    "inputs.json": '{"inputs": [1]}',
    "shape.json": '{"inputs": [{"name": "X", "data": [1, 2]}]}',
}


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_command_is_explained_and_changes_nothing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_identity(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("gone/away")
    os.mkfifo(tmp_path / "folder" / "fifo")
    (tmp_path / "one.shoalrec").write_bytes(file_head() + pack_frame([made()]))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    before = sorted(tmp_path.rglob("*"))
    words = shlex.split(command)
    assert main(words) == 1
    printed = capsys.readouterr()
    assert printed.out in ("", "model_store is honoured\n")
    assert printed.err.startswith(WRONG[command])
    assert f"\nUsage: shoal {words[0]}" in printed.err
    assert printed.err.endswith(f"\n'shoal {words[0]} --help' explains it.\n")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "command", ["run echo X=@/dev/zero", "run echo --data /dev/full", "load echo --config /dev/zero"]
)
def test_a_device_without_end_is_no_file(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(request_arguments, "MAX_PIPED_NBYTES", 1)  # 2 GiB takes memory
    write_identity(tmp_path)
    assert main(command.split()) == 1
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.endswith(": File too large")
    assert "cannot read /dev/" in first


@pytest.mark.parametrize("verb", _VERBS)
def test_help_teaches_by_examples(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    try:
        code = main([verb, "--help"])
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    assert (code, printed.err) == (0, "")
    assert printed.out.startswith(f"Usage: shoal {verb}")
    assert f"\n  shoal {verb} " in printed.out or f" shoal {verb} " in printed.out.partition("Examples:")[2]
    assert max(map(len, printed.out.splitlines())) <= 120
