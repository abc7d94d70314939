"""The verb `install-systemd`: writes the units that run this server as a service of systemd.

Fills systemd/shoal.service with this machine's values: the installed command, the model repositories, the user. Flags
that `shoal serve` would refuse are refused here, before a service fails to start. Enables and starts nothing.
"""

import argparse
import os
import pwd
import re
import shlex
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.resources import files
from ipaddress import ip_network
from pathlib import Path

from shoal.cli.request_arguments import divided
from shoal.cli.serve import CommandLineError, parse
from shoal.cli.verb import EXIT_DONE, VerbParser, run_verb, show
from shoal.cloud_url import is_cloud
from shoal.file_kinds import is_dir
from shoal.options import Endpoint, ServerOptions, endpoints

UNIT = Path("/etc/systemd/system/shoal.service")
INSTANCES = UNIT.with_name("shoal@.service")
#: The directory of files that have the flags of one instance of the unit each.
FLAGS_DIRECTORY = Path("/etc/shoal")
#: Seconds that systemd waits beyond --exit-timeout-secs: processes then have 2 s to end, and freeing much memory takes
#: time (ours).
STOP_MARGIN_S = 15
#: The directories that ProtectHome= hides (systemd.exec(5)), and names of addresses in systemd.resource-control(5).
_HOMES = ("/home", "/root", "/run/user")
_NAMED_ADDRESSES = frozenset({"any", "localhost", "link-local", "multicast"})

_HELP = f"""\
Write the unit that runs this server as a service of systemd. What follows -- is given to `shoal serve` as it stands.

Examples:
  shoal install-systemd --model-repository /srv/models --output -        # look at it first
  sudo shoal install-systemd --model-repository /srv/models --socket -- --http-address 0.0.0.0

Options:
  --model-repository <directory or URL>  directory of models, or where in cloud storage it lies; repeat it for several
  --user <name>          who the service runs as (default: you, also under sudo)
  --output <file>        where to write the unit; - prints it (default: {UNIT})
  --socket               also write a .socket unit: systemd holds the ports while the server restarts
  --gpu                  also write a drop-in that gives the service NVIDIA's devices
  --instances            write the template {INSTANCES.name}: each instance adds SHOAL_FLAGS of
                         {FLAGS_DIRECTORY}/<instance>.env
  --clients <addresses>  exchange packets with these alone, name servers included: networks, or localhost, separated by
                         commas
  --force                overwrite a unit that is there already
  --json                 print JSON: {{"units": {{path: text}}, "wrote": [paths], "next": [commands to type]}}
  --help                 print this and exit

Exit codes: 0 done; 1 the command is wrong, or a unit cannot be written.
"""


