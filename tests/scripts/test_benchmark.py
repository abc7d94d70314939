"""bench: what it reads from wrk and the kernel, its medians, tables and pictures, and its bodies."""

import ast
import json
import os
import select
import struct
import subprocess
import sys
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import load, measure, repository, table, workloads
from bench.__main__ import parse_arguments
from bench.document import Conditions, markdown, put
from bench.errors import BenchmarkError
from bench.peers import Peer, compiled_peer
from bench.picture import svg
from bench.results import Row, Sample
from bench.server import Server, free_ports
from shoal.cli.tune.other_programs import machine_cpu_s
from shoal.model_config import pbtxt

BURN_S = 0.2
ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "bench" / "requirements.txt"
#: What nvidia-pytriton, which is among the requirements, requires and we import.
COME_ALONG = {"grpc", "tritonclient"}

# Burns the processor in itself, in a child that lives, and in a child that it has waited for; then prints how many
# seconds these have used.
TREE = f"""
import os, resource, sys, time
def burn():
    end = time.process_time() + {BURN_S}
    while time.process_time() < end:
        pass
ended = os.fork()
if not ended:
    burn()
    os._exit(0)
os.waitpid(ended, 0)
ready, done = os.pipe()
if not os.fork():
    burn()
    os.write(done, str(time.process_time()).encode())
    sys.stdin.read()
    os._exit(0)
burn()
of_ended = resource.getrusage(resource.RUSAGE_CHILDREN)    # os.times() drops up to 10 ms of each figure
print(float(os.read(ready, 100)) + time.process_time() + of_ended.ru_utime + of_ended.ru_stime, flush=True)
sys.stdin.read()
"""

# Answers with the body that it was sent, the first time only with 503; its child has left the session and is deaf to
# SIGTERM.
ECHO = """
import http.server, os, signal, sys
ready, done = os.pipe()
child = os.fork()
if not child:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(done, b"x")
    while True:
        signal.pause()
os.read(ready, 1)
open("/dev/shm/" + sys.argv[2] + "region", "x").close()
class Echo(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_POST(self):
        Echo.asked += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200 if Echo.asked > 1 else 503)
        self.send_header("Child", str(child))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"""


def peer(name: str, title: str) -> Peer:
    """A peer that is never started."""

    def never(*_: object) -> Server:
        raise AssertionError("pure tests start nothing")

    return Peer(name, title, title, never, workloads.v2_request, workloads.v2_answer, str, f"About {title}.")


def sample(requests_per_s: float, cpu_us: float = 100, errors: int = 0) -> Sample:
    """A round's figures."""
    return Sample(requests_per_s, 1500, 9000, cpu_us, 50 * 1024 * 1024, 1.25, errors, 0.04)


SHOAL, OTHER = peer("shoal", "Shoal"), peer("other", "Other")
JSON_C1 = workloads.WORKLOADS[0]


def rows() -> list[Row]:
    """Two servers, three rounds each."""
    ours = Row(SHOAL, JSON_C1, [sample(3000, 40), sample(1000, 60), sample(2000, 50)])
    return [ours, Row(OTHER, JSON_C1, [sample(800, 100), sample(700, 200), sample(900, 300)])]


