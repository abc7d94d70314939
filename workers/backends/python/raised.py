"""What a model's code raises, as an Exception: so it is the answer to the requests, as in Triton, and no end of the
worker.

asyncio.CancelledError, GeneratorExit and KeyboardInterrupt are no Exceptions, nor are the classes that some libraries
cancel with. SystemExit stays what it is: a model that calls sys.exit() ends its process.
"""

import signal
from typing import NoReturn


class NoExceptionError(Exception):
    """Stands for what a model has raised that is no Exception, its `__cause__`."""


def raise_as_exception(error: BaseException) -> NoReturn:
    """Raise what a model has raised: as a NoExceptionError if it is no Exception. A SystemExit is raised unchanged, and
    so is the KeyboardInterrupt of a terminal's Ctrl-C, which workers ignore and a test's process does not."""
    is_typed = isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_typed or isinstance(error, (Exception, SystemExit)):
        raise error
    raise NoExceptionError from error


def original(error: BaseException) -> BaseException:
    """What a model has raised itself."""
    return error.__cause__ or error if isinstance(error, NoExceptionError) else error
