"""scripts/smoke.py BUILD: whether the Shoal of the running interpreter is this build ("compiled" or "pure Python"),
serves a sample model and answers once."""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

MODELS = Path(__file__).resolve().parents[1] / "model_repository"
DEADLINE_S = 60.0
FLAGS = ("--model-control-mode=explicit", "--load-model=add_sub", "--allow-grpc=false", "--allow-metrics=false")
REQUEST = {
    "inputs": [
        {"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]},
        {"name": "INPUT1", "datatype": "FP32", "shape": [4], "data": [1, 1, 1, 1]},
    ]
}


def ask(port: int, server: "subprocess.Popen[bytes]") -> list[float]:
    """The first output of the sample model, once the server listens. Exits if the server ends or never listens."""
    url = f"http://127.0.0.1:{port}/v2/models/add_sub/infer"
    request = urllib.request.Request(url, json.dumps(REQUEST).encode())
    deadline_s = time.monotonic() + DEADLINE_S
    while server.poll() is None and time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
                sums: list[float] = json.load(response)["outputs"][0]["data"]
                return sums
        except urllib.error.URLError:
            time.sleep(0.05)
    raise SystemExit(f"no answer: the server's exit code is {server.poll()}")


def main() -> None:
    """Exits with a sentence if this Shoal is another build or does not answer."""
    expected = sys.argv[1]
    shoal = Path(sys.executable).with_name("shoal")
    build = subprocess.run([f"{shoal}", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if not build.endswith(f", {expected})"):
        raise SystemExit(f"{build} is not the build that was made: {expected}")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    command = [f"{shoal}", "serve", f"--model-repository={MODELS}", f"--http-port={port}", *FLAGS]
    # In a folder of its own: in the checkout, its pure modules would be found first.
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(command, cwd=folder) as server:
        try:
            sums = ask(port, server)
        finally:
            server.terminate()
    if sums != [2.0, 3.0, 4.0, 5.0]:
        raise SystemExit(f"{build} answered {sums}")
    print(f"{build}: answered")


if __name__ == "__main__":
    main()
