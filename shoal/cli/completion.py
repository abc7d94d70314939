"""The verb `completion`: prints the shell code that asks for completions of `shoal`'s commands; completing.py
answers."""

import argparse
from collections.abc import Mapping, Sequence

from shoal.cli.verb import EXIT_DONE, VerbParser, run_verb

SHELLS = ("bash", "zsh", "fish")
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
    parser = VerbParser("completion", "bash|zsh|fish", _HELP, has_json=False)
    parser.add_asked("shell", f"Which shell? One of {', '.join(SHELLS)}.", choices=SHELLS)
    return run_verb(parser, argv, _print)


def _print(given: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["shoal"], shell=given.shell))
    return EXIT_DONE
