"""The verb `install-systemd`: writes the unit that runs this server as a service of systemd.

Fills systemd/shoal.service with this machine's values: the installed command, the model repositories, the user. Flags
that `shoal serve` would refuse are refused here, before a service fails to start. Enables and starts nothing.
"""

import argparse
import os
import pwd
import shlex
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from shoal.cli.serve import CommandLineError, Parser, parse
from shoal.cloud_url import is_cloud
from shoal.options import ServerOptions

PROG = "shoal install-systemd"
UNIT = Path("/etc/systemd/system/shoal.service")
#: Seconds beside --exit-timeout-secs: after it processes have 2 s to end, and freeing much memory takes time (ours).
STOP_MARGIN_S = 15


def install(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Write the unit, or print it; returns the exit code."""
    own, serve_flags = _split(argv)
    try:
        arguments = _parser().parse_args(own)
        unit = render(arguments, serve_flags, environ)
        if arguments.output == "-":
            print(unit, end="")
            return 0
        path = Path(arguments.output).absolute()
        _write(path, unit, overwrite=arguments.force)
    except CommandLineError as error:
        print(f"{error}\nUsage: {PROG} [options] [-- serve flags]\n'{PROG} --help' explains them.", file=sys.stderr)
        return 1
    print(f"Wrote {path}. Next:\n\n  systemctl daemon-reload\n  systemctl enable --now {path.name}")
    return 0


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide the arguments into this verb's and, after `--`, those of `shoal serve`."""
    own = list(argv)
    if "--" not in own:
        return own, []
    at = own.index("--")
    return own[:at], own[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=PROG,
        usage=f"{PROG} --model-repository <directory or URL> [options] [-- serve flags]",
        description="Write the unit that runs this server as a service of systemd. What follows -- is given to "
        "`shoal serve` as it stands.",
        add_help=False,
    )
    parser.add_argument(
        "--model-repository",
        action="append",
        required=True,
        metavar="<directory or URL>",
        help="directory of models, or where in cloud storage it lies; repeat it for several",
    )
    parser.add_argument("--user", metavar="<name>", help="who the service runs as (default: you, also under sudo)")
    parser.add_argument(
        "--output", default=str(UNIT), metavar="<file>", help=f"where to write the unit; - prints it (default: {UNIT})"
    )
    parser.add_argument("--force", action="store_true", help="overwrite a unit that is there already")
    parser.add_argument("--help", "-h", action="help", help="print this and exit")
    return parser


def render(arguments: argparse.Namespace, serve_flags: Sequence[str], environ: Mapping[str, str]) -> str:
    """The unit's text. Raises CommandLineError for arguments with which no server could start."""
    served = [f"--model-repository={_repository(each)}" for each in arguments.model_repository] + list(serve_flags)
    defaults = ServerOptions(http_address="127.0.0.1")
    options, _ = parse(served, prog="shoal serve", defaults=defaults, environ={})
    command = [str(_command()), "serve", *served]
    values = {
        "USER": _user(arguments.user, environ),
        "COMMAND": " ".join(map(quote, command)),
        "TIMEOUT_STOP_S": str(options.exit_timeout_secs + STOP_MARGIN_S),
    }
    text = files("shoal").joinpath("systemd/shoal.service").read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _repository(text: str) -> str:
    """A repository as an absolute path or URL, since a service starts in another directory than the user's."""
    if is_cloud(text):
        return text
    directory = Path(text).absolute()
    if not directory.is_dir():
        raise CommandLineError(f"--model-repository: {directory} is not a directory")
    return str(directory)


def quote(word: str) -> str:
    """A word of a command in the syntax of systemd.service(5): `%` and `$` are doubled, the rest is escaped as in C."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    escaped = escaped.replace("%", "%%").replace("$", "$$")
    return escaped if escaped and shlex.quote(word) == word else f'"{escaped}"'


def _command() -> Path:
    """The path of the `shoal` that belongs to this interpreter: in a virtual environment its neighbour."""
    folders = (Path(sys.executable).parent, Path(sysconfig.get_path("scripts")),
               Path(sysconfig.get_path("scripts", f"{os.name}_user")))  # fmt: skip
    for folder in folders:
        if os.access(folder / "shoal", os.X_OK):
            return folder / "shoal"
    looked = ", ".join(dict.fromkeys(map(str, folders)))
    raise CommandLineError(f"the command 'shoal' of this Python is not installed (looked in {looked})")


def _user(given: str | None, environ: Mapping[str, str]) -> str:
    name = given or environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    if not given and name == "root":
        raise CommandLineError("who should the service run as? Say --user <name>; a model server needs no root")
    try:
        return pwd.getpwnam(name).pw_name
    except KeyError:
        raise CommandLineError(
            f"there is no user '{name}'; make one: useradd --system --no-create-home {shlex.quote(name)}"
        ) from None


def _write(path: Path, unit: str, *, overwrite: bool) -> None:
    try:
        with path.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(unit)
    except FileExistsError:
        raise CommandLineError(f"{path} is there already; --force overwrites it") from None
    except OSError as error:
        raise CommandLineError(
            f"cannot write {path}: {error.strerror}. Run it with sudo, or print the unit with --output -"
        ) from None
