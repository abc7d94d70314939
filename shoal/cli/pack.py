"""The verb `pack`: an archive for TorchServe's model store, with the flags of torch-model-archiver.

The archive is a .mar, a zip: its files lie at the root, MAR-INF/MANIFEST.json says what they are.
"""

import argparse
import contextlib
import json
import os
import re
import secrets
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from shoal.cli.serve import CommandLineError
from shoal.cli.verb import EXIT_DONE, VerbParser, run_verb, show
from shoal.file_kinds import exists, is_dir, is_file
from shoal.repository.torchserve.torch_use import BUILT_IN

_HELP = """\
Write NAME.mar, an archive that TorchServe's model store takes: `shoal serve --model-store` and `torchserve`.

Example:
  shoal pack --model-name digits --version 1.0 --handler handler.py --serialized-file digits.pt

Options:
  --model-name <name>          the model's name, and the archive's
  --version, -v <text>         the model's version
  --handler <file[:function]>  the handler's file, or the name of a built-in one (image_classifier)
  --serialized-file <file>     weights
  --model-file <file>          the module with the model's class, for weights alone
  --extra-files <paths>        further files, and directories for their contents; separated by commas
  --requirements-file, -r <file>  packages that the handler needs
  --config-file, -c <file>     model-config.yaml
  --export-path <directory>    where the archive is written (default: here)
  --force, -f                  replace an archive that is there
  --json                       print JSON: {"model", "version", "wrote": [archive]}
  --help                       print this and exit

Exit codes: 0 done; 1 the command is wrong, or the archive is there.
"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*", re.ASCII)
#: Flag → the manifest's member.
_FILES = {
    "serialized_file": "serializedFile",
    "model_file": "modelFile",
    "requirements_file": "requirementsFile",
    "config_file": "configFile",
}
_SKIPPED = frozenset({"__pycache__", "__MACOSX"})


def pack(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Write the archive; returns the exit code."""
    parser = VerbParser("pack", "--model-name <name> --handler <file or name> --version <version> [options]", _HELP)
    for flags in (
        ("--model-name",), ("--version", "-v"), ("--handler",), ("--serialized-file",), ("--model-file",),
        ("--extra-files",), ("--requirements-file", "-r"), ("--config-file", "-c"),
    ):  # fmt: skip
        parser.add_argument(*flags, default="")
    parser.add_argument("--export-path", type=Path, default=Path())
    parser.add_argument("--force", "-f", action="store_true")
    return run_verb(parser, argv, _write, OSError)


def _write(arguments: argparse.Namespace) -> int:
    archive = str(_pack(arguments))
    told = {"model": arguments.model_name, "version": arguments.version, "wrote": [archive]}
    show(told, f"Wrote {archive}", as_json=arguments.json)
    return EXIT_DONE


def _pack(arguments: argparse.Namespace) -> Path:
    for flag in ("model_name", "version", "handler"):
        if not getattr(arguments, flag):
            raise CommandLineError(f"--{flag.replace('_', '-')} is needed.")
    if not _NAME.fullmatch(arguments.model_name):
        raise CommandLineError(f"'{arguments.model_name}' is no name of a model: letters, digits, '_', '-' and '.'.")
    archive = Path(arguments.export_path, f"{arguments.model_name}.mar")
    if not is_dir(arguments.export_path):
        raise CommandLineError(f"There is no directory '{arguments.export_path}' to put '{archive.name}' into.")
    if exists(archive) and not arguments.force:
        raise CommandLineError(f"'{archive}' exists already, and is left as it is; --force replaces it.")
    sources = dict(_sources(arguments))
    handler = Path(arguments.handler.partition(":")[0]).name
    if handler not in BUILT_IN and not sources.keys() & {handler, f"{handler}.py"}:
        raise CommandLineError(
            f"There is no file '{handler}.py' for --handler, and none of the built-in handlers has that name: "
            f"{', '.join(sorted(BUILT_IN))}."
        )
    part = archive.with_name(f".{archive.name}.{secrets.token_hex(4)}")
    try:
        # A zip has no years before 1980, which files of reproducible images have.
        with zipfile.ZipFile(part, "x", zipfile.ZIP_DEFLATED, strict_timestamps=False) as opened:
            for name, source in sorted(sources.items()):
                opened.write(source, name)
            opened.writestr("MAR-INF/MANIFEST.json", json.dumps(_manifest(arguments), indent=2))
        part.replace(archive)  # publishes: a whole archive
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    return archive


def _manifest(arguments: argparse.Namespace) -> dict[str, object]:
    module, colon, function = arguments.handler.partition(":")
    model = {
        "modelName": arguments.model_name,
        "modelVersion": arguments.version,
        "handler": Path(module).name + colon + function,
    }
    named = {member: Path(getattr(arguments, flag)).name for flag, member in _FILES.items() if getattr(arguments, flag)}
    return {
        "createdOn": datetime.now().strftime("%d/%m/%Y %H:%M:%S"),
        "runtime": "python",
        "model": {**model, **named},
        "archiverVersion": "0.12.0",  # the torch-model-archiver whose format this is
    }


def _sources(arguments: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Each file's path in the archive, and the file. Raises CommandLineError for one that is not there."""
    handler = Path(arguments.handler.partition(":")[0])
    given = [Path(getattr(arguments, flag)) for flag in _FILES if getattr(arguments, flag)]
    if handler.suffix != ".py" and not is_file(handler):
        handler = handler.with_name(f"{handler.name}.py")  # torch-model-archiver, too, completes a name
        given += [handler] if is_file(handler) else []
    else:
        given.append(handler)
    extra = [Path(text) for text in arguments.extra_files.split(",") if text]
    for file in given:
        if not is_file(file):
            raise CommandLineError(f"There is no file '{file}'.")
        yield file.name, file
    for path in extra:
        if is_file(path):
            yield path.name, path
        elif is_dir(path):
            yield from _contents(path)
        else:
            raise CommandLineError(f"There is no file or directory '{path}'.")


def _contents(directory: Path) -> Iterator[tuple[str, Path]]:
    """The files in a directory; hidden directories are left out."""
    for place, directories, names in os.walk(directory):
        directories[:] = sorted(each for each in directories if each[0] != "." and each not in _SKIPPED)
        for name in names:
            file = Path(place, name)
            if not is_file(file):
                raise CommandLineError(f"'{file}' is neither a file nor a directory.")
            yield file.relative_to(directory).as_posix(), file
