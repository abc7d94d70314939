"""bench/isolation: times from when a request was due, bars, tables, and what a client sends."""

import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

from bench.__main__ import parse_arguments
from bench.errors import BenchmarkError
from bench.isolation import chapter, models
from bench.isolation.crowd import Crowd, Guests
from bench.isolation.figures import (
    FAILED,
    OK,
    RATIO,
    REFUSED,
    TAKEOVER,
    Bar,
    Measure,
    PacedRequest,
    Row,
    Situation,
    compared,
    longest_silence_s,
    p99_ms,
    table,
    verdict,
)
from bench.isolation.probe import EVENT_AT, HttpProbe, infer, paced
from bench.isolation.site import Checkout, established
from bench.isolation.situations import SITUATIONS
from bench.isolation.windows import closed_windows
from shoal.model_config import pbtxt
from tests.listening import listening

#: Generous: what takes longer hangs.
DEADLINE_S = 60.0
#: Every third answer is a refusal, so that of a crowd of three a client has come again after one by then.
MANY = 12
PLAIN = Situation("slow", "a slow model", "p99", lambda _: Measure(2, 4), {})


class Clock:
    """Time goes by while somebody sleeps, or is answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr("time.monotonic", lambda: self.now_s)
        monkeypatch.setattr("time.sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Script:
    """A server that takes so long for each request, in their order, and then none at all."""

    def __init__(self, clock: Clock, *times_s: float) -> None:
        self._clock = clock
        self._times_s = list(times_s)

    def ask(self, timeout_s: float) -> int:
        time_s = self._times_s.pop(0) if self._times_s else 0.0
        self._clock.sleep(min(time_s, timeout_s))
        return OK if time_s <= timeout_s else FAILED

    def close(self) -> None:
        raise AssertionError


def test_what_waits_for_an_earlier_answer_counts_from_when_it_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = paced(Script(Clock(monkeypatch), 0.001, 0.025), 0.05, 0.01)
    assert [round(each.time_s, 3) for each in answers] == [0.001, 0.025, 0.015, 0.005, 0.0]


def test_a_server_that_stands_still_is_not_waited_for_by_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    answers = paced(Script(clock, *[1000.0] * 50), 0.5, 0.01, patience_s=2.0)
    assert clock.now_s == pytest.approx(102.5)
    assert {each.status for each in answers} == {FAILED}
    assert len(answers) == 50


def test_an_event_happens_once_after_a_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[float] = []
    clock = Clock(monkeypatch)
    answers = paced(Script(clock), 1.0, 0.01, event=lambda: events.append(clock.now_s))
    assert len(events) == 1
    assert sum(each.end_s <= events[0] for each in answers) == EVENT_AT


def test_the_longest_silence_is_between_right_answers_alone() -> None:
    answers = [
        PacedRequest(0, end_s, status) for end_s, status in ((1, OK), (2, OK), (3, REFUSED), (4, FAILED), (5.5, OK))
    ]
    assert longest_silence_s(answers, since_s=1.5) == 3.5
    assert longest_silence_s(answers, since_s=5) == 0.5
    assert longest_silence_s(answers[:4], since_s=1.5) == 2  # no right answer any more
    assert longest_silence_s([], since_s=1) == 0


def test_figures_are_cut_at_what_a_client_waits_for() -> None:
    quiet = [PacedRequest(0, 0.002, OK)] * 100
    hung = [*quiet[:90], *[PacedRequest(0, 7, FAILED)] * 8, *[PacedRequest(0, 0.1, REFUSED)] * 2]
    assert compared(quiet, quiet, 2.0).loaded == pytest.approx(2)
    found = compared(quiet, hung, 2.0, "noted")
    assert (found.loaded, found.is_cut, found.num_refused, found.num_failed, found.note) == (2000, True, 2, 8, "noted")


@pytest.mark.parametrize(
    ("bar", "measure", "is_met"),
    [
        (RATIO, Measure(2, 6), True),
        (RATIO, Measure(2, 6.1), False),
        (RATIO, Measure(2, 2, num_refused=1), False),
        (RATIO, Measure(2, 2, num_failed=1), False),
        (RATIO, Measure(2000, 2000, is_cut=True), False),
        (TAKEOVER, Measure(2, 100), True),
        (TAKEOVER, Measure(90, 101), False),
        (Bar(0.5, is_least=True), Measure(50, 25), True),
        (Bar(0.5, is_least=True), Measure(50, 24), False),
    ],
)
def test_a_bar_is_met_or_not_and_never_with_lost_requests(bar: Bar, measure: Measure, is_met: bool) -> None:
    assert bar.is_met(measure) is is_met
    assert verdict(Row(replace(PLAIN, bar=bar), "abc", [measure])) == ("yes" if is_met else "**no**")


def test_rounds_have_medians_and_what_was_lost_is_added_up() -> None:
    measures = [Measure(2, 4, 1, 0, "a"), Measure(3, 2000, 2, 1, "b", is_cut=True), Measure(4, 6, note="a")]
    assert Row(PLAIN, "abc", measures).median == Measure(3, 6, 3, 1, "a; b", is_cut=False)


def test_the_table_has_a_line_per_checkout_and_says_what_could_not_be_measured() -> None:
    rows = [
        Row(PLAIN, "abc", [Measure(2, 2000, 3, 12, "much waited", is_cut=True)]),
        Row(PLAIN, "def", [Measure(2.04, 4.5)]),
        Row(PLAIN, "ghi", [], "it does not listen"),
    ]
    assert table(rows) == (
        "| beside | checkout | figure | quiet | loaded | × | refused | failed | bar | met |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| a slow model | abc | p99, ms | 2 | > 2,000 | 1000.0 | 3 | 12 | ≤ 3 × | **no** |\n"
        "| a slow model | def | p99, ms | 2.04 | 4.5 | 2.2 | 0 | 0 | ≤ 3 × | yes |\n"
        "| a slow model | ghi | p99, ms | – | – | – | – | – | ≤ 3 × | not measured |\n"
        "\n"
        "- slow, abc: much waited.\n"
        "- slow, ghi: not measured: it does not listen.\n"
    )


def test_the_table_takes_its_place_in_the_document_and_nothing_else() -> None:
    document = f"before\n{chapter.BEGIN}old\n{chapter.END}after\n"
    assert chapter.put(document, "new") == f"before\n{chapter.BEGIN}\nnew\n\n{chapter.END}after\n"
    assert chapter.put(chapter.put(document, "new"), "new") == chapter.put(document, "new")
    with pytest.raises(BenchmarkError, match="no place"):
        chapter.put("before\n", "new")
    chapter.put(Path("docs/performance.md").read_text(), "new")


def test_connections_are_found_by_port_and_state() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    rows = [
        "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0\n",
        "   1: 0100007F:1F40 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20 4\n",
        "   2: 0100007F:C001 0100007F:1F40 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 20 4\n",
    ]
    assert established(head + "".join(rows), 8000) == {"socket:[12]": 0xC001}


def test_every_model_of_a_situation_can_be_read(tmp_path: Path) -> None:
    assert len({each.name for each in SITUATIONS}) == len(SITUATIONS)
    for situation in SITUATIONS:
        folder = models.write(tmp_path / situation.name, situation.models)
        for name, start in situation.models.items():
            file = folder / name / "config.pbtxt"
            assert pbtxt.parse(file.read_text(), file)["backend"] in start
            assert (folder / name / "1" / "model.py").exists() == ("python" in start)
            if "python" in start:
                compile((folder / name / "1" / "model.py").read_text(), name, "exec")


def test_a_client_without_windows_is_understood_by_another_implementation() -> None:
    spec = closed_windows(1, "sized", [3.0], count=2)
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    events = server.receive_data(spec.opening.encode("latin-1"))
    paths = [dict(each.headers)[b":path"] for each in events if isinstance(each, RequestReceived)]
    assert paths == [b"/inference.GRPCInferenceService/ModelInfer"] * 2
    assert [each.stream_id for each in events if isinstance(each, StreamEnded)] == [1, 3]
    assert all(each.data.startswith(b"\0\0\0\0") for each in events if isinstance(each, DataReceived))
    assert server.local_flow_control_window(1) == 0
    (asked, *_) = server.receive_data(spec.later[0].encode("latin-1"))
    assert isinstance(asked, RequestReceived)
    assert asked.stream_id == 5


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with what it was sent, every third time with 503."""

    protocol_version = "HTTP/1.1"
    num_answered = 0
    has_answered_many = threading.Event()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Echo.num_answered += 1
        if Echo.num_answered >= MANY:
            Echo.has_answered_many.set()
        self.send_response(503 if Echo.num_answered % 3 == 0 else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True  # its crowd has been left

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    Echo.num_answered = 0
    Echo.has_answered_many.clear()
    with listening(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)) as server:
        yield server.server_port


