"""frontend/late_modules.py: what stands in for a module until something of it is used."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.frontend.late_modules import UNUSED, imported_late

IMPORTS = """
import seldom
import package.rare
import package.rare as rare
from seldom import given
"""


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that a program's imports have bound."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    for path in (tmp_path / "seldom.py", package / "rare.py"):
        path.write_text("number = 1")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("seldom", "package", "package.rare"):
        monkeypatch.setitem(sys.modules, name, sys)  # so that what the test imports is forgotten
        monkeypatch.delitem(sys.modules, name)
    bound: dict[str, Any] = {}
    with imported_late({"seldom": {"given": 2}, "package.rare": {}}):
        exec(IMPORTS, bound)
    assert not {"seldom", "package.rare"} & sys.modules.keys()
    return bound


def test_a_module_is_imported_when_something_of_it_is_used(names: dict[str, Any]) -> None:
    assert names["given"] == names["seldom"].given == 2
    assert "seldom" not in sys.modules
    assert names["seldom"].number == 1
    assert sys.modules["seldom"].__file__
    assert names["package"].rare.number == names["rare"].number == 1
    assert names["package"].rare is sys.modules["package.rare"]
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        names["seldom"].other  # noqa: B018


def test_it_is_imported_in_the_block_where_something_is_used_there(names: dict[str, Any]) -> None:
    with imported_late({"seldom": {}}):
        exec("from seldom import number", names)
    assert names["number"] == 1
    assert sys.modules["seldom"].__file__


def test_a_module_that_is_there_stays(names: dict[str, Any]) -> None:
    exec("import seldom", names)
    with imported_late({"seldom": {}}):
        exec("import seldom as same", names)
    assert names["same"] is names["seldom"] is sys.modules["seldom"]


def test_what_gunicorn_does_with_them() -> None:
    program = """
import ssl, sys
given = {name: getattr(ssl, name) for name in %r}
del sys.modules["ssl"]
import shoal.frontend.gunicorn_main
import gunicorn.config, gunicorn.util
settings = gunicorn.config.Config().settings
assert settings["ssl_version"].get() == given["PROTOCOL_SSLv23"], given
assert settings["cert_reqs"].get() == given["CERT_NONE"], given
assert "email.utils" not in sys.modules
assert gunicorn.util.http_date(0) == "Thu, 01 Jan 1970 00:00:00 GMT"
assert sys.modules["email.utils"].formatdate
assert issubclass(gunicorn.workers.gthread.ssl.SSLError, OSError)
assert gunicorn.sock.ssl.SSLSocket is sys.modules["ssl"].SSLSocket
"""
    subprocess.run([sys.executable, "-c", program % ([*UNUSED["ssl"]],)], check=True)
