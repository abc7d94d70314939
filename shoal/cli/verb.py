"""The frame of verbs: their arguments and help, the result, and every error: the command's, a file's or the server's.

With --json all that stdout gets is JSON: the result, or {"error": sentence}, as the server answers. What is for people
goes to stderr.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import takewhile
from typing import Any, TextIO, TypeVar

from shoal.cli.colour import printable_lines
from shoal.cli.help_text import for_terminal
from shoal.cli.remote import NoResponseError, RefusedError, UnreachableError
from shoal.cli.serve import CommandLineError, Parser
from shoal.errors import ConnectionLostError, ShoalError, TimedOutError
from shoal.passwords import without_passwords

T = TypeVar("T")

EXIT_DONE, EXIT_MISUSED, EXIT_REFUSED, EXIT_NO_ANSWER = 0, 1, 2, 3
#: The error where a command should name a model of a server, and names none.
WHICH_MODEL = "Which model? 'shoal models' lists those of a server."

#: A part of the server's sentence → advice.
_REMEDIES = {
    "explicit model load / unload is not allowed": "Models are loaded and unloaded by command only where the server "
    "was started with --model-control-mode=explicit.",
    "certificate verify failed": "Its certificate is not signed by one that is trusted here: --ca <file> names one.",
    "WRONG_VERSION_NUMBER": "It speaks no TLS there: its URL begins with http://.",
    "This API is restricted": "Send that header: --header '<name>: <value>'.",
    "failed to poll from model repository": "'shoal models' lists what the server found in its repositories.",
    "Request for unknown model": "'shoal models' lists the models that the server has.",
    "must specify a non-zero or non-empty correlation ID": "Its requests are of a sequence, which they name: "
    "--parameter sequence_id=1; the first has --parameter sequence_start=true, the last --parameter sequence_end=true.",
    "Method Not Allowed": "Does that port have another purpose, as that of the metrics? The API's is 8000, or what "
    "--http-port says.",
    "Not Found": "The server has no answer at this path: names of models have no '/', versions are numbers. Or it is "
    "Triton, or an older Shoal.",
}


class FailedError(Exception):
    """A verb could not do what it was asked; the message says why. `advice` is for people, in lines of its own."""

    def __init__(self, sentence: str, *advice: str, code: int = EXIT_REFUSED) -> None:
        super().__init__(sentence)
        self.advice = advice
        self.code = code


def is_json(argv: Sequence[str]) -> bool:
    """Whether a command asks for JSON; also for a wrong command, which has no parsed arguments. The flag may be
    shortened. What follows `--` belongs to another command."""
    return any(len(word) > 2 and "--json".startswith(word) for word in takewhile(lambda word: word != "--", argv))


@contextmanager
def models_on_stderr(*, as_json: bool) -> Iterator[TextIO]:
    """Yields stdout, for the time in which models run in this process. With JSON, what the models print goes to
    stderr."""
    stdout = sys.stdout
    if not as_json:
        yield stdout
        return
    with redirect_stdout(sys.stderr):
        yield stdout


def show(document: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a verb: the document as JSON for a program, or else the text."""
    print(json.dumps(document, indent=2) if as_json else text)