def test_a_probe_tells_answers_refusals_and_failures(port: int) -> None:
    probe = HttpProbe(port, infer("m", [1.0, 2.0]), num_connections=2)
    assert [probe.ask(DEADLINE_S) for _ in range(6)] == [OK, OK, REFUSED] * 2
    assert len(probe.ports) == 2
    probe.close()
    assert not probe.ports
    assert probe.ask(DEADLINE_S) == OK
    probe.close()
    assert HttpProbe(port, b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n").ask(0.01) == FAILED


def test_a_crowd_asks_until_it_is_left_and_says_what_it_was_answered(port: int) -> None:
    request = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\nab"
    with Crowd(Guests(port, [request], count=3)) as crowd:
        assert Echo.has_answered_many.wait(DEADLINE_S)
    assert set(crowd.said) == {"answered", "refused"}
    assert crowd.words == f"{crowd.said['answered']} answered, {crowd.said['refused']} refused"


def test_a_crowd_that_cannot_connect_has_lost_its_connections() -> None:
    with Crowd(Guests(1, ["x"], count=2)) as crowd:
        pass
    assert crowd.said["lost"] >= 2


@pytest.mark.parametrize("words", [["--flat"], ["--grpc"], ["--quick"], ["--peer", "shoal"]])
def test_isolation_goes_with_nothing_of_the_others(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--isolation", *words])
    assert "situations of its own" in capsys.readouterr().err


def test_arguments_choose_situations_and_rounds(tmp_path: Path) -> None:
    options = parse_arguments(["--isolation", "takeover*", "--beside", str(tmp_path)])
    assert [each.name for each in options.situations] == ["takeover", "takeover-gil", "takeover-stopped"]
    assert options.rounds == 1
    assert parse_arguments([]).rounds == 3
    with pytest.raises(SystemExit):
        parse_arguments(["--beside", str(tmp_path)])
    with pytest.raises(BenchmarkError, match=r"no \.venv"):
        Checkout.at(options.beside)


@pytest.mark.parametrize(("times_s", "expected_ms"), [((), 0), ((0.002,), 2), ((0.001, 0.003), pytest.approx(2.98))])
def test_the_p99_is_interpolated_between_the_times_of_answers(times_s: tuple[float, ...], expected_ms: float) -> None:
    assert p99_ms([PacedRequest(0, each, OK) for each in times_s]) == expected_ms
