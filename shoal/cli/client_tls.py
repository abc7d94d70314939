"""Flags for a server that is asked by https://: how its certificate is checked, and the client's own certificate; and
the TLS context that they make."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

HELP = """
  --ca <file>            with https://: the certificates that may sign the server's, PEM (default: $SSL_CERT_FILE, or
                         the system's)
  --cert <file>, --key <file>  the certificate to show to a server that wants one, and its key
  --insecure             do not check the server's certificate: a stranger can read and change what is sent
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    for flag in ("--ca", "--cert", "--key"):
        parser.add_argument(flag, default="")
    parser.add_argument("--insecure", action="store_true")


def context_of(arguments: argparse.Namespace) -> "ssl.SSLContext | None":
    """The context for https://; None if no flag is given, for Python's default. Raises ValueError for files that cannot
    be used, or do not fit each other."""
    if not (arguments.ca or arguments.cert or arguments.key or arguments.insecure):
        return None
    import ssl  # imported here: few commands use https://, and importing ssl takes 15 ms

    if bool(arguments.cert) != bool(arguments.key):
        raise ValueError("--cert and --key come together")
    try:
        context = ssl.create_default_context(cafile=arguments.ca or None)
    except OSError as error:
        raise ValueError(f"--ca {arguments.ca}: {error.strerror or error}") from None
    try:
        if arguments.cert:
            context.load_cert_chain(arguments.cert, arguments.key, password=lambda: b"")
    except OSError as error:
        raise ValueError(f"--cert {arguments.cert} --key {arguments.key}: {error.strerror or error}") from None
    if arguments.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
