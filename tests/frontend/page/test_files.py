"""frontend/page/files.py: what the page is made of, what its headers let it do, and that it is not there where it is
not wanted."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from shoal.frontend.page.files import files
from shoal.frontend.response import Response
from shoal.frontend.state import ServerState
from tests.frontend.conftest import dispatch

PATHS = ["/", "/ui", "/ui/figures", "/ui/metrics", "/ui/app.js", "/openapi.json"]
Get = Callable[..., Response]


@pytest.fixture
def get(state: ServerState, transport: Any) -> Get:
    state.has_page = True

    def call(path: str, method: str = "GET", **headers: str) -> Response:
        return dispatch(state, transport, method, path, headers, memoryview(b""))

    return call


@pytest.mark.parametrize("path", PATHS)
def test_everything_may_load_from_its_server_only_and_run_no_inline_script(get: Get, path: str) -> None:
    response = get(path)
    assert response.status == 200
    headers = dict(response.headers)
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("path", [*PATHS, "/ui/access"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_without_a_page_its_paths_are_those_of_no_resource(
    get: Get, state: ServerState, path: str, method: str
) -> None:
    state.has_page = False
    response = get(path, method)
    if path == "/ui/access" and method != "POST":
        assert response.status == 405
    else:
        assert (response.status, response.chunks) == (404, (b'{"error":"Not Found"}',))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_page_is_only_read(get: Get, method: str) -> None:
    response = get("/", method)
    assert (response.status, dict(response.headers)["Allow"]) == (405, "GET")


@pytest.mark.parametrize(
    "path", ["/ui/nothing.js", "/ui/..%2ffiles.py", "/ui/%2e%2e", "/ui/__init__.py", "/ui/", "/ui/a/b.js"]
)
def test_no_other_file_is_sent(get: Get, path: str) -> None:
    assert get(path).status in (400, 404)


def test_a_browser_reads_a_file_again_only_if_it_has_changed(get: Get) -> None:
    first = get("/ui/app.js")
    headers = dict(first.headers)
    assert headers["Cache-Control"] == "no-cache"
    again = get("/ui/app.js", **{"if-none-match": headers["ETag"]})
    assert (again.status, again.chunks) == (304, ())
    assert get("/ui/app.js", **{"if-none-match": '"other"'}).status == 200


def test_every_module_and_resource_that_is_named_is_a_file_of_the_page() -> None:
    named = set(re.findall(r'(?:href|src)="ui/([^"]+)"', files()["index.html"].content.decode()))
    for name, file in files().items():
        if name.endswith(".js"):
            named |= set(re.findall(r'from "\./([^"]+)"', file.content.decode()))
    assert named == files().keys() - {"index.html"}


def test_nothing_comes_from_elsewhere_and_nothing_is_made_html() -> None:
    for name, file in files().items():
        text = file.content.decode().replace("http://www.w3.org/", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]+/", text.replace("http://127", "")), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
        assert "<script>" not in text, name
        assert not re.search(r"\son[a-z]+=\"|style=\"", text), name
