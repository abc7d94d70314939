"""The page in a real browser: every view loads, the form asks every sample model, nothing of a model's is taken for
HTML, and those who use a keyboard, a telephone or a screen reader can use it, too."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.end_to_end.asking import fetch
from tests.end_to_end.browser import Tab, browser, missing
from tests.end_to_end.page_pictures import PICTURES, take
from tests.end_to_end.repositories import add_model, python_model
from tests.end_to_end.server import SAMPLES, Server, launch, only, wait_until, worker_of

pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"NOT CHECKED: the page in a browser, since there is no {missing()} (docs/page.md)"
)
VIEWS = [
    "", "ui", "#/models/digits", "#/models/repeat/1", "#/models/nobody", "#/requests", "#/logs", "#/metrics", "#/api",
    "#/api/digits",
]  # fmt: skip
MODELS = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())
Open = Callable[..., Tab]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def tab(chromium: Any) -> Iterator[Open]:
    """Opens tabs, of which none may have said anything in its console at the end."""
    opened: list[Tab] = []

    def new(server: Server, **context: Any) -> Tab:
        opened.append(Tab(chromium, server.url, **context))
        return opened[-1]

    yield new
    for each in opened:
        each.close()
    assert [line for each in opened for line in each.said] == []


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_loads_from_its_server_alone(samples: Server, tab: Open, view: str) -> None:
    page = tab(samples).open(view)
    page.page.wait_for_load_state("networkidle" if view in ("#/metrics", "#/api", "#/requests") else "load")
    assert page.asked
    assert all(url.startswith((f"http://{samples.url}/", "blob:")) for url in page.asked)


@pytest.mark.parametrize("model", MODELS)
def test_the_form_answers_for_each_sample(samples: Server, tab: Open, model: str) -> None:
    shown = tab(samples).open_model(model)
    text = shown.ask()
    assert shown.page.locator("#answer .error").count() == 0, text
    if model.startswith("repeat"):
        assert json.loads(shown.page.locator("#answer li code").first.inner_text()) == {"IDX": 0, "OUT": 0}
    else:
        for output in fetch(samples.http_port, f"/v2/models/{model}").json["outputs"]:
            assert output["name"] in text


def test_classes_are_named_and_a_picture_is_drawn_into_the_tensor(samples: Server, tab: Open, tmp_path: Path) -> None:
    """The two of the README, as a file of an image: 8 by 8 grey pixels."""
    from PIL import Image

    pixels = json.loads((SAMPLES / "digits" / "request.json").read_text())["inputs"][0]["data"]
    image = Image.new("L", (8, 8))
    image.putdata([round(255 * value / 16) for value in pixels])
    image.save(tmp_path / "two.png")
    shown = tab(samples).open_model("digits")
    shown.page.get_by_label("From").select_option("image")
    shown.page.get_by_label("Pixels").select_option("0 to 16")
    shown.page.get_by_label("File").set_input_files(tmp_path / "two.png")
    shown.page.locator(".preview").wait_for()
    shown.ask()
    assert shown.page.locator("#answer .classes .name").first.inner_text() == "two"


def test_what_shows_through_a_picture_is_white(samples: Server, tab: Open) -> None:
    """As `shoal infer` takes it; an input of four channels gets what is there."""
    read = """async (dims) => {
        const { imageElements } = await import("/ui/media.js");
        const transparent = new OffscreenCanvas(1, 1);
        transparent.getContext("2d");
        const file = await transparent.convertToBlob();
        return (await imageElements(file, dims, "UINT8", "0 to 255")).elements;
    }"""
    page = tab(samples).open().page
    shown = {channels: page.evaluate(read, [2, 2, channels]) for channels in (1, 3, 4)}
    assert shown == {1: [255] * 4, 3: [255] * 12, 4: [0] * 16}


def test_wrong_input_is_explained_beside_its_field_and_not_sent(samples: Server, tab: Open) -> None:
    shown = tab(samples).open_model("digits")
    shown.page.locator("#try textarea").fill("1 2 three")
    shown.asked.clear()
    shown.page.locator("#try button[type=submit]").click()
    shown.page.locator("#try [role=alert]:visible").wait_for()
    assert shown.page.locator("#try [role=alert]").inner_text() == "image: expected a number, got 'three'"
    assert not [url for url in shown.asked if url.endswith("/infer")]


@pytest.mark.parametrize("model", ["digits", "simple_string", "simple_sequence", "repeat"])
def test_the_same_request_runs_in_every_client(samples: Server, tab: Open, model: str, tmp_path: Path) -> None:
    shown = tab(samples).open_model(model)
    if model == "repeat":
        shown.page.locator("#try textarea").first.fill("7 8 9")
        shown.page.locator("#try textarea").nth(1).fill("0 0 0")
        shown.page.locator("#try input.mono").nth(1).fill("3")
    shown.ask()
    printed = {}
    for client in ["curl", "Python, HTTP", "Python, gRPC", "shoal.Client"]:
        shown.page.get_by_role("tab", name=client, exact=True).click()
        text = shown.page.locator("#request-panel pre").inner_text()
        command = ["bash", "-ec", text] if client == "curl" else [sys.executable, "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), (client, text)
        printed[client] = done.stdout
    if model == "repeat":
        for client, text in printed.items():
            numbers = re.findall(r'OUT"?\'?:? ?\[?([789])', text)
            assert numbers == ["7", "8", "9"], (client, text)
        assert shown.page.locator("#answer li").count() == 3
    else:
        assert printed["Python, HTTP"] == printed["Python, gRPC"]
        for name in json.loads(printed["curl"])["outputs"]:
            assert name["name"] in printed["shoal.Client"]


def test_the_figures_are_the_statistics(samples: Server, tab: Open) -> None:
    shown = tab(samples).open_model("add_sub")
    for _ in range(3):
        shown.ask()
    stats = fetch(samples.http_port, "/v2/models/add_sub/stats").json["model_stats"][0]
    answered = stats["inference_stats"]["success"]["count"]
    shown.page.get_by_text(f"{answered} requests answered").wait_for()


def ask_digits(server: Server, request_id: str = "") -> None:
    asked = json.loads((SAMPLES / "digits" / "request.json").read_text())
    assert fetch(server.http_port, "/v2/models/digits/infer", {**asked, "id": request_id}).status == 200


def test_the_slowest_requests_are_drawn_with_where_their_time_went(samples: Server, tab: Open) -> None:
    ask_digits(samples, "a7")
    shown = tab(samples).open_model("digits")
    shown.page.get_by_role("link", name="Its slowest requests").click()
    shown.page.get_by_role("heading", name="Requests to digits").wait_for()
    row = shown.page.locator("tbody tr").first
    row.wait_for()
    label = row.locator("svg.times").get_attribute("aria-label") or ""
    told = fetch(samples.http_port, "/v2/debug/requests?model=digits&limit=1").json["slowest"][0]
    assert re.findall(r"[a-z]+(?= [0-9])", label) == [name for name, ns in told["phases"].items() if ns]
    assert row.locator("svg.times rect").count() == len(re.findall(r"[a-z]+(?= [0-9])", label))
    assert "digits_0_0" in row.inner_text()
    assert shown.page.locator(".legend li").count() > 1
    ids = shown.page.locator("tbody code").all_inner_texts()
    assert "a7" in ids
    shown.page.get_by_role("button", name="Read again").focus()
    shown.page.keyboard.press("Enter")
    shown.page.get_by_role("status").get_by_text("slow").wait_for()
    shown.page.get_by_role("link", name="of all models").click()
    shown.page.get_by_role("heading", name="Requests", exact=True).wait_for()


@pytest.fixture(scope="module")
def logging_to_a_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of one model, whose output is its log file."""
    path = tmp_path_factory.mktemp("log") / "shoal.log"
    server = launch(SAMPLES, *only("add_sub"), f"--log-file={path}")
    started = re.compile(r"Started HTTPService at [^ ]*:([0-9]+)")
    try:
        wait_until(lambda: path.exists() and started.search(path.read_text()) is not None, server.log.decode)
        found = started.search(path.read_text())
        assert found is not None
        server.http_port = int(found[1])
        yield server
    finally:
        server.process.terminate()
        server.wait()


