"""The verb `samples`: the sample models, which are installed with Shoal, as a model repository of the user's own."""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from shlex import quote

from shoal.cli.serve import CommandLineError
from shoal.cli.verb import EXIT_DONE, VerbParser, run_verb, show
from shoal.file_kinds import exists

_HELP = """\
Write the sample models into a directory, which must not be there yet: a model repository to serve, read and change. Its
README.md says what each model takes, gives and shows.

Example:
  shoal samples models && shoal serve models

Options:
  --json     print JSON: {"models": [names], "wrote": [directory]}
  --help     print this and exit

Exit codes: 0 done; 1 the command is wrong, or the directory is there.
"""


def samples(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Write the sample models; returns the exit code."""
    parser = VerbParser("samples", "<directory>", _HELP)
    parser.add_asked("directory", "Into which directory? Name one that is not there yet.")
    return run_verb(parser, argv, _write)


def _write(arguments: argparse.Namespace) -> int:
    directory = Path(arguments.directory)
    if exists(directory) or directory.is_symlink():
        raise CommandLineError(f"'{directory}' is there already, and stays as it is: name another directory.")
    try:
        with as_file(files("shoal").joinpath("model_repository")) as installed:
            copy_models(installed, directory)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)  # the directory was not there before
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror  # a shutil.Error lists files
        raise CommandLineError(f"'{directory}' cannot be written: {why}") from None
    models = sorted(path.name for path in directory.iterdir() if path.is_dir())
    text = f"Wrote {len(models)} models into {directory}\nServe them:  shoal serve {quote(str(directory))}"
    show({"models": models, "wrote": [str(directory)]}, text, as_json=arguments.json)
    return EXIT_DONE


def copy_models(repository: Path, directory: Path) -> None:
    """Copy a model repository, and give each model that has no file an empty version directory, which a wheel lacks."""
    shutil.copytree(repository, directory, ignore=shutil.ignore_patterns("__pycache__", ".gitkeep"))
    for model in directory.iterdir():
        if model.is_dir():
            (model / "1").mkdir(exist_ok=True)