def install(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Write the unit, or print it; returns the exit code."""
    own, serve_flags = divided(argv)
    parser = VerbParser("install-systemd", "--model-repository <directory or URL> [options] [-- serve flags]", _HELP)
    parser.add_argument("--model-repository", action="append", default=[])
    parser.add_argument("--user")
    parser.add_argument("--output", default="")
    parser.add_argument("--clients", default="")
    for flag in ("--socket", "--gpu", "--instances", "--force"):
        parser.add_argument(flag, action="store_true")
    return run_verb(parser, own, lambda arguments: _install(arguments, serve_flags, environ))


def _install(arguments: argparse.Namespace, serve_flags: Sequence[str], environ: Mapping[str, str]) -> int:
    is_printed = arguments.output == "-"
    default = INSTANCES if arguments.instances else UNIT
    path = default if is_printed else Path(arguments.output or default).absolute()
    units = render(arguments, serve_flags, environ, path)
    if not is_printed:
        for each, text in units.items():
            _write(each, text, overwrite=arguments.force)
    enabled = [each.name for each in units if each.suffix == ".socket"] + [path.name]
    if arguments.instances:
        enabled = [path.name.replace("@.", "@NAME.")]
    then = ["systemctl daemon-reload", f"systemctl enable --now {' '.join(enabled)}"]
    names = [str(each) for each in units]
    told = {
        "units": dict(zip(names, units.values(), strict=True)),
        "wrote": [] if is_printed else names,
        "next": then,
    }
    if is_printed:
        said = "\n".join(units.values()).removesuffix("\n")
    else:
        flags = f"An instance's own flags are SHOAL_FLAGS in {FLAGS_DIRECTORY}/NAME.env.\n" * arguments.instances
        said = "\n  ".join([f"{flags}Wrote {', '.join(names)}. Next:\n", *then])
    show(told, said, as_json=arguments.json)
    return EXIT_DONE


def render(
    arguments: argparse.Namespace, serve_flags: Sequence[str], environ: Mapping[str, str], path: Path
) -> dict[Path, str]:
    """The units' texts, by their paths. Raises CommandLineError for arguments with which no server could start."""
    if "" in (arguments.model_repository or [""]):
        raise CommandLineError("Which models? Name their directory by --model-repository.")
    if arguments.instances and arguments.socket:
        raise CommandLineError("--socket has no place in a template: each instance has ports of its own")
    served = [f"--model-repository={_repository(each)}" for each in arguments.model_repository] + list(serve_flags)
    defaults = ServerOptions(http_address="127.0.0.1")
    options, _ = parse(served, prog="shoal serve", defaults=defaults, environ={})
    command = " ".join(map(quote, [str(_command()), "serve", *served]))
    values = {
        "USER": _user(arguments.user, environ),
        "COMMAND": f"{command} $SHOAL_FLAGS" if arguments.instances else command,
        "TIMEOUT_STOP_S": str(options.exit_timeout_secs + STOP_MARGIN_S),
        "ADDRESSES": _addresses(arguments.clients),
    }
    needed = [sys.prefix, sys.base_prefix, pwd.getpwnam(values["USER"]).pw_dir, *_paths(served)]
    values["PROTECT_HOME"] = "read-only" if any(map(_is_in_a_home, needed)) else "yes"
    service = _template("shoal.service", values)
    if arguments.instances:
        flags = f"EnvironmentFile=-{FLAGS_DIRECTORY}/%i.env\nExecStart="
        service = service.replace("a model server\n", "a model server (%i)\n", 1).replace("ExecStart=", flags, 1)
    units = {path: service}
    if arguments.socket:
        listen = "\n".join(f"ListenStream={_address(each)}" for each in endpoints(options))
        units[path.with_suffix(".socket")] = _template("shoal.socket", {"LISTEN": listen, "SERVICE": path.name})
    if arguments.gpu:
        units[path.with_name(f"{path.name}.d") / "gpu.conf"] = _template("gpu.conf", {})
    return units


def _template(name: str, values: Mapping[str, str]) -> str:
    text = files("shoal").joinpath(f"systemd/{name}").read_text(encoding="utf-8")
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text


def _address(endpoint: Endpoint) -> str:
    """An endpoint's address in the syntax of systemd.socket(5)."""
    host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    return f"{host}:{endpoint.port}"


def _addresses(text: str) -> str:
    """The lines that restrict a service to packets of these addresses, if any. Raises CommandLineError."""
    if not text:
        return "# Packets of all addresses: `shoal install-systemd --clients` leaves those of some."
    found = []
    for word in filter(None, re.split(r"[\s,]+", text)):
        if word not in _NAMED_ADDRESSES:
            try:
                ip_network(word)
            except ValueError as error:
                named = ", ".join(sorted(_NAMED_ADDRESSES))
                raise CommandLineError(f"--clients: {error}; give addresses, networks, or one of {named}") from None
        found.append(word)
    return f"IPAddressDeny=any\nIPAddressAllow={' '.join(found)}"


def _paths(served: Sequence[str]) -> list[str]:
    """The arguments of a server that may be paths."""
    return [word for argument in served for word in argument.split("=") if word.startswith("/")]


def _is_in_a_home(path: str) -> bool:
    """Whether a path lies where ProtectHome= hides it, itself or by a link."""
    return any(each.is_relative_to(home) for each in (Path(path).absolute(), Path(path).resolve()) for home in _HOMES)


def _repository(text: str) -> str:
    """A repository as an absolute path or URL, since a service starts in another directory than the user's."""
    if is_cloud(text):
        return text
    directory = Path(text).absolute()
    if not is_dir(directory):
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
    try:
        name = given or environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        sentence = f"user {os.getuid()} has no name; who should the service run as? Say --user <name>"
        raise CommandLineError(sentence) from None
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
        if path.suffix == ".conf":
            path.parent.mkdir(exist_ok=True)  # the directory of the unit's drop-in files
        with path.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(unit)
    except FileExistsError:
        raise CommandLineError(f"{path} is there already; --force overwrites it") from None
    except OSError as error:
        raise CommandLineError(
            f"cannot write {path}: {error.strerror}. Run it with sudo, or print the unit with --output -"
        ) from None
