"""The command `torchserve`: starts the server in the background or in the foreground, or stops it.

Flags, files and sentences are TorchServe's (its model_server.py). Runs in the process that becomes the supervisor.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from shoal.cli.help_text import HelpPrinter
from shoal.cli.torchserve.configuration import settings_of_options
from shoal.cli.torchserve.keys import read_values
from shoal.cli.torchserve.properties import PropertiesError, format_properties, read_properties
from shoal.errors import InvalidArgumentError
from shoal.file_kinds import is_dir, is_file
from shoal.options import ServerOptions, check
from shoal.passwords import without_passwords
from shoal.supervisor.pid_file import PidFile, PidFileError, await_end, default_path, end_tidily, running_server
from shoal.supervisor.upgrade.launch import VARIABLE
from shoal.torchserve_keys import FILE, write_keys
from shoal.torchserve_settings import TORCHSERVE_VERSION

STOP_LIMIT_S = 60.0
#: Fields of ServerOptions that differ from `shoal serve`: Triton's listeners stay closed, a failed model is logged.
_DEFAULTS: dict[str, Any] = {
    "allow_http": False,
    "allow_grpc": False,
    "allow_metrics": False,
    "exit_on_error": False,
    "announcement": "Model server started.",
}


class _Start(NamedTuple):
    """The server that a command line asks for, and warnings about it."""

    options: ServerOptions
    warnings: tuple[str, ...]
    expires_min: int  # minutes until the tokens expire


def torchserve(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Run the command; returns its exit code. With --foreground, and in the background's process, it returns when the
    server has ended."""
    arguments = _parser().parse_args(list(argv))
    if arguments.version:
        print(f"TorchServe Version is {TORCHSERVE_VERSION}")
        return 0
    try:
        path = default_path()
        if arguments.stop:
            return _stop(path, waits=arguments.foreground)
        return _start(arguments, path, environ)
    except (PidFileError, PropertiesError, InvalidArgumentError) as error:
        print(without_passwords(str(error)), file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = HelpPrinter(
        prog="torchserve",
        description="Serve TorchServe's model store as TorchServe does. docs/migrate-from-torchserve.md has every key "
        "of config.properties and every difference.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "-v", "--version", action="store_true", help="print the version of TorchServe that is answered for"
    )
    which.add_argument("--start", action="store_true", help="start the server, in the background")
    which.add_argument("--stop", action="store_true", help="stop the server; with --foreground, wait for its end")
    parser.add_argument("--ts-config", metavar="FILE", help="config.properties")
    parser.add_argument(
        "--model-store", metavar="DIRECTORY", help="directory of archives; required here or in the file"
    )
    parser.add_argument("--workflow-store", metavar="DIRECTORY", help="of archives of workflows (default: model store)")
    parser.add_argument("--models", nargs="+", metavar="[NAME=]ARCHIVE", help="loaded at start; all for every archive")
    parser.add_argument("--foreground", action="store_true", help="start in the foreground, and print the log here")
    parser.add_argument(
        "--no-config-snapshots", "--ncs", action="store_true", help="read and write no snapshots of the configuration"
    )
    parser.add_argument("--disable-token-auth", "--dt", action="store_true", help="requests need no tokens")
    parser.add_argument("--enable-model-api", action="store_true", help="clients may register and unregister models")
    for flag in ("--log-config", "--cpp-log-config", "--plugins-path"):
        parser.add_argument(flag, *(["--ppath"] if flag == "--plugins-path" else []), metavar="PATH", help="ignored")
    return parser


# --- start ---


def _start(arguments: argparse.Namespace, path: Path, environ: Mapping[str, str]) -> int:
    start = resolve(arguments, environ)
    if VARIABLE in environ:  # an upgrade: the old server's pid file and tokens stay, and this process serves
        from shoal.supervisor.main import run

        return run(replace(start.options, pid_file=str(path)))
    pid_file = PidFile.take(path)
    if pid_file is None:
        print("TorchServe is already running, please use torchserve --stop to stop TorchServe.")
        return 1
    end_tidily()
    try:
        return _begin(start, pid_file, in_foreground=arguments.foreground)
    finally:
        pid_file.remove()


def _begin(start: _Start, pid_file: PidFile, *, in_foreground: bool) -> int:
    """Write the tokens, and serve: in this process, or in a child in the background, which the pid file then names."""
    pid_file.write(os.getpid())
    for sentence in start.warnings:
        print(f"Warning: {without_passwords(sentence)}", file=sys.stderr)
    if start.options.torchserve.token_file:
        try:
            write_keys(Path(start.options.torchserve.token_file), datetime.now(), start.expires_min)
        except OSError as error:
            raise PropertiesError(
                f"{FILE} cannot be written into '{Path.cwd()}': {error.strerror}; start elsewhere, or with "
                "--disable-token-auth"
            ) from error
    sys.stdout.flush()
    sys.stderr.flush()
    child = 0 if in_foreground else os.fork()  # before imports of the supervisor's modules, while there is one thread
    if child:
        pid_file.write(child)
        return 0
    if not in_foreground:
        pid_file.write(os.getpid())  # the parent writes this id, too, perhaps later or never
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)

    from shoal.supervisor.main import run  # imported here: --stop needs none of it

    return run(start.options, pid_file)