def test_the_log_is_shown_as_it_is_written(logging_to_a_file: Server, tab: Open) -> None:
    server = logging_to_a_file
    shown = tab(server).open("#/logs")
    lines = shown.page.locator(".log li")
    lines.filter(has_text="Started HTTPService at").wait_for()
    shown.page.get_by_label("Level").select_option("errors")
    assert lines.count() == 0
    assert fetch(server.http_port, "/v2/repository/models/<b>no/load", b"").status >= 400
    os.kill(worker_of(server, "add_sub_0_0"), signal.SIGKILL)
    lines.filter(has_text="add_sub_0_0").first.wait_for()
    assert shown.page.locator("main b").count() == 0
    shown.page.get_by_label("With").fill("no such text in it")
    assert lines.count() == 0


def test_a_server_without_a_log_file_says_what_to_do(samples: Server, tab: Open) -> None:
    shown = tab(samples).open("#/logs")
    shown.page.get_by_role("status").get_by_text("--log-file=<path>").wait_for()


def test_nothing_is_asked_while_no_view_draws_figures(samples: Server, tab: Open) -> None:
    shown = tab(samples).open("#/api")
    shown.page.locator("details").first.wait_for()
    assert not [url for url in shown.asked if url.endswith("/ui/figures")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["", "#/models/digits", "#/requests", "#/logs", "#/metrics", "#/api/digits"])
