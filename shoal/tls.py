"""A server's side of TLS, from its files in PEM format. Imports ssl: only a listener with TLS imports this module."""

import os
import ssl

#: HTTP/2 over TLS 1.2 wants forward secrecy and AEAD (RFC 9113, section 9.2.2), and HTTP/1 needs no other
#: ciphers. All ciphers of TLS 1.3 have both.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
#: The protocol that a listener offers in ALPN, by the `protocol` of `server_context`.
_ALPN = {"grpc": "h2", "http": "http/1.1"}


def server_context(cert: str, key: str, root: str, must_verify: bool, protocol: str = "grpc") -> ssl.SSLContext:
    """The context of the listeners of a protocol, "grpc" or "http": TLS 1.2 or later, without renegotiation, HTTP/2 or
    HTTP/1.1 by ALPN.

    `cert` and `key` are the files of the server's certificate chain and private key, `root` that of the certificates
    that may sign those of clients ("": none); with `must_verify`, clients must show one. Raises OSError that names the
    file and the flag.
    """
    for flag, file in (
        (f"--{protocol}-server-cert", cert),
        (f"--{protocol}-server-key", key),
        (f"--{protocol}-root-cert", root),
    ):
        try:
            if file:
                os.close(os.open(file, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise OSError(f"cannot read '{file}' for {flag}: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # of TLS 1.3: clients keep their connections, and few resume sessions
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols([_ALPN[protocol]])
    flags = f"--{protocol}-server-cert={cert} and --{protocol}-server-key={key}"
    try:
        context.load_cert_chain(cert, key, password=lambda: b"")  # else OpenSSL asks the terminal for a password
        if root:
            flags = f"--{protocol}-root-cert={root}"
            context.load_verify_locations(root)
    except OSError as error:
        raise OSError(f"no TLS with {flags}: {error}. Files are in PEM format and without a password") from error
    if must_verify:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
