"""The commands: `shoal VERB …`, one file per verb, `tritonserver`: `shoal serve` with Triton's defaults, `torchserve`.

Prints to a person and returns an exit code; decides nothing that a server does. A verb's file is imported when the verb
is used.
"""

import errno
import io
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from shoal import __version__


class _Verb(NamedTuple):
    text: str
    entry: str  # module:function, called with the arguments and `environ`


_VERBS = {
    "serve": _Verb("serve the models of a repository over HTTP and gRPC", "shoal.cli:_serve_locally"),
    "run": _Verb("ask a model once, in this process, without a server", "shoal.cli.run:run"),
    "samples": _Verb("write the sample models into a directory", "shoal.cli.samples:samples"),
    "init": _Verb("write the directory of a new model, from a model file or a template", "shoal.cli.init:init"),
    "check": _Verb("say what is wrong with the models of a repository, without loading them", "shoal.cli.check:check"),
    "import": _Verb(
        "say how the archives of a TorchServe store would be served, and write them as a repository",
        "shoal.cli.import_store:import_store",
    ),
    "pack": _Verb("write an archive for TorchServe's model store", "shoal.cli.pack:pack"),
    "infer": _Verb("ask a model of a running server once", "shoal.cli.infer:infer"),
    "bench": _Verb(
        "load a model of a running server, and show throughput and latencies", "shoal.cli.bench.command:bench"
    ),
    "tune": _Verb("search the settings with the most throughput under a latency goal", "shoal.cli.tune.command:tune"),
    "models": _Verb("list the models of a running server, or the instances of one", "shoal.cli.models:models"),
    "load": _Verb("load a model into a running server, or load it again", "shoal.cli.load:load"),
    "unload": _Verb("unload a model once it has answered what it accepted", "shoal.cli.unload:unload"),
    "scale": _Verb("give a model more or fewer instances while it serves", "shoal.cli.scale:scale"),
    "rollout": _Verb("give a new version of a model a growing share of the requests", "shoal.cli.rollout:rollout"),
    "upgrade": _Verb(
        "have the installed version take a running server's place, without a gap", "shoal.cli.upgrade:upgrade"
    ),
    "top": _Verb("show what the models of a running server do, again and again", "shoal.cli.top:top"),
    "explain": _Verb("say why a model's last batches had their size", "shoal.cli.explain:explain"),
    "record": _Verb("record the requests to a model of a running server for a time", "shoal.cli.record:record"),
    "records": _Verb("list, show or export the requests of a recording", "shoal.cli.records:records"),
    "replay": _Verb("ask the requests of a recording again, and compare the answers", "shoal.cli.replay:replay"),
    "shadow": _Verb("mirror requests of a version to another one, and compare the answers", "shoal.cli.shadow:shadow"),
    "logs": _Verb("print the last lines of a running server's log file, and new ones", "shoal.cli.logs:logs"),
    "key": _Verb("make an API key, and the entry for the file of --api-keys", "shoal.cli.key:key"),
    "doctor": _Verb("look for what would keep a server from running well on this machine", "shoal.cli.doctor:doctor"),
    "fleet": _Verb("write the configuration of a balancer in front of several servers", "shoal.cli.fleet:fleet"),
    "ray": _Verb("run servers on a cluster of Ray, behind Ray Serve", "shoal.cli.ray_serve:ray"),
    "completion": _Verb("print what makes bash, zsh or fish complete commands", "shoal.cli.completion:completion"),
    "build-engine": _Verb("build a TensorRT engine from an ONNX file", "shoal.cli.build_engine:build_engine"),
    "install-systemd": _Verb(
        "write the unit that runs this server as a service of systemd", "shoal.cli.install_systemd:install"
    ),
}

_HELP = """Usage: shoal <verb> [options]

A model server that takes Triton's place: the same model repository, the same protocols, installed with pip.

Verbs:
{verbs}

Start with:
  shoal samples models && shoal serve models     the sample models; each has a page or a request to try
  shoal serve --model-repository <directory>     then open http://127.0.0.1:8000/ in a browser
  shoal serve model.onnx                         one model file, or the directory of one model
  shoal serve --help                             every flag, with its unit and default
  tritonserver --model-repository=<directory>    the same server, open to the network as Triton is (0.0.0.0)

  shoal --version                                print the version, and how the interpreter was built
"""


#: Triton's defaults where Shoal's differ: listens to the network, has no page, installs no packages of models, and lets
#: an execution last without limit.
TRITONS_DEFAULTS: dict[str, Any] = {
    "http_address": "0.0.0.0",
    "grpc_address": "0.0.0.0",
    "sagemaker_address": "0.0.0.0",
    "vertex_ai_address": "0.0.0.0",
    "allow_remote_admin": True,
    "ui": False,
    "install_requirements": False,
    "model_execution_timeout_secs": 0,
}


