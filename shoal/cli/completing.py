"""The answer to a shell that completes a command of `shoal` (completion.py).

argcomplete does it: the shell runs the command, which then does nothing but print the words that may follow. So a shell
offers the flags of the installed version, and the models of the running server.
"""

import argparse
import os
from collections.abc import Collection, Mapping
from typing import Any

from shoal.cli.remote import DEFAULT_URL, NoResponseError, RefusedError, RemoteServer

#: The variable by which a shell asks; its value is the number, from 1, of the first word that is the parser's.
ASKING = "_ARGCOMPLETE"
#: Verbs of which an argument is a model of a running server.
_OF_MODELS = (
    "infer", "bench", "models", "load", "unload", "scale", "explain", "top", "rollout", "record", "shadow",
)  # fmt: skip
#: The most seconds that a Tab waits for a server (ours).
_TIMEOUT_S = 10.0


def verb_asked(verbs: Collection[str], environ: Mapping[str, str]) -> str | None:
    """The verb that stands before the word that is being completed; None if the verb itself is."""
    from argcomplete.lexers import split_line

    *_, words, _ = split_line(environ["COMP_LINE"], int(environ["COMP_POINT"]))
    return words[1] if len(words) > 1 and words[1] in verbs else None


def answer_verbs(verbs: Collection[str]) -> None:
    """Answer the shell that completes a verb; ends the process."""
    parser = argparse.ArgumentParser(prog="shoal")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("verb", choices=list(verbs))
    answer(parser)


def answer(parser: argparse.ArgumentParser) -> None:
    """Answer the shell that completes an argument of `parser`; ends the process."""
    import argcomplete

    if parser.prog.partition(" ")[2] in _OF_MODELS:
        for action in parser._actions:
            if action.dest in ("model", "what", "shown"):
                action.completer = _models  # type: ignore[attr-defined]  # argcomplete's own place for it
    argcomplete.autocomplete(parser)


def _models(prefix: str, **_: Any) -> list[str]:
    """The names of the models of the running server; none where no server answers."""
    try:
        server = RemoteServer(os.environ.get("SHOAL_URL") or DEFAULT_URL, timeout_s=_TIMEOUT_S, headers={})
        try:
            names = sorted({str(row["name"]) for row in server.index()})
        finally:
            server.close()
    except (NoResponseError, RefusedError, ValueError, KeyError):
        return []
    return [name for name in names if name.startswith(prefix)]
