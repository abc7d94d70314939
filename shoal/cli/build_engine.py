"""The verb `build-engine`: builds a TensorRT engine from an ONNX file, once, on the GPU that will run it."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from shoal.cli.serve import CommandLineError, Parser
from shoal.cli.verb import EXIT_DONE, run_verb, show
from shoal.errors import ShoalError

PROG = "shoal build-engine"
_EXAMPLES = """\
Examples:
  shoal build-engine model.onnx model_repository/m/1/model.plan
  shoal build-engine model.onnx model.plan --max-batch-size 32 --fp16
  shoal build-engine model.onnx model.plan --shape X=1x16:8x128:32x512    # least:best:most, of one input
"""


def build_engine(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Build an engine, or copy the one built before; returns the exit code."""
    from shoal.workers.backends.tensorrt.build import Order, build  # imported here: it brings numpy

    def work(given: argparse.Namespace) -> int:
        order = Order(
            _file(given.onnx),
            dict(given.shape),
            given.max_batch_size,
            fp16=given.fp16,
            workspace_mib=given.workspace_mib,
        )
        target = Path(given.plan)
        if not target.absolute().parent.is_dir():
            raise CommandLineError(f"there is no directory '{target.parent}' to put '{target.name}' into")
        say = partial(print, file=sys.stderr if given.json else sys.stdout, flush=True)
        build(order, target, _cache_directory(given.cache_directory, environ), say)
        show({"wrote": [str(target)]}, f"Wrote {target}", as_json=given.json)
        return EXIT_DONE

    return run_verb(_parser(), argv, "", work, ShoalError, OSError)


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise CommandLineError(f"there is no file '{text}'")
    return path


def _cache_directory(flag: str, environ: Mapping[str, str]) -> Path:
    user = environ.get("XDG_CACHE_HOME", "")
    return Path(flag or Path(user if user.startswith("/") else Path("~/.cache").expanduser(), "shoal", "engines"))


def _parser() -> Parser:
    from shoal.workers.backends.tensorrt.build import read_shape

    parser = Parser(
        prog=PROG,
        usage=f"{PROG} <model.onnx> <model.plan> [options]",
        description="Build a TensorRT engine from an ONNX file. It runs on the kind of GPU and the version of\n"
        "TensorRT that built it, so do this where it will be served. The GPU used is the first of\n"
        "CUDA_VISIBLE_DEVICES, else CUDA's device 0. An engine is kept, and taken again for the same file,\n"
        "options, GPU and version.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("onnx", help=argparse.SUPPRESS)
    parser.add_argument("plan", help=argparse.SUPPRESS)

    def shape(text: str) -> object:
        try:
            return read_shape(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    options = parser.add_argument_group("Options")
    options.add_argument(
        "--shape", action="append", type=shape, default=[], metavar="<input>=<least>:<best>:<most>",
        help="shapes of an input; needed where more than its first dimension is dynamic; repeat it for several",
    )  # fmt: skip
    options.add_argument(
        "--max-batch-size", type=int, default=8, metavar="<integer>",
        help="most of a dynamic first dimension, for which the engine is made fastest (default: 8)",
    )  # fmt: skip
    options.add_argument("--fp16", action="store_true", help="let TensorRT compute in FP16 (TensorRT 10 only)")
    options.add_argument(
        "--workspace-mib",
        type=int,
        default=0,
        metavar="<integer>",
        help="MiB the build may use (default: all there is)",
    )
    options.add_argument(
        "--cache-directory",
        default="",
        metavar="<directory>",
        help="where engines are kept (default: the user's cache)",
    )
    options.add_argument("--json", action="store_true", help='print JSON: {"wrote": [engine]}')
    options.add_argument("--help", "-h", action="help", help="print this and exit")
    return parser