def test_axe_finds_no_serious_fault(samples: Server, tab: Open, view: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    shown = tab(samples, color_scheme=scheme, bypass_csp=True)
    ask_digits(samples)
    if "models" in view:
        shown.open_model("digits").ask()
    else:
        shown.open(view)
        shown.page.locator("tbody tr, details, .log").first.wait_for()
    found = Axe().run(shown.page).response["violations"]
    serious = [
        (each["id"], each["help"], [node["html"] for node in each["nodes"]][:3])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


@pytest.mark.parametrize(
    "view", ["", "#/models/text_classification", "#/requests", "#/logs", "#/metrics", "#/api/digits"]
)
def test_a_telephone_scrolls_in_one_direction(samples: Server, tab: Open, view: str) -> None:
    ask_digits(samples, "an-id-that-is-long-" * 6)
    shown = tab(samples, viewport={"width": 360, "height": 740}).open(view)
    shown.page.locator("tbody tr, details, .log").first.wait_for()
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_keyboard_is_enough(samples: Server, tab: Open) -> None:
    shown = tab(samples).open_model("digits")
    keyboard, focused = shown.page.keyboard, "document.activeElement.textContent"
    keyboard.press("Tab")
    assert shown.page.evaluate(focused) == "Skip to the content"
    keyboard.press("Enter")
    assert shown.page.evaluate("document.activeElement.id") == "main"
    shown.page.locator("#try textarea").focus()
    for _ in range(10):
        keyboard.press("Tab")
        if shown.page.evaluate(focused) == "Ask":
            break
    keyboard.press("Enter")
    shown.page.locator("#answer .classes").first.wait_for()
    shown.page.get_by_role("tab", name="curl").focus()
    keyboard.press("ArrowRight")
    assert shown.page.evaluate(focused) == "Python, HTTP"
    assert "tritonclient.http" in shown.page.locator("#request-panel pre").inner_text()


def test_the_pictures_of_the_documentation_can_be_taken(samples: Server, chromium: Any, tmp_path: Path) -> None:
    taken = take(chromium, samples, tmp_path)
    assert [path.name for path in taken] == sorted((path.name for path in PICTURES.glob("*.png")), reverse=True)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in taken)


FAILING = python_model("""
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("<b>no</b> pixels")) for _ in requests]
""")


def test_a_failed_request_is_listed_with_its_error(explicit: Server, shared: Path, tab: Open) -> None:
    tensors = [f'{kind} {{ name: "X" data_type: TYPE_INT32 dims: [ 1 ] }}' for kind in ("input", "output")]
    add_model(shared, "failing", f'backend: "python" {" ".join(tensors)}', FAILING)
    assert fetch(explicit.http_port, "/v2/repository/models/failing/load", b"").status == 200
    asked = {"id": "<i>7", "inputs": [{"name": "X", "datatype": "INT32", "shape": [1], "data": [1]}]}
    assert fetch(explicit.http_port, "/v2/models/failing/infer", asked).status == 500
    shown = tab(explicit).open("#/requests/failing")
    shown.page.get_by_role("heading", name="The failed").wait_for()
    row = shown.page.locator("tbody tr").first
    assert (row.locator("code").inner_text(), row.locator(".reason").inner_text()) == ("<i>7", "<b>no</b> pixels")
    assert shown.page.locator("main b, main i").count() == 0
    assert fetch(explicit.http_port, "/v2/repository/models/failing/unload", b"").status == 200


MARKUP = "<img src=x onerror=document.title='taken'>"


def test_names_and_errors_with_markup_are_text_and_those_who_may_load_and_scale(
    explicit: Server, shared: Path, tab: Open
) -> None:
    tensors = [f'{kind} {{ name: "<b>{kind}" data_type: TYPE_STRING dims: [ 1 ] }}' for kind in ("input", "output")]
    add_model(shared, MARKUP, f'backend: "identity" {" ".join(tensors)}')
    add_model(shared, "<i>broken", 'backend: "<script>document.title=1</script>"')
    for name, status in ((MARKUP, 200), ("<i>broken", 500)):
        assert fetch(explicit.http_port, f"/v2/repository/models/{quote(name, safe='')}/load", b"").status == status
    shown = tab(explicit).open()
    shown.page.get_by_role("link", name=MARKUP).wait_for()
    shown.page.get_by_text("<script>document.title=1</script>").wait_for()
    assert shown.page.locator("main img, main b, main i, main script").count() == 0

    row = shown.page.locator("tr", has=shown.page.get_by_role("link", name=MARKUP))
    row.get_by_role("button", name="One instance").last.click()
    row.get_by_text("2/2").wait_for()
    row.get_by_role("button", name="Unload").click()
    row.get_by_text("unloaded").wait_for()
    row.get_by_role("button", name="Load", exact=False).first.click()
    row.get_by_text("ready").wait_for()

    shown.page.get_by_role("link", name=MARKUP).click()
    shown.page.locator("#try textarea").fill("<i onclick=1>answered")
    assert "<i onclick=1>answered" in shown.ask()
    assert shown.page.locator("main img, main i, main script").count() == 0
    assert shown.page.title() == f"{MARKUP} – Shoal"
    assert fetch(explicit.http_port, f"/v2/repository/models/{quote(MARKUP, safe='')}/unload", b"").status == 200
