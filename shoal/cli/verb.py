"""The frame of verbs with a help text of their own: parse, print the help, or say what is wrong with the command."""

import argparse
import sys
from collections.abc import Callable, Sequence

from shoal.cli.serve import CommandLineError, Parser

EXIT_DONE, EXIT_MISUSED = 0, 1


def run_verb(
    parser: Parser,
    argv: Sequence[str],
    help_text: str,
    work: Callable[[argparse.Namespace], int],
    *misuse: type[Exception],
) -> int:
    """Call `work` with the arguments, and return the exit code that it returns; with --help, print `help_text` instead.

    A CommandLineError, and exceptions of the classes `misuse`, are printed with the usage; the exit code is then 1.
    """
    wrong: tuple[type[Exception], ...] = (CommandLineError, *misuse)
    parser.add_argument("--help", "-h", action="store_true")
    try:
        arguments = parser.parse_args(list(argv))
        if arguments.help:
            print(f"Usage: {parser.usage}\n\n{help_text}", end="")
            return EXIT_DONE
        return work(arguments)
    except wrong as error:
        print(f"{error}\nUsage: {parser.usage}\n'{parser.prog} --help' explains it.", file=sys.stderr)
        return EXIT_MISUSED
