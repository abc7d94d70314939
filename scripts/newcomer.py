"""A newcomer's five minutes, timed: a wheel in a fresh environment, a model file served, the page, bench and tune.

    .venv/bin/python scripts/newcomer.py

Each step is a command that the documentation shows, typed in an empty folder. The page is opened in Chromium where
Playwright and a browser are installed (docs/page.md); else its form's request is sent without a browser, and a line
says so. Exits with a sentence if a step fails, or if all of them together take more than LIMIT_S of the machine's time.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, f"{ROOT}")

from tests.end_to_end.browser import Tab, browser, missing  # noqa: E402 - a script, like any newcomer, starts anywhere

#: Seconds of all processors for all steps, and seconds for one step on a busy machine (ours).
LIMIT_S, DEADLINE_S = 60.0, 300.0


def cpu_s() -> float:
    """The processors' time of the steps that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print the time that a step took."""
    start_s, start_cpu_s = time.monotonic(), cpu_s()
    yield
    print(f"{title:46}{time.monotonic() - start_s:6.1f} s{cpu_s() - start_cpu_s:8.1f} s of a processor", flush=True)


def run(*command: object, folder: Path) -> str:
    """The standard output of a command. Exits with its error if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def served(shoal: Path, folder: Path) -> Iterator[str]:
    """`shoal serve doubler.onnx`; yields the server's host and port once it says that it listens."""
    command = [f"{shoal}", "serve", "doubler.onnx", "--http-port=0", "--grpc-port=0", "--metrics-port=0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None, "it is a pipe"
        try:
            log = ""
            for line in server.stdout:
                log += line
                if found := re.search(r"Started HTTPService at (\S+:\d+)", line):
                    yield found[1].strip('"')
                    break
            else:
                raise SystemExit(f"{' '.join(command)} ended:\n{log}")
        finally:
            server.terminate()


def ask(address: str) -> None:
    """The request of the page's form."""
    request = {"inputs": [{"name": "INPUT", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
    with urllib.request.urlopen(f"http://{address}/ui", timeout=DEADLINE_S) as page:
        assert b"<html" in page.read()
    asked = urllib.request.Request(f"http://{address}/v2/models/doubler/infer", json.dumps(request).encode())
    with urllib.request.urlopen(asked, timeout=DEADLINE_S) as response:
        check(json.dumps(json.load(response)["outputs"][0]["data"]))


def ask_by_page(address: str) -> None:
    """The page in a browser, its form filled with zeros and sent."""
    with browser() as started:
        tab = Tab(started, address).open_model("doubler")
        text = tab.ask()
        if "OUTPUT" not in text or tab.said:
            raise SystemExit(f"the page answered {text} and its console {tab.said}")


def check(answer: str) -> None:
    """Exit unless this is twice the request."""
    if json.loads(answer) != [2, 4, 6, 8]:
        raise SystemExit(f"the model answered {answer}, not twice 1, 2, 3, 4")


def write_model(path: Path) -> None:
    """A model file as an exporter leaves it: OUTPUT = 2 × INPUT, FP32, rows of 4."""
    from numpy import array
    from onnx import TensorProto, helper, numpy_helper, save

    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("INPUT", "OUTPUT")]
    node = helper.make_node("Mul", ["INPUT", "two"], ["OUTPUT"])
    two = numpy_helper.from_array(array(2, "float32"), "two")
    graph = helper.make_graph([node], "doubler", tensors[:1], tensors[1:], [two])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def main() -> None:
    """Take all steps."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder / "wheels", ROOT, folder=folder)
        write_model(folder / "doubler.onnx")
        (wheel,) = (folder / "wheels").iterdir()
        start_cpu_s = cpu_s()
        with step("python -m venv, pip install"):
            run(sys.executable, "-m", "venv", "shoal", folder=folder)
            pip = folder / "shoal" / "bin" / "pip"
            run(pip, "install", "-q", "--disable-pip-version-check", f"{wheel}[onnx]", folder=folder)
        shoal = folder / "shoal" / "bin" / "shoal"
        with step("shoal serve doubler.onnx, and all below"), served(shoal, folder) as address:
            with step("  the page, its form answered" + (f" (without {missing()})" if missing() else "")):
                (ask if missing() else ask_by_page)(address)
            with step("  shoal bench doubler --concurrency 1:4"):
                run(shoal, "bench", "doubler", "--url", f"http://{address}", "--concurrency", "1:4", folder=folder)
        with step("shoal init, shoal tune doubler --budget 10"):
            run(shoal, "init", "models/doubler", "--from", "doubler.onnx", folder=folder)
            goal = ["--model-repository", "models", "--goal", "p99=50ms", "--budget", "10"]
            print("    " + run(shoal, "tune", "doubler", *goal, folder=folder).strip().splitlines()[-1])
        taken_s = cpu_s() - start_cpu_s
    print(f"{taken_s:.1f} s of a processor in all, of {LIMIT_S:g}; {os.cpu_count()} processors")
    if taken_s > LIMIT_S:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
