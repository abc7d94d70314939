"""The verb `serve`, and the command `tritonserver`: flags → ServerOptions → the supervisor.

Reads the command line by getopt_long's rules (`--flag value`, `--flag=value`, unambiguous prefixes), as Triton does:
errors go to stderr with the usage, exit code 1. The flags are in flags.py, the kinds of values in values.py. Runs in
the supervisor's process, before anything else.
"""

import argparse
import difflib
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from shoal.cli.environment import implied_flags, implied_settings
from shoal.cli.flags import FLAGS, GROUPS, Flag
from shoal.cli.help_text import HelpPrinter
from shoal.cli.served_paths import ARCHIVE, PathError, archive_flags, as_text, served_paths
from shoal.cloud_url import CloudUrl
from shoal.errors import InvalidArgumentError
from shoal.options import HostPolicy, ServerOptions, check, largest_request_bytes
from shoal.passwords import without_passwords
from shoal.shared_settings import MetricsConfig
from shoal.store_settings import StoreSettings
from shoal.tracer.command_line import check_export, understand

#: The command that may begin with paths.
TAKES_PATHS = "shoal serve"
#: Flag whose default follows another flag → the default in the words of --help.
_FOLLOWING = {
    "metrics-address": "the HTTP address",
    "max-request-bytes": "what --shm-oversize-mib has room for",
}


class CommandLineError(Exception):
    """The command line is wrong; the message says why."""


class CommandLine(NamedTuple):
    """The options and warnings that a command line has led to."""

    options: ServerOptions
    warnings: tuple[str, ...]


def serve(argv: Sequence[str], *, prog: str, defaults: ServerOptions, environ: Mapping[str, str]) -> int:
    """Run a server until it ends; returns its exit code, or 1 at once where the command line is wrong.

    The command line of `shoal serve` may begin with paths of repositories, models and model files (served_paths.py).
    """
    takes_paths = prog == TAKES_PATHS
    paths, flags = _paths_first(argv) if takes_paths else ([], argv)
    try:
        is_empty = not argv and "model-repository" not in implied_flags(environ) and "_ARGCOMPLETE" not in environ
        if takes_paths and (is_empty or "" in argv[: len(paths)]):
            raise CommandLineError("What is to be served? Name a repository, a model or its file: shoal serve models")
        archives = [path for path in paths if path.suffix == ARCHIVE]
        with served_paths([path for path in paths if path not in archives]) as (repositories, models):
            given = [f"--model-repository={repository}" for repository in repositories] + archive_flags(archives)
            is_terminal = any(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))
            options, warnings = parse(
                [*given, *flags], prog=prog, defaults=defaults, environ=environ, is_terminal=is_terminal
            )
            for warning in warnings:
                print(f"Warning: {without_passwords(warning)}", file=sys.stderr)
            for model in models:
                print(as_text(model), end="", file=sys.stderr)

            from shoal.supervisor.main import run  # imported here: --help needs none of it

            return run(options)
    except (CommandLineError, PathError) as error:
        print(
            f"{without_passwords(str(error))}\nUsage: {_usage(prog)}\n'{prog} --help' explains them.", file=sys.stderr
        )
        return 1


