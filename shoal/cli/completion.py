"""The verb `completion`: code by which a shell asks for completions of `shoal`'s commands; completing.py answers."""

import argparse
from collections.abc import Mapping, Sequence

from shoal.cli.serve import CommandLineError, Parser
from shoal.cli.verb import EXIT_DONE, run_verb

SHELLS = ("bash", "zsh", "fish")
_USAGE = "shoal completion bash|zsh|fish"
_HELP = """\
Print what makes a shell complete the verbs, flags, files, and the models of a running server ($SHOAL_URL, or this
machine's), with the Tab key.

Examples:
  eval "$(shoal completion bash)"                                     # in ~/.bashrc
  eval "$(shoal completion zsh)"                                      # in ~/.zshrc, after compinit
  shoal completion fish > ~/.config/fish/completions/shoal.fish

Options:
  --help     print this and exit
"""


def completion(argv: Sequence[str], *, environ: Mapping[str, str]) -> int:
    """Print the shell's code; returns the exit code."""
    del environ
    parser = Parser(prog="shoal completion", usage=_USAGE, add_help=False)
    parser.add_argument("shell", nargs="?", choices=SHELLS)
    return run_verb(parser, argv, _HELP, _print)


def _print(given: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    if given.shell is None:
        raise CommandLineError(f"Which shell? One of {', '.join(SHELLS)}.")
    print(shellcode(["shoal"], shell=given.shell))
    return EXIT_DONE