def show_before(step: Callable[[], object], document: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a verb that has one step left, which may fail. People see the result before the step. JSON is
    printed after the step: a document as by `show`, or, where the step raises, a line before the line of the error."""
    if not as_json:
        print(text)
    try:
        step()
    except Exception:
        if as_json:
            print(json.dumps(document))
        raise
    if as_json:
        show(document, text, as_json=True)


class VerbParser(Parser):
    """The arguments of a verb. `usage` follows its name; with --help, `text` is printed below the usage.

    `server_flag` is the flag that names the server to ask, for the advice where none answers.
    """

    def __init__(self, verb: str, usage: str, text: str, *, server_flag: str = "--url", has_json: bool = True) -> None:
        super().__init__(prog=f"shoal {verb}", usage=f"shoal {verb} {usage}", add_help=False)
        self.server_flag = server_flag
        self._text = text
        self.questions: dict[str, str] = {}  # argument → the error where it is missing
        if has_json:
            self.add_argument("--json", action="store_true")
        self.add_argument("--help", "-h", action="help")

    def add_asked(self, name: str, question: str, **options: Any) -> None:
        """Add an argument that must be given; `question` is the error where it is not, or is empty."""
        options["type"] = not_empty(question, options.get("type", str))
        self.add_argument(name, nargs="?", **options)
        self.questions[name] = question

    def parse_args(  # type: ignore[override]  # as in Parser
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Like `Parser.parse_args`. Raises CommandLineError for an argument that is missing, too."""
        found = super().parse_args(args, namespace)
        for name, question in self.questions.items():
            if getattr(found, name) is None:
                raise CommandLineError(question)
        return found

    def format_help(self) -> str:
        """The usage and the text, in lines that the terminal is wide enough for."""
        return for_terminal(f"Usage: {self.usage}\n\n{self._text}")


def not_empty(question: str, kind: Callable[[str], T]) -> Callable[[str], T]:
    """A kind of argument for argparse that is never "", as a shell's unset variable is; `question` is the error."""

    def read(text: str) -> T:
        if not text:
            raise CommandLineError(question)
        return kind(text)

    return read


#: The kind of argument that names a model of a server.
model_name = not_empty(WHICH_MODEL, str)


def run_verb(
    parser: VerbParser, argv: Sequence[str], work: Callable[[argparse.Namespace], int], *misuse: type[Exception]
) -> int:
    """Call `work` with the arguments, and return the exit code that it returns.

    Errors are printed. A CommandLineError, the OSError of a file, and exceptions of the classes `misuse` come with the
    usage; the exit code is then 1. Where a server refuses or does not answer, its sentence comes with advice; the exit
    code is then 2 or 3. Of a FailedError the code is its own.
    """
    expected: tuple[type[Exception], ...] = (CommandLineError, *misuse)
    wrong: tuple[type[Exception], ...] = (OSError, *expected)

    def complain(code: int, sentence: str, *advice: str) -> int:
        show_error(sentence, *advice, as_json=is_json(argv))
        return code

    try:
        return work(parser.parse_args(list(argv)))
    except FailedError as error:
        return complain(error.code, str(error), *error.advice)
    except TimedOutError as error:  # before the next clause: a TimedOutError is an OSError, too
        return complain(EXIT_NO_ANSWER, str(error))
    except wrong as error:
        if isinstance(error, OSError) and error.filename is None and not isinstance(error, expected):
            raise  # an error of a standard stream, which cli/__init__.py handles
        said = f"'{error.filename}': {error.strerror}" if isinstance(error, OSError) and error.filename else error
        return complain(EXIT_MISUSED, str(said), f"Usage: {parser.usage}", f"'{parser.prog} --help' explains it.")
    except (UnreachableError, ConnectionLostError) as error:
        command = f"{parser.prog} …" if parser.questions else parser.prog
        return complain(
            EXIT_NO_ANSWER,
            str(error),
            *_remedies(str(error)),
            "A server accepts connections once its models have loaded. To start one, or to ask another:",
            "  shoal serve --model-repository <directory>",
            f"  {command} {parser.server_flag} http://<host>:<port>    or export SHOAL_URL=http://<host>:<port>",
        )
    except NoResponseError as error:
        return complain(EXIT_NO_ANSWER, str(error))
    except RefusedError as error:
        return complain(EXIT_REFUSED, str(error), *_remedies(str(error)))
    except UnicodeEncodeError as error:
        if not (words := [ascii(word) for word in argv if any("\ud800" <= each <= "\udfff" for each in word)]):
            raise
        return complain(EXIT_MISUSED, f"{words[0]} is no UTF-8: {error.reason}", f"Usage: {parser.usage}")
    except ShoalError as error:
        return complain(EXIT_REFUSED, f"{error.words}: {error}", *_remedies(str(error)))


def _remedies(sentence: str) -> list[str]:
    return [_REMEDIES[piece] for piece in _REMEDIES if piece in sentence]


def show_error(sentence: str, *advice: str, as_json: bool, stdout: TextIO | None = None) -> None:
    """Print an error: for people, with advice; as JSON, on a line of its own, since other lines of JSON may come first.
    URLs have *** in place of passwords."""
    sentence, advice = without_passwords(sentence), tuple(map(without_passwords, advice))
    print(printable_lines(sentence), *advice, sep="\n", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": sentence}), file=stdout, flush=True)
