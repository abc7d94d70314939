"""The verb `build-engine`: builds a TensorRT engine from an ONNX file, once, on the GPU that will run it."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from shoal.cli.serve import CommandLineError
from shoal.cli.verb import EXIT_DONE, VerbParser, run_verb, show
from shoal.environments.cache import user_cache
from shoal.errors import ShoalError
from shoal.file_kinds import is_dir, is_file

_HELP = """\
Build a TensorRT engine from an ONNX file. It runs on the kind of GPU and the version of TensorRT that built it, so do
this where it will be served. The GPU used is the first of CUDA_VISIBLE_DEVICES, else CUDA's device 0. An engine is
kept, and taken again for the same file, options, GPU and version.

Examples:
  shoal build-engine model.onnx model_repository/m/1/model.plan
  shoal build-engine model.onnx model.plan --max-batch-size 32 --fp16
  shoal build-engine model.onnx model.plan --shape X=1x16:8x128:32x512    # least:best:most, of one input

Options:
  --shape <input>=<least>:<best>:<most>  shapes of an input; needed where more than its first dimension is dynamic;
                                         repeat it for several
  --max-batch-size <integer>     most of a dynamic first dimension, for which the engine is made fastest (default: 8)
  --fp16                         let TensorRT compute in FP16 (TensorRT 10 only)
  --workspace-mib <integer>      MiB the build may use (default: all there is)
  --cache-directory <directory>  where engines are kept (default: the user's cache)
  --json                         print JSON: {"wrote": [engine]}
  --help                         print this and exit

Exit codes: 0 done; 1 the command is wrong, or no engine can be built.
"""


def build_engine(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Build an engine, or copy the one built before; returns the exit code."""
    from shoal.workers.backends.tensorrt.build import Order, build, read_shape  # imported here: it brings numpy

    def shape(text: str) -> object:
        try:
            return read_shape(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    parser = VerbParser("build-engine", "<model.onnx> <model.plan> [options]", _HELP)
    parser.add_asked("onnx", "Of which model? Name its ONNX file, then the file of the engine.")
    parser.add_asked("plan", "Into which file? Name that of the engine, as in model.plan.")
    parser.add_argument("--shape", action="append", type=shape, default=[])
    parser.add_argument("--max-batch-size", type=int, default=8)
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--workspace-mib", type=int, default=0)
    parser.add_argument("--cache-directory", default="")

    def work(given: argparse.Namespace) -> int:
        order = Order(
            _file(given.onnx),
            dict(given.shape),
            given.max_batch_size,
            fp16=given.fp16,
            workspace_mib=given.workspace_mib,
        )
        target = Path(given.plan)
        if not is_dir(target.absolute().parent):
            raise CommandLineError(f"there is no directory '{target.parent}' to put '{target.name}' into")
        say = partial(print, file=sys.stderr if given.json else sys.stdout, flush=True)
        build(order, target, _cache_directory(given.cache_directory, environ), say)
        show({"wrote": [str(target)]}, f"Wrote {target}", as_json=given.json)
        return EXIT_DONE

    return run_verb(parser, argv, work, ShoalError, OSError)


def _file(text: str) -> Path:
    path = Path(text)
    if not is_file(path):
        raise CommandLineError(f"there is no file '{text}'")
    return path


def _cache_directory(flag: str, environ: Mapping[str, str]) -> Path:
    return Path(flag) if flag else user_cache(environ, "engines", "--cache-directory") / "engines"
