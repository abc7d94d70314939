"""The pictures of docs/page.md: views of a server of the samples under load. `python -m tests.end_to_end.page_pictures`
takes them anew."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.end_to_end.asking import fetch
from tests.end_to_end.browser import Tab, browser
from tests.end_to_end.server import SAMPLES, Server, serving

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
_CLIENTS = 6


@contextmanager
def load(server: Server, model: str) -> Iterator[None]:
    """Requests to a model by several clients at once, while the block runs."""
    body = (SAMPLES / model / "request.json").read_bytes()
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            fetch(server.http_port, f"/v2/models/{model}/infer", body)

    with ThreadPoolExecutor(_CLIENTS) as pool:
        clients = [pool.submit(ask) for _ in range(_CLIENTS)]
        try:
            yield
        finally:
            is_over.set()
    for each in clients:
        each.result()


def take(chromium: Any, server: Server, folder: Path) -> list[Path]:
    """Take all pictures; their files."""
    folder.mkdir(exist_ok=True)
    taken: list[Path] = []

    def picture(tab: Tab, name: str, height: int) -> None:
        taken.append(folder / f"{name}.png")
        width = tab.page.viewport_size["width"]
        tab.page.screenshot(path=taken[-1], clip={"x": 0, "y": 0, "width": width, "height": height}, full_page=True)

    with load(server, "digits"):
        models = Tab(chromium, server.url, viewport={"width": 1120, "height": 800}).open()
        for drawn in (".bars rect", ".spark polyline[points*=' ']"):
            models.page.locator(drawn).first.wait_for(state="attached")
        picture(models, "models", 520)
        models.close()
        model = Tab(chromium, server.url, viewport={"width": 1120, "height": 800}, color_scheme="dark").open_model(
            "digits"
        )
        pixels = json.loads((SAMPLES / "digits" / "request.json").read_text())["inputs"][0]["data"]
        model.page.locator("#try textarea").fill(" ".join(map(str, pixels)))
        model.page.locator(".charts .line1").nth(1).wait_for(state="attached")
        model.ask()
        picture(model, "model", 900)
        model.close()
    return taken


if __name__ == "__main__":
    with serving(SAMPLES, "--grpc-port=0") as started, browser() as chromium:
        take(chromium, started, PICTURES)
