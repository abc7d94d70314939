"""The verb `key`: a fresh API key, printed once, and the entry for it in the file of --api-keys.

The file gets the key's SHA-256: who reads the file cannot use the key. A running server reads the file again by itself.
"""

import argparse
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.api_keys import LIMITS, SCOPES, entry_of, new_key, parse_keys
from shoal.cli.serve import CommandLineError
from shoal.cli.verb import EXIT_DONE, FailedError, VerbParser, run_verb, show
from shoal.errors import InvalidArgumentError

_HELP = """\
Make an API key. The key goes to stdout and is kept nowhere: give it to those who are to use it. Its entry for the file
of --api-keys goes to stderr or, with --file, into that file, which is made if there is none. A server that uses the
file needs no restart. Clients send 'Authorization: Bearer KEY', or 'X-API-Key: KEY'.

Examples:
  shoal key shop --model 'resnet*' --file keys.json   # may ask these models
  shoal key trial --rate 5 --burst 10 --max-in-flight 2 --file keys.json
  shoal key deploy --scope admin --file keys.json     # may load, unload and configure
  shoal key prometheus --scope metrics --file keys.json

Options:
  --scope <scope>     infer, admin or metrics; repeat it for several (default: infer)
  --model <pattern>   models that the key is for, as a shell's pattern; repeat it for several (default: *)
  --rate <number>     most requests for inference in a second, of all processes and protocols together
  --burst <number>    most requests that may come at once (default: as many as --rate allows in a second)
  --max-in-flight <number>  most requests for inference at the same time
  --file <file>       add the entry to this file
  --json              print JSON: {"name", "key", "entry", "wrote": [file]}; the key is in it, and nowhere else
  --help              print this and exit

Exit codes: 0 done; 1 the command is wrong; 2 the file could not be changed.
"""


def key(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Make a key; returns the exit code."""
    parser = VerbParser("key", "<name> [options]", _HELP)
    parser.add_asked("name", "Whose key? Name who uses it, as in: shoal key shop --file keys.json")
    parser.add_argument("--scope", action="append", choices=SCOPES)
    parser.add_argument("--model", action="append")
    parser.add_argument("--rate", dest="requests_per_second", type=float)
    parser.add_argument("--burst", type=int)
    parser.add_argument("--max-in-flight", type=int)
    parser.add_argument("--file")
    return run_verb(parser, argv, _make)


def _make(arguments: argparse.Namespace) -> int:
    text = new_key()
    limits = {name: value for name in LIMITS if (value := getattr(arguments, name)) is not None}
    entry = entry_of(text, arguments.scope or ["infer"], arguments.model or ["*"], limits)
    entries = {arguments.name: entry}
    try:
        parse_keys(json.dumps(entries).encode())
    except InvalidArgumentError as error:
        raise CommandLineError(str(error)) from error
    if arguments.file is None and not arguments.json:
        print(json.dumps(entries, indent=2), file=sys.stderr)
    elif arguments.file is not None:
        try:
            _add(Path(arguments.file), entries)
        except (OSError, InvalidArgumentError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise FailedError(f"'{arguments.file}' is not changed: {why}") from None
    wrote = [] if arguments.file is None else [arguments.file]
    told = {"name": arguments.name, "key": text, "entry": entry, "wrote": wrote}
    show(told, text, as_json=arguments.json)
    return EXIT_DONE


def _add(path: Path, entries: Mapping[str, Any]) -> None:
    """Add entries to a file of keys, whole or not at all. Raises OSError, InvalidArgumentError."""
    document: dict[str, Any] = {}
    mode = 0o600
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        pass  # the file is made below, with mode 0600
    else:
        parse_keys(data)
        document, mode = json.loads(data), path.stat().st_mode & 0o777
    for name in entries:
        if name in document:
            raise InvalidArgumentError(f"it has a key '{name}' already")
    real = path.resolve()
    part = real.with_name(f".{real.name}.{secrets.token_hex(4)}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w", encoding="utf-8") as file:
        json.dump({**document, **entries}, file, indent=2)
        file.write("\n")
    part.replace(real)  # at once, so that no reader sees a file that is half written
