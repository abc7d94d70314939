"""The verb `import`: a report on a TorchServe store or config.properties: which archives are served how, which keys of
the file are ignored.

On request it writes the store as a repository in Triton's layout. It reads archives as the server does, and runs no
handler.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from shoal.cli.serve import CommandLineError
from shoal.cli.served_paths import absent
from shoal.cli.torchserve.configuration import settings_of_options
from shoal.cli.torchserve.keys import KEYS, read_values
from shoal.cli.torchserve.properties import PropertiesError, read_properties
from shoal.cli.verb import EXIT_DONE, VerbParser, run_verb, show
from shoal.file_kinds import exists, is_dir, is_file
from shoal.repository.found import FoundModel
from shoal.store_settings import ALL, StoreSettings
from shoal.torchserve_errors import torchserve_fault

EXIT_FOUND = 2

_HELP = """\
Print what would be served of TorchServe's model store, or of a config.properties, and how; every key of the file that
is ignored, with the reason; every archive that would be refused. Nothing is changed.

Examples:
  shoal import model_store
  shoal import config.properties --model-store model_store
  shoal import config.properties --output models    # and write models/NAME/config.pbtxt and versions

Options:
  --model-store <directory>  the store of a config.properties that does not name it, as for `torchserve`
  --output <directory>       write the models as a repository of Triton's layout, into a directory that is not there yet
  --json                     print JSON: {"models": [{"name", "version", "handler", …} or {"name", "error"}, …],
                             "notes": [sentences, as about keys of the file], "wrote": [directory]}
  --help                     print this and exit

Exit codes: 0 all is served; 1 the command is wrong; 2 an archive would be refused.
"""


class _Source(NamedTuple):
    settings: StoreSettings
    sentences: Sequence[str]  # about keys of config.properties


def import_store(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Print the report; returns the exit code."""
    parser = VerbParser("import", "<model store or config.properties> [options]", _HELP)
    parser.add_asked("source", "Which store? Name its directory, or a config.properties.", type=Path)
    parser.add_argument("--model-store")
    parser.add_argument("--output", type=Path)
    return run_verb(parser, argv, lambda arguments: _import(arguments, environ), PropertiesError, OSError)


def _import(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from shoal.repository.torchserve.configuration import Machine
    from shoal.repository.torchserve.store import TorchServeStore

    if arguments.output is not None and (exists(arguments.output) or arguments.output.is_symlink()):
        raise CommandLineError(f"'{arguments.output}' exists already, and is left as it is.")
    source = _source(arguments.source, arguments.model_store, environ)
    if not is_dir(source.settings.directory):
        raise CommandLineError(f"There is no model store '{source.settings.directory}'.")
    # All archives in the store, also those that the file does not load; nothing is downloaded.
    settings = replace(source.settings, load_models=(ALL,))
    with tempfile.TemporaryDirectory(prefix="shoal-import-") as work:
        machine = Machine(len(os.sched_getaffinity(0)), ())
        found = list(TorchServeStore(settings, Path(work, "unpacked"), machine).load_at_start())
        notes: list[str] = []
        wrote: list[str] = []
        if not found:
            notes.append(
                f"no archive and no folder in '{settings.directory}'; `shoal check` looks at Triton's repositories"
            )
        served = [model for model in found if model.error is None]
        if arguments.output is not None and served:
            notes += _write(arguments.output, served)
            wrote.append(str(arguments.output))
    rows = [_row(model) for model in found]
    lines = [*source.sentences, *map(_line, rows), *notes, *(f"Wrote {path}" for path in wrote)]
    told = {"models": rows, "notes": [*source.sentences, *notes], "wrote": wrote}
    show(told, "\n".join(lines), as_json=arguments.json)
    return EXIT_FOUND if any("error" in row for row in rows) else EXIT_DONE


def _source(path: Path, store: str | None, environ: Mapping[str, str]) -> _Source:
    if is_dir(path):
        if store is not None:
            raise CommandLineError(f"'{path}' is a store itself: --model-store belongs to a config.properties.")
        return _Source(StoreSettings(path), ())
    if not is_file(path):
        raise CommandLineError(absent("directory or file", path))
    given = read_properties(path, environ)
    values, warnings = read_values(given, {} if store is None else {"model_store": store}, environ)
    fields, more = settings_of_options(values, "")
    honoured = [f"{name} is honoured" for name in given if name in KEYS and not KEYS[name].ignored]
    return _Source(fields["store"], [*honoured, *warnings, *more])


def _row(model: FoundModel) -> dict[str, Any]:
    """The settings by which a model of the store would be served, or why it would be refused."""
    if model.error is not None:
        fault = torchserve_fault(str(model.error))
        return {"name": model.name, "error": str(model.error) if fault is None else fault.message}
    said = {key: value["string_value"] for key, value in model.config["parameters"].items()}
    num_waiting = said.get("ts_job_queue_size")  # of models with sequences; others have max_queue_size
    if num_waiting is None:
        num_waiting = model.config["dynamic_batching"]["default_queue_policy"]["max_queue_size"]
    return {
        "name": model.name,
        "version": said["ts_version"],
        "handler": said["ts_handler"],
        "workers": int(said["ts_min_workers"]),
        "batch_size": int(said["ts_batch_size"]),
        "max_queue_size": int(num_waiting),
        "response_timeout_s": int(said["ts_response_timeout_s"]),
    }


def _line(row: Mapping[str, Any]) -> str:
    if "error" in row:
        return f"{row['name']}: refused: {row['error']}"
    return (
        f"{row['name']} {row['version']}: handler {row['handler']}, {row['workers']} workers, "
        f"batches of up to {row['batch_size']}, {row['max_queue_size']} waiting requests, "
        f"{row['response_timeout_s']} s for a batch"
    )


def _write(output: Path, models: Iterable[FoundModel]) -> list[str]:
    """Write the models as a repository; returns sentences about configurations that the repository has no place for."""
    from shoal.model_config import pbtxt

    sentences: list[str] = []
    versions: dict[str, int] = {}
    for model in models:
        number = versions[model.name] = versions.get(model.name, 0) + 1
        (found,) = model.versions.values()
        shutil.copytree(found.directory, output / model.name / str(number))
        if number == 1:
            (output / model.name / "config.pbtxt").write_text(pbtxt.to_text(model.config), encoding="utf-8")
        else:
            sentences.append(
                f"{model.name}: version {number} has the configuration of version 1, since a model has one in Triton's "
                "layout"
            )
    return sentences
