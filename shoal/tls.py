"""A server's side of TLS, from its files in PEM format. Imports ssl: only a listener with TLS imports this module."""

import os
import ssl

#: HTTP/2 over TLS 1.2 wants forward secrecy and AEAD (RFC 9113, section 9.2.2). All ciphers of TLS 1.3 have both.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


def server_context(cert: str, key: str, root: str, must_verify: bool) -> ssl.SSLContext:
    """The context of a gRPC listener: TLS 1.2 or later, without renegotiation, HTTP/2 by ALPN.

    `cert` and `key` are the files of the server's certificate chain and private key, `root` that of the certificates
    that may sign those of clients ("": none); with `must_verify`, clients must show one. Raises OSError that names the
    file and the flag.
    """
    for flag, file in (("--grpc-server-cert", cert), ("--grpc-server-key", key), ("--grpc-root-cert", root)):
        try:
            if file:
                os.close(os.open(file, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise OSError(f"cannot read '{file}' for {flag}: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # of TLS 1.3: gRPC's clients resume no sessions
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["h2"])
    flags = f"--grpc-server-cert={cert} and --grpc-server-key={key}"
    try:
        context.load_cert_chain(cert, key, password=lambda: b"")  # or a key with a password would ask for it
        if root:
            flags = f"--grpc-root-cert={root}"
            context.load_verify_locations(root)
    except OSError as error:
        raise OSError(f"no TLS with {flags}: {error}. Files are in PEM format and without a password") from error
    if must_verify:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