def _paths_first(argv: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The paths with which a command line begins, and the flags behind them."""
    num_paths = next((number for number, text in enumerate(argv) if text.startswith("-")), len(argv))
    return [Path(text) for text in argv[:num_paths]], list(argv[num_paths:])


def parse(
    argv: Sequence[str],
    *,
    prog: str,
    defaults: ServerOptions,
    environ: Mapping[str, str],
    is_terminal: bool = False,
) -> CommandLine:
    """Parse a command line; `defaults` has the values of unset flags, `is_terminal` says whether the server will write
    to a terminal. Raises CommandLineError; --help exits with 0."""
    implied = implied_flags(environ, is_terminal=is_terminal)
    texts = {flag: [text] for flag, text in implied.items()} | _read(_parser(prog, defaults), argv)
    if {"cache-config", "response-cache-byte-size"} <= texts.keys():  # Triton's words
        raise CommandLineError(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other."
        )
    if "reload" in texts and texts.setdefault("model-control-mode", ["poll"])[-1].lower() != "poll":
        raise CommandLineError("--reload looks for changes itself: leave out --model-control-mode")
    given: dict[str, list[Any]] = {}
    warnings: list[str] = []
    for flag in FLAGS:
        if flag.name not in texts:
            continue
        values = [_value(flag, text) for text in texts[flag.name]]
        warnings += _judge(flag, values[-1])
        if flag.is_honoured:
            given.setdefault(flag.option, []).extend(values)
    settings: dict[str, Any] = {**implied_settings(environ)}
    settings |= {option: _COLLECT.get(option, itemgetter(-1))(values) for option, values in given.items()}
    settings |= _repositories(settings.pop("model_store", ()), settings.pop("load_models", None), settings)
    options = replace(defaults, **settings)
    options = replace(options, **_following(options, settings))
    try:
        check(options)
        check_export(understand(options.trace_config, environ))
    except InvalidArgumentError as error:
        raise CommandLineError(str(error)) from None
    return CommandLine(options, tuple(warnings))


#: By program, the end of its help.
_EXAMPLES = {
    "shoal serve": """\
Examples:
  shoal serve models                            # a repository of models
  shoal serve resnet.onnx models/digits --reload
  shoal serve models --model-control-mode explicit --load-model digits --http-port 9000
""",
    "tritonserver": """\
Examples:
  tritonserver --model-repository=models
  tritonserver --model-repository=models --model-control-mode=explicit --load-model=digits
""",
}


class _Formatter(argparse.HelpFormatter):
    """Wraps all but the examples, and no flag at its hyphens."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("Examples:"):
            return text
        return "\n".join([indent + line for line in self._split_lines(text, width - len(indent))])

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


class Parser(HelpPrinter):
    """An ArgumentParser that raises CommandLineError, and answers a shell that completes a command."""

    def parse_args(  # type: ignore[override]  # of its two forms, the one that is used
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Like `ArgumentParser.parse_intermixed_args`: words may follow options. A shell that has run the
        command to complete it is answered, and the process ends."""
        self.answer_shell()
        known, unknown = self.parse_known_intermixed_args(args, namespace or argparse.Namespace())
        if unknown:
            raise CommandLineError(self.unknown(unknown[0]))
        return known

    def unknown(self, argument: str) -> str:
        """The error for an argument that the command does not take."""
        if not argument.startswith("-"):
            return f"Unexpected argument: {argument}"  # Triton's words
        written = argument.partition("=")[0]
        close = difflib.get_close_matches(written, self._option_string_actions, n=1)
        return f"unrecognized option '{written}'" + (f"; did you mean '{close[0]}'?" if close else "")

    def answer_shell(self) -> None:
        """If a shell that completes the command has run it, answer and end the process; else do nothing."""
        if "_ARGCOMPLETE" in os.environ:
            from shoal.cli import completing

            completing.answer(self)

    def format_help(self) -> str:
        """The help; its first lines look like those of verbs whose help is a text."""
        return super().format_help().replace("usage: ", "Usage: ", 1)

    def error(self, message: str) -> NoReturn:
        """Raise CommandLineError, in place of printing the message and exiting."""
        raise CommandLineError(message)


def _usage(prog: str) -> str:
    return f"{prog} [<path> …] [options]" if prog == TAKES_PATHS else f"{prog} [options]"


def _parser(prog: str, defaults: ServerOptions) -> Parser:
    """An ArgumentParser that follows getopt_long's rules and prints --help; it leaves values as texts."""
    parser = Parser(
        prog=prog,
        usage=_usage(prog),
        description="Serve the models of a repository over HTTP and gRPC, as Triton does. `shoal serve` may begin with "
        "paths: of repositories, of single models' directories, or of model files and directories of them (.onnx, .pt, "
        ".pt2, .xml, .plan, .py, forests of XGBoost, LightGBM and treelite, TorchServe's .mar), each served under its "
        "name. Boolean flags take true, 1, "
        "on and false, 0, off; alone they mean true. Flags may be shortened as long as they are unambiguous.",
        epilog=_EXAMPLES.get(prog),
        formatter_class=_Formatter,
        add_help=False,
    )
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            text = help_text(flag, defaults).replace("%", "%%")
            if not flag.value.metavar:
                group.add_argument(
                    f"--{flag.name}", dest=flag.name, action="append_const", const=flag.value.bare, help=text
                )
                continue
            group.add_argument(
                f"--{flag.name}",
                dest=flag.name,
                action="append",
                nargs=None if flag.value.bare is None else "?",
                const=flag.value.bare,
                metavar=flag.value.metavar,
                help=text,
            )
    parser.add_argument_group("Help").add_argument("--help", "-h", action="help", help="print this and exit")
    return parser


def help_text(flag: Flag, defaults: ServerOptions) -> str:
    """The text of a flag in --help: its effect, or why the flag has none."""
    if flag.deprecated_for:
        return f"deprecated: use {flag.deprecated_for}"
    if not flag.is_honoured:
        return f"ignored: {flag.text}"
    # A flag that sets a field of another name is given no default here: the field's is that of another flag.
    default = _FOLLOWING.get(flag.name) or ("" if flag.sets else _printed(getattr(defaults, flag.option, None)))
    return f"{flag.text} (default: {default})" if default else flag.text


def _printed(value: Any) -> str:
    """A value as a user would type it; nothing for an empty tuple or mapping."""
    if isinstance(value, bool):
        return str(value).lower()
    if value == "":
        return "''"
    return str(value) if isinstance(value, (str, int, float)) else ""


def _read(parser: Parser, argv: Sequence[str]) -> dict[str, list[str]]:
    """Flag name → the texts given for it, in order; only flags that were given."""
    parser.answer_shell()
    known, unknown = parser.parse_known_args(list(argv))
    if unknown:
        more = f"\nA model repository follows its flag: --model-repository={unknown[0]}"
        raise CommandLineError(parser.unknown(unknown[0]) + ("" if unknown[0].startswith("-") else more))
    return {name: texts for name, texts in vars(known).items() if texts is not None}


def _value(flag: Flag, text: str) -> Any:
    try:
        return flag.value.parse(text)
    except ValueError as error:
        raise CommandLineError(f'Bad option: "--{flag.name}".\n{error}') from None  # Triton's heading


def _judge(flag: Flag, value: Any) -> Iterator[str]:
    """The warnings that a flag causes."""
    if flag.deprecated_for:  # Triton's words
        yield f"'--{flag.name}' has been deprecated! Please use '{flag.deprecated_for}' instead."
    if not flag.is_honoured and value != flag.in_force:
        yield f"--{flag.name} is ignored: {flag.text}"


def _repositories(
    stores: Sequence[Path | CloudUrl], load_models: Sequence[str] | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The options that --model-store means: TorchServe's store beside --models, else one more of Triton's repositories.

    Raises CommandLineError where --models is given without a single store in a directory.
    """
    if load_models is None:
        if not stores:
            return {}
        return {"model_repository": _without_repeats([*settings.get("model_repository", ()), *stores])}
    if len(stores) != 1 or not isinstance(stores[0], Path):
        raise CommandLineError("--models needs one --model-store, the directory with TorchServe's archives")
    return {"store": StoreSettings(stores[0], () if load_models == ("none",) else tuple(load_models))}


def _following(options: ServerOptions, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options that were not given and take their value from another option."""
    followers = {
        "metrics_address": options.http_address,
        "max_request_bytes": largest_request_bytes(options),
    }
    return {name: value for name, value in followers.items() if name not in settings}


def _by_name(settings: Sequence[tuple[str, str, str]]) -> dict[str, dict[str, str]]:
    names: dict[str, dict[str, str]] = {}
    for name, setting, value in settings:
        names.setdefault(name, {})[setting] = value
    return names


def _by_policy(settings: Sequence[tuple[str, str, Any]]) -> dict[str, HostPolicy]:
    policies: dict[str, HostPolicy] = {}
    for policy, setting, value in settings:
        policies[policy] = policies.get(policy, HostPolicy())._replace(**{setting: value})
    return policies


def _by_api(flag: str, word: str, restrictions: Sequence[tuple[Sequence[str], str, str]]) -> dict[str, tuple[str, str]]:
    """Each part of the API → the header that a request to it needs. Raises CommandLineError for a part that is
    named twice."""
    needed: dict[str, tuple[str, str]] = {}
    for apis, key, value in restrictions:
        for api in apis:
            if api in needed:
                sentence = f"restricted {word} '{api}' can not be specified in multiple config groups"  # Triton's
                raise CommandLineError(f'Bad option: "--{flag}".\n{sentence}')
            needed[api] = (key, value)
    return needed


def _without_repeats(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


#: Option → the function that combines several values; of any other option the last value is taken, as by getopt.
_COLLECT: dict[str, Callable[[Sequence[Any]], Any]] = {
    "model_repository": _without_repeats,
    "load_model": _without_repeats,
    "model_store": _without_repeats,
    "load_models": _without_repeats,
    "backend_config": _by_name,
    "cache_config": _by_name,
    "host_policy": _by_policy,
    "http_restricted_api": partial(_by_api, "http-restricted-api", "api"),
    "grpc_restricted_protocol": partial(_by_api, "grpc-restricted-protocol", "protocol"),
    "model_load_gpu_limit": tuple,
    "cuda_memory_pool_byte_size": tuple,
    "rate_limit_resource": tuple,
    "metrics_config": lambda settings: MetricsConfig(**dict(settings)),
    "trace_config": tuple,
    "record_config": tuple,
}