def resolve(arguments: argparse.Namespace, environ: Mapping[str, str]) -> _Start:
    """The server's options by flags, file and environment. Raises PropertiesError, InvalidArgumentError."""
    file = _config_file(arguments, environ)
    given = {} if file is None else read_properties(file, environ)
    values, warnings = read_values(given, _flags(arguments), environ)
    for kind in ("model", "workflow"):
        store = values[f"{kind}_store"]
        if store is not None and not _is(is_dir, store):
            raise PropertiesError(f"--{kind}-store directory not found: {store}")
    said = [f"configuration is read from '{file}'"] if file is not None and arguments.ts_config is None else []
    ignored = {
        "--log-config": arguments.log_config,
        "--cpp-log-config": arguments.cpp_log_config,
        "--plugins-path": arguments.plugins_path,
    }
    said += [f"{flag} is ignored" for flag, value in ignored.items() if value]
    for variable in ("LOG_LOCATION", "METRICS_LOCATION"):
        if environ.get(variable):
            said.append(f"no log files are written into {variable}: the log goes to stdout and stderr")
    is_one_port = values["inference_address"] == values["management_address"]
    has_tokens = not values["disable_token_authorization"]
    if has_tokens and is_one_port:
        said.append("tokens are off: inference and management have one address, where no request could have both")
    token_file = str(Path.cwd() / FILE) if has_tokens and not is_one_port else ""
    fields, more = settings_of_options(values, token_file)
    if not arguments.no_config_snapshots:
        fields["store"] = replace(
            fields["store"],
            snapshot_directory=str(_snapshots(environ).absolute()),
            snapshot_properties=_properties_of_snapshots(given, arguments),
        )
    port = fields["torchserve_inference_port"]  # the port of HTTP names the socket of shoal.Client
    options = ServerOptions(**{**_DEFAULTS, **fields, "http_port": port})
    check(options)
    return _Start(options, (*said, *warnings, *more), max(1, values["token_expiration_min"]))


def _flags(arguments: argparse.Namespace) -> dict[str, str]:
    """The keys of config.properties that flags set. A flag can only turn tokens off, and the model API on."""
    flags = {
        "model_store": arguments.model_store,
        "workflow_store": arguments.workflow_store,
        "load_models": None if arguments.models is None else ",".join(arguments.models),
        "disable_token_authorization": "true" if arguments.disable_token_auth else None,
        "enable_model_api": "true" if arguments.enable_model_api else None,
    }
    return {key: value for key, value in flags.items() if value is not None}


def _config_file(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Path | None:
    """The config.properties in force: the first of the environment's, the flag's, the newest snapshot, and the one in
    the working directory; None if there is none."""
    named = environ.get("TS_CONFIG_FILE") or arguments.ts_config
    if named:
        if not _is(is_file, named):
            raise PropertiesError(f"--ts-config file not found: {named}")
        return Path(named)
    if not arguments.no_config_snapshots:
        newest = max(_snapshots(environ).glob("*.cfg"), key=lambda each: each.name, default=None)
        if newest is not None:
            return newest
    here = Path("config.properties")
    return here if _is(is_file, "config.properties") else None


def _is(kind: Callable[[Path], bool], place: str) -> bool:
    """Whether a file of this kind lies at a path. Raises PropertiesError if the system refuses to say so."""
    try:
        return kind(Path(place))
    except OSError as error:
        raise PropertiesError(f"'{place}': {error.strerror}") from None


def _snapshots(environ: Mapping[str, str]) -> Path:
    """The directory of snapshots of the configuration."""
    return Path(environ.get("LOG_LOCATION", "logs"), "config")


def _properties_of_snapshots(given: Mapping[str, str], arguments: argparse.Namespace) -> str:
    """The properties in each snapshot: those of the file in force, with the flags that say what is served; the models
    are those at the time of the snapshot."""
    flags = {
        key: value
        for key, value in _flags(arguments).items()
        if key in ("model_store", "workflow_store", "load_models")
    }
    kept = {key: value for key, value in given.items() if key not in ("models", "model_snapshot")}
    return format_properties({**kept, **flags})


# --- stop ---


def _stop(path: Path, *, waits: bool) -> int:
    pid = running_server(path)
    if pid is None:
        print("TorchServe is not currently running.")
        return 0
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        print("TorchServe already stopped.")
        return 0
    if waits:
        if not await_end(path, STOP_LIMIT_S):
            print("Stopping TorchServe took too long.")
            return 1
        Path(FILE).unlink(missing_ok=True)
    print("TorchServe has stopped.")
    return 0