@contextmanager
def tree_that_burnt() -> Iterator[tuple[int, float]]:
    """TREE's root, after it has said that it is done, and what it has said."""
    with subprocess.Popen(
        [sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as root:
        assert root.stdout is not None
        yield root.pid, float(root.stdout.readline())


def pss_of(pid: int) -> int:
    """The kernel's own sum for one process."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))


# wrk


def test_the_line_of_load_lua_is_read() -> None:
    output = (
        "Running 4s test @ http://127.0.0.1:8000/v2\n  1 threads and 10 connections\n"
        "figures requests=8000 duration_us=4000000 p50_us=450 p99_us=2100 connect=1 read=2 write=3 status=4 timeout=5\n"
    )
    seen = load.parse(output, cpu_s=0.5)
    assert seen == load.Load(requests=8000, duration_s=4.0, p50_us=450, p99_us=2100, cpu_s=0.5, errors=15)
    assert seen.requests_per_s == 2000


def test_output_without_figures_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="wrk printed no figures: 'unable to connect'"):
        load.parse("unable to connect\n", cpu_s=0.1)


def test_a_load_without_answers_is_refused() -> None:
    line = "figures requests=0 duration_us=4000000 p50_us=0 p99_us=0 connect=7 read=0 write=0 status=0 timeout=0\n"
    with pytest.raises(BenchmarkError, match=r"no request was answered \(7 errors\)"):
        load.parse(line, cpu_s=0.1)


def test_without_wrk_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchmarkError, match="apt install wrk"):
        load.Wrk()


# The kernel's counts


def test_a_command_with_spaces_and_parentheses_does_not_shift_the_fields() -> None:
    line = "42 (a) b (c) S 7 40 41 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 555 0 0\n"
    assert measure.parse_stat(line) == measure.Stat(pid=42, parent=7, session=41, ticks=124, started=555)


def test_a_tree_is_the_root_its_living_and_its_ended_children() -> None:
    machine_before_s = machine_cpu_s()
    with tree_that_burnt() as (root, burnt_s):
        used_s, machine_s = measure.cpu_s(root), machine_cpu_s() - machine_before_s
        memory_of_root = pss_of(root)
        assert len(measure.process_tree(root)) == 2
        assert memory_of_root < measure.pss_bytes(root) < 100 * memory_of_root
    # The kernel counts in steps of 10 ms; with a part missing, or counted twice, it would be BURN_S less or more.
    assert burnt_s >= 3 * BURN_S
    assert used_s == pytest.approx(burnt_s, abs=BURN_S / 2)
    assert machine_s > burnt_s - BURN_S / 2


# A server


def test_a_server_is_asked_until_its_answer_is_right_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    seen: list[bytes] = []
    children: list[int] = []

    def check(headers: Mapping[str, str], body: bytes) -> None:
        seen.append(body)
        children.append(os.pidfd_open(int(headers["child"])))

    prefix = f"test_benchmark_{os.getpid()}_"
    server = Server([sys.executable, "-c", ECHO, str(port), prefix], os.environ, port, tmp_path / "log", prefix)
    server.start()
    try:
        seconds = server.wait_for_answer(workloads.Request("/", {}, b"hello"), check)
    finally:
        server.stop()
    assert seen == [b"hello"]
    assert not list(Path("/dev/shm").glob(f"{prefix}*"))
    assert 0 < seconds < 10
    assert measure.process_tree(server.pid) == []
    assert select.select(children, [], [], 10)[0] == children  # ended, says the kernel
    os.close(children[0])


def test_a_server_that_ends_is_reported_with_its_last_words(tmp_path: Path) -> None:
    server = Server([sys.executable, "-c", "raise SystemExit('no such model')"], os.environ, 1, tmp_path / "log")
    server.start()
    with pytest.raises(BenchmarkError, match="it ended with exit code 1: no such model"):
        server.wait_for_answer(workloads.Request("/", {}, b""), lambda _headers, _body: None)
    server.stop()
    assert measure.process_tree(server.pid) == []


# Bodies and answers


def test_a_binary_request_is_a_json_head_and_the_tensors_bytes() -> None:
    request = workloads.v2_request(workloads.MLP_512, "binary")
    length = int(request.headers["Inference-Header-Content-Length"])
    assert request.path == "/v2/models/mlp/infer"
    assert json.loads(request.body[:length]) == {
        "inputs": [
            {"name": "features", "shape": [1, 512], "datatype": "FP32", "parameters": {"binary_data_size": 2048}}
        ],
        "outputs": [{"name": "scores", "parameters": {"binary_data": True}}],
    }
    assert len(request.body) == length + 2048


def test_an_answer_is_the_same_in_every_encoding() -> None:
    raw = struct.pack("<2f", 0.5, -2)
    head = b'{"outputs":[{"name":"OUTPUT0"}]}'
    right = array("f", [0.5, -2])
    assert workloads.v2_answer({}, b'{"outputs":[{"name":"OUTPUT0","data":[0.5,-2.0]}]}') == right
    assert workloads.v2_answer({"inference-header-content-length": str(len(head))}, head + raw) == right
    assert workloads.plain_answer({"content-type": "application/json"}, b"[0.5, -2]") == right
    assert workloads.plain_answer({"content-type": "application/octet-stream"}, raw) == right


def test_the_image_is_602112_bytes() -> None:
    assert len(workloads.plain_request(workloads.IDENTITY_IMAGE, "binary").body) == 602112


@pytest.mark.parametrize("model", [workloads.IDENTITY_16, workloads.MLP_512], ids=lambda model: model.name)
def test_a_wrong_answer_is_refused(model: workloads.BenchModel) -> None:
    right = workloads.expected(model)
    workloads.verify(model, array("f", right), right)
    wrong = array("f", right)
    wrong[1] += 0.01
    for answer in (wrong, right[:-1], array("f")):
        with pytest.raises(BenchmarkError, match="wrong answer"):
            workloads.verify(model, answer, right)


@pytest.mark.parametrize("backend", ["identity", "onnxruntime", "python"])
def test_the_generated_configuration_is_one(backend: str) -> None:
    config = pbtxt.parse(repository.config_pbtxt(workloads.MLP_512, backend), Path("config.pbtxt"))
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("mlp", backend, 32)
    assert "dynamic_batching" in config


def test_a_repository_can_have_other_models_and_more_instances(tmp_path: Path) -> None:
    others = [replace(workloads.IDENTITY_16, name="other"), workloads.IDENTITY_IMAGE]
    folder = repository.write_for_shoal(tmp_path, workloads.IDENTITY_16, others, num_instances=8)
    assert sorted(each.name for each in folder.iterdir()) == ["identity_16", "identity_image", "other"]
    assert "count: 8" in (folder / "identity_16" / "config.pbtxt").read_text()


# Figures


def test_the_median_is_taken_figure_by_figure_and_errors_add_up() -> None:
    row = Row(SHOAL, JSON_C1, [sample(3000, 40, errors=1), sample(1000, 60), sample(2000, 50, errors=2)])
    assert row.median == sample(2000, 50, errors=3)
    assert row.range == (1000, 3000)


def test_the_summary_divides_ours_by_theirs() -> None:
    assert table.summary(rows()) == (
        "| workload | Shoal, requests/s | × Other | CPU µs/request | × Other |\n"
        "| --- | ---: | ---: | ---: | ---: |\n"
        "| 16 floats, JSON, 1 connection | 2,000 | 2.50 | 50 | 0.25 |\n"
    )


def test_without_shoal_or_without_others_there_is_no_summary() -> None:
    ours, theirs = rows()
    assert table.summary([ours]) == table.summary([theirs]) == table.summary([]) == ""


def test_the_compiled_build_has_a_summary_of_its_own() -> None:
    ours, theirs = rows()
    compiled = replace(ours, peer=compiled_peer(ours.peer, ours.peer.launch))
    assert table.summaries([ours, compiled, theirs]) == (
        f"{table.summary([ours, theirs])}\nThe compiled build:\n\n{table.summary([ours, theirs])}"
    )
    assert table.summaries([ours, theirs]) == table.summary([ours, theirs])
    assert table.summaries([compiled, theirs]) == f"The compiled build:\n\n{table.summary([ours, theirs])}"


def test_the_details_show_every_figure() -> None:
    assert table.details(rows()) == (
        "#### 16 floats, JSON, 1 connection\n\n"
        "| server | requests/s (range) | p50 ms | p99 ms | CPU µs/request | memory MiB | start s | others |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| Shoal | 2,000 (1,000–3,000) | 1.50 | 9.00 | 50 | 50 | 1.25 | 4% |\n"
        "| Other | 800 (700–900) | 1.50 | 9.00 | 200 | 50 | 1.25 | 4% |\n"
    )


def test_a_server_that_could_not_be_measured_says_why_and_has_no_ratio() -> None:
    ours, _ = rows()
    faulty = Row(OTHER, JSON_C1, [], "it ended with exit code 1: libb64 is missing")
    assert table.summary([ours, faulty]).endswith("| 2,000 | – | 50 | – |\n")
    assert table.summary([faulty, ours]).endswith("| 2,000 | – | 50 | – |\n")
    assert "Other could not be measured: it ended with exit code 1: libb64 is missing.\n" in table.details([faulty])


def test_instructions_are_a_column_where_perf_has_counted() -> None:
    ours, theirs = rows()
    ours.samples = [replace(each, instructions={"lane": 3000, "batcher": 1500}) for each in ours.samples]
    text = table.details([ours, theirs])
    assert "| others | 1,000 instructions/request |\n" in text
    assert "| 4% | 4 |\n| Other" in text


def test_failed_requests_are_told() -> None:
    assert "Other: 17 failed requests in 1 rounds.\n" in table.details([Row(OTHER, JSON_C1, [sample(800, errors=17)])])


def test_the_document_names_its_conditions() -> None:
    where = Conditions(4, 3, ["A CPU, 2 cores"], "wrk 4.1.0", [("Other", "other 1.2", "About Other.")])
    text = markdown(rows(), where)
    for part in ("3 rounds of 4 s", "- A CPU, 2 cores\n", "(wrk 4.1.0, one", "- **Other**: other 1.2. About Other.\n"):
        assert part in text
    assert table.summary(rows()) in text
    assert text.endswith(table.details(rows()))


def test_a_chapter_is_written_without_losing_the_other() -> None:
    first = put("", "itself", "## Beside itself\n\nflat\n")
    both = put(first, "others", "## Beside others\n")
    assert both.endswith(
        "\n\n<!-- chapter: others -->\n## Beside others\n\n<!-- chapter: itself -->\n## Beside itself\n\nflat\n"
    )
    assert put(both, "itself", "## Beside itself\n\nsteep") == both.replace("flat", "steep")
    assert put(both, "others", "## Beside others") == both


def test_bars_are_as_long_as_their_share_of_the_best() -> None:
    picture = ET.fromstring(svg(rows()))
    bars = [float(bar.attrib["width"]) for bar in picture.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars == [500, 200]
    assert "2,000/s" in "".join(picture.itertext())


# The command line


def test_quick_is_a_choice_that_can_be_refined() -> None:
    quick = parse_arguments(["--quick"])
    assert [each.name for each in quick.workloads] == ["json-c10", "mlp-c64", "image-c8"]
    assert ([each.name for each in quick.peers], quick.rounds, quick.seconds) == (["shoal", "triton", "mosec"], 1, 1)
    assert [each.name for each in parse_arguments(["--quick", "--workload", "json-*"]).workloads] == [
        "json-c1",
        "json-c10",
        "json-close-c10",
    ]


def test_flat_takes_all_comparisons_or_the_named_ones() -> None:
    assert parse_arguments([]).flat is None
    every = [each.name for each in parse_arguments(["--flat"]).comparisons]
    assert "models" in every
    some = parse_arguments(["--flat", "half-*", "idle", "--quick"])
    assert [each.name for each in some.comparisons] == ["idle", "half-heads", "half-bodies", "half-images"]
    assert (some.rounds, some.seconds) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--workload", "jsno"], "no workload is called 'jsno'; there are json-c1, json-c10, "),
        (["--rounds", "0"], "--seconds and --rounds are at least 1"),
        (["--peer", "bentoml"], "invalid choice: 'bentoml'"),
        (["--flat", "modles"], "no comparison is called 'modles'; there are idle, models, "),
        (["--flat", "--peer", "shoal"], "--flat has comparisons of its own"),
    ],
)
def test_what_is_not_there_is_refused(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert sentence in capsys.readouterr().err


def test_what_is_imported_is_in_the_environment_of_the_peers() -> None:
    """There Shoal is not installed, nor what it needs."""
    program = "import sys, bench.__main__; print(*[each for each in sys.modules if each[:8] == 'scripts.'])"
    modules = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    imported = set[str]()
    for module in modules:
        file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        for node in ast.walk(ast.parse(file.read_text() if file.exists() else "")):
            found = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            found += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in found}
    required = {line.partition(">")[0].partition("=")[0] for line in REQUIREMENTS.read_text().splitlines()}
    assert imported - set(sys.stdlib_module_names) - {"scripts"} <= required | COME_ALONG
