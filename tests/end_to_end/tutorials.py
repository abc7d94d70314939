"""A reader of a tutorial: writes its files, runs its commands and snippets in the order of the page, and compares what
they print with what the page shows. `…` in an output stands for anything.

What `shoal serve` and `tritonserver` would serve is loaded into a server that tests share. Commands that need a
cluster, a registry or root are not run; `left_out` has them.
"""

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

from shoal.cli import TRITONS_DEFAULTS, main
from shoal.cli.serve import parse
from shoal.cli.served_paths import as_text, served_paths
from shoal.options import ServerOptions
from tests.end_to_end.asking import fetch
from tests.end_to_end.server import DEADLINE_S, Server

ROOT = Path(__file__).parents[2]
#: A worker that loads gives way to those that serve: on a busy machine, to import scikit-learn may take it a minute.
LOAD_DEADLINE_S = 240.0
#: A fenced block, with the name of the file that it is, if the line before it ends with one.
_BLOCK = re.compile(r"(?:`([\w./-]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Programs that change the machine, or that the machine of a test does not have.
_LEFT_OUT = ("/opt/", "docker", "journalctl", "kubectl", "pip", "python3", "sudo", "systemctl")
#: What makes a search so short that its result is of no use, and met on a busy machine.
_SHORT = {"tune": ["--goal=p50=200s", "--trials=1", "--turns=1", "--window=0.05", "--concurrency=1"]}


class Reader:
    """Reads in a directory of its own; `shared` is the repository of the server. `programs` are called in place of the
    commands whose first word they have; `addresses` are what the page's stand for."""

    def __init__(
        self,
        folder: Path,
        server: Server | None = None,
        shared: Path = Path("nowhere"),
        programs: Mapping[str, Callable[[list[str]], str]] | None = None,
    ) -> None:
        self._folder, self._server, self._shared, self._programs = folder, server, shared, programs or {}
        self.addresses = {} if server is None else {"localhost:8000": server.url}
        self._stack = ExitStack()  # of what is served
        # Changed by each block.
        self._printed: str | None = None
        self.left_out: list[str] = []
        self.num_compared = 0

    def read(self, page: str) -> None:
        """Do all that the page says; AssertionError with the first output that differs."""
        blocks = _BLOCK.findall(page)
        assert len(blocks) * 2 == len(re.findall("^```", page, re.MULTILINE))
        with self._stack:
            for name, language, text in blocks:
                for shown, real in self.addresses.items():
                    text = text.replace(shown, real)
                if name:
                    path = self._folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text)
                elif language == "sh":
                    self._printed = "".join(map(self._run, commands(text)))
                elif language == "python":
                    self._printed = self._in_process(partial(exec, text, {}))
                else:
                    assert self._printed is not None
                    self._compare(language, text)

    def _compare(self, language: str, shown: str) -> None:
        printed, self._printed = self._printed or "", None
        self.num_compared += 1
        if language == "json":
            assert json.loads(printed) == json.loads(shown), printed
            return
        pattern = ".*?".join(map(re.escape, shown.strip().split("…")))
        assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"printed:\n{printed}\nshown:\n{shown}"

    def _run(self, command: str) -> str:
        """The output of a command."""
        words = shlex.split(command, comments=True)
        if words[:2] == ["shoal", "serve"] or words[0] == "tritonserver":
            return self._serve(words)
        if words[0] in self._programs:
            return self._programs[words[0]](words)
        if words[0].startswith(_LEFT_OUT):
            self.left_out.append(command)
            return ""
        if words[0] == "python":
            return self._in_process(lambda: runpy.run_path(words[1], run_name="__main__"))
        if words[0] == "shoal" and not re.search(r"[|&]|\$\(", command):
            return self._in_process(lambda: self._verb(words[1:]))
        done = subprocess.run(
            ["sh", "-ec", command], cwd=self._folder, env={**os.environ, **self._variables()}, timeout=DEADLINE_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout)
        return done.stdout

    def _verb(self, words: list[str]) -> None:
        if words[0] == "infer":
            del os.environ["SHOAL_URL"]  # it asks through shared memory, as it does on a reader's machine
        assert main([*words, *_SHORT.get(words[0], [])]) == 0, words

    def _in_process(self, do: Callable[[], object]) -> str:
        """What a function prints that is called in place of a command: frameworks are imported once for all pages."""
        printed = io.StringIO()
        with inside(self._folder, self._variables()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries that a tutorial uses
            try:
                with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                    do()
            except BaseException:
                sys.stdout.write(printed.getvalue())
                raise
        return printed.getvalue()

    def _variables(self) -> dict[str, str]:
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        if self._server is None:
            return path
        return path | {
            "SHOAL_CLIENT_SOCKET": self._server.client_socket,
            "SHOAL_URL": f"http://{self._server.url}",
        }

    # -- models -------------------------------------------------------------------------------------------------------

    def _serve(self, words: list[str]) -> str:
        """Load what the command would serve, in place of what the last one has; returns what it says of its paths."""
        self._stack.close()
        is_triton = words[0] == "tritonserver"
        flags = words[1:] if is_triton else words[2:]
        paths = []
        while flags and not flags[0].startswith("-"):
            paths.append(Path(flags.pop(0)))
        with inside(self._folder, {}):
            repositories, models = self._stack.enter_context(served_paths(paths))
            given = [f"--model-repository={repository.absolute()}" for repository in repositories]
            defaults = ServerOptions(**TRITONS_DEFAULTS) if is_triton else ServerOptions()
            options, _ = parse([*given, *flags], prog=words[0], defaults=defaults, environ={})
            found = [each.absolute() for each in options.model_repository if isinstance(each, Path)]
        directories = [each for repository in found for each in repository.iterdir() if each.is_dir()]
        for directory in directories:
            link = self._shared / directory.name
            link.symlink_to(directory)
            self._stack.callback(link.unlink)
        names = options.load_model or [directory.name for directory in directories]
        for name in names:
            self._stack.callback(self._ask, name, "unload", b'{"parameters": {"unload_dependents": true}}')
            self._ask(name, "load", b"")
        return "".join(as_text(model) for model in models)

    def _ask(self, name: str, verb: str, body: bytes) -> None:
        assert self._server is not None
        path = f"/v2/repository/models/{quote(name)}/{verb}"
        reply = fetch(self._server.http_port, path, body, deadline_s=LOAD_DEADLINE_S)
        assert reply.status == 200, reply.body


def commands(text: str) -> Iterator[str]:
    """The commands of a block: lines, and those that a quotation mark goes on over."""
    command = ""
    for line in text.splitlines(keepends=True):
        command += line
        try:
            words = shlex.split(command, comments=True)
        except ValueError:  # no closing quotation
            continue
        if words:
            yield command.strip()
        command = ""
    assert not command, command


@contextmanager
def inside(folder: Path, variables: Mapping[str, str]) -> Iterator[None]:
    """This process has the working directory, and these variables beside all others, for the block."""
    before, directory = dict(os.environ), Path.cwd()
    os.environ.update(variables)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(before)