#: Arguments with which a command prints help or its version and ends, and so starts no server.
_ANSWERED = frozenset({"--help", "-h", "--version", "-v"})


def main(argv: Sequence[str] | None = None) -> int:
    """The command `shoal`; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return _command(lambda: _run(arguments), serves=arguments[:1] == ["serve"] and not _ANSWERED & {*arguments})


def _command(work: Callable[[], int], *, serves: bool) -> int:
    """Run a command with standard streams that are open; returns its exit code. A command that serves handles broken
    pipes itself, and signals as soon as its server has begun."""
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # the locale's encoding, such as ASCII, may lack characters of names
        sys.stdout.reconfigure(errors="backslashreplace")  # as Python does for stderr
    try:
        try:
            return work()
        finally:
            if not serves:
                sys.stdout.flush()
    except KeyboardInterrupt:  # also of a server that does not handle signals yet
        return 128 + signal.SIGINT
    except OSError as error:
        if serves or error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        reader_has_gone = error.errno == errno.EPIPE  # the reader has closed the pipe, as `head` does
        if not reader_has_gone:
            print(f"The output cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter's last flush fails, too
        return 128 + signal.SIGPIPE if reader_has_gone else 1


def _open_standard_streams() -> None:
    """Open those of stdin, stdout and stderr that were closed when the command began, as by `>&-`: no socket or file
    of a server may get their numbers."""
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            if (opened := os.open(os.devnull, os.O_RDWR)) != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))


def _run(arguments: list[str]) -> int:
    if "_ARGCOMPLETE" in os.environ:
        arguments = _asked_by_shell()
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        from shoal.cli.help_text import for_terminal

        verbs = "\n".join(f"  {name:<16} {verb.text}" for name, verb in _VERBS.items())
        print(for_terminal(_HELP.format(verbs=verbs)), end="")
        return 0
    if arguments[0] == "--version":
        from shoal import interpreter

        print(f"shoal {__version__} ({interpreter.describe()})")
        return 0
    if arguments[0] not in _VERBS:
        from difflib import get_close_matches  # imported here: only a wrong verb needs it

        close = get_close_matches(arguments[0], _VERBS, n=1)
        meant = f" Did you mean '{close[0]}'?" if close else ""
        print(f"'{arguments[0]}' is not a verb of shoal.{meant}\nUsage: shoal <verb> [options]", file=sys.stderr)
        print(f"Verbs: {', '.join(_VERBS)}. 'shoal --help' explains them.", file=sys.stderr)
        return 1
    entry: Callable[..., int] = pkgutil.resolve_name(_VERBS[arguments[0]].entry)
    return entry(arguments[1:], environ=os.environ)


def _asked_by_shell() -> list[str]:
    """Arguments that lead to the parser that is to answer the shell: its verb (completing.py). A shell that completes
    the verb itself is answered here."""
    from shoal.cli.completing import ASKING, answer_verbs, verb_asked

    verb = verb_asked(_VERBS, os.environ)
    if verb is None:
        answer_verbs(_VERBS)  # ends the process
        return []
    os.environ[ASKING] = "2"  # the parser gets the words from the second on, behind `shoal`
    return [verb]


def tritonserver(argv: Sequence[str] | None = None) -> int:
    """The command `tritonserver`; returns its exit code. Start scripts written for Triton work unedited."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return _command(
        lambda: _serve(arguments, prog="tritonserver", environ=os.environ, **TRITONS_DEFAULTS),
        serves=not _ANSWERED & {*arguments},
    )


def torchserve(argv: Sequence[str] | None = None) -> int:
    """The command `torchserve`; returns its exit code. Start scripts written for TorchServe work unedited."""
    from shoal.cli.torchserve.command import torchserve as command

    arguments = list(sys.argv[1:] if argv is None else argv)
    return _command(lambda: command(arguments, environ=os.environ), serves=not _ANSWERED & {*arguments})


def _serve_locally(arguments: Sequence[str], *, environ: Mapping[str, str]) -> int:
    # With the defaults of ServerOptions, not Triton's: a server without flags answers only to its own machine.
    return _serve(arguments, prog="shoal serve", environ=environ)


def _serve(arguments: Sequence[str], *, prog: str, environ: Mapping[str, str], **defaults: Any) -> int:
    from shoal.cli.serve import serve
    from shoal.options import ServerOptions

    return serve(arguments, prog=prog, defaults=ServerOptions(**defaults), environ=environ)
