"""The verb `check`: what is wrong with the models of a repository, before a server loads them (findings.py)."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.colour import BAD, NOTE, coloured
from shoal.cli.models import counted
from shoal.cli.serve import CommandLineError
from shoal.cli.served_paths import absent
from shoal.cli.verb import EXIT_DONE, VerbParser, not_empty, run_verb
from shoal.errors import ShoalError
from shoal.file_kinds import is_dir, is_file

if TYPE_CHECKING:  # imported only when needed, so that --help is quick
    from shoal.cli.findings import Finding

EXIT_FOUND = 2
_QUESTION = "Which repository? Name its directory."
_COLOURS = {r"^\S.*?: (error): ": BAD, r"^\S.*?: (warning): ": NOTE}

_HELP = """\
Say what is wrong with the models of a repository, without loading them: layout, config.pbtxt, ensembles, files, names,
datatypes and shapes in ONNX files, settings of frameworks, Python environments, warm-up, the source of every model.py.
No code of a model runs, and no framework is needed; what only a framework finds in a model's file, a load finds
(shoal run <model directory> --sample ones).

Examples:
  shoal check model_repository
  shoal check model_repository/simple                # one model; an ensemble is checked with the models beside it
  shoal check models more_models --strict            # several repositories of one server; in CI: warnings fail, too

Options:
  --strict   warnings fail, too
  --json     print JSON: {"models": […], "findings": [{"severity", "model", "path", "line", "text"}, …]}
  --help     print this and exit

Each finding is a line `path:line: error: text`. Exit codes: 0 no errors; 1 the command is wrong; 2 errors were found.
"""


def check(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Print the findings; returns the exit code."""
    parser = VerbParser("check", "<repository or model directory> … [options]", _HELP)
    parser.add_argument("places", nargs="*", type=not_empty(_QUESTION, Path))
    parser.add_argument("--strict", action="store_true")
    return run_verb(parser, argv, _check)


def _check(arguments: argparse.Namespace) -> int:
    from shoal.cli import findings

    if not arguments.places:
        raise CommandLineError(_QUESTION)
    for place in arguments.places:
        if not is_dir(place):
            raise CommandLineError(
                f"'{place}' is a file, and what is checked is the directory of a model or of several."
                if is_file(place)
                else absent("directory", place)
            )
    try:
        models, found = findings.check(arguments.places)
    except ShoalError as error:
        raise CommandLineError(str(error)) from None
    num_errors = sum(each.severity == findings.ERROR for each in found)
    if arguments.json:
        rows = [{**each._asdict(), "path": str(each.path)} for each in found]
        print(json.dumps({"models": models, "findings": rows}, indent=2))
    else:
        for each in found:
            print(coloured(str(each), _COLOURS))
        print(_summary(models, found, num_errors))
    return EXIT_FOUND if num_errors or (arguments.strict and found) else EXIT_DONE


def _summary(models: Sequence[str], found: "Sequence[Finding]", num_errors: int) -> str:
    num_faulty = len({each.model for each in found})
    if not models:
        return "There are no models: each is a directory in the repository."
    start = f"{counted(len(models), 'model')}: "
    if not found:
        return f"{start}nothing is wrong that shows without loading {'it' if len(models) == 1 else 'them'}."
    return (
        start + f"{counted(num_errors, 'error')} and {counted(len(found) - num_errors, 'warning')} in "
        f"{counted(num_faulty, 'model')}."
    )
