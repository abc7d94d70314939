"""Certificates for tests of TLS: an authority of their own, and what it signed for a server and a client."""

import datetime as dt
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificates(NamedTuple):
    """Files in PEM format."""

    root: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path


def make_certificates(folder: Path) -> Certificates:
    """Written into `folder`, valid for an hour, by the rules that Python enforces from 3.13 on; the server's is for
    localhost and 127.0.0.1."""
    files = Certificates(*(folder / f"{name.replace('_', '-')}.pem" for name in Certificates._fields))
    authority = ec.generate_private_key(ec.SECP256R1())
    files.root.write_bytes(_sign("authority", authority, authority))
    for owner, cert, key_file in (
        ("server", files.server_cert, files.server_key),
        ("client", files.client_cert, files.client_key),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        cert.write_bytes(_sign(owner, key, authority))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    return files


def _sign(owner: str, key: ec.EllipticCurvePrivateKey, authority: ec.EllipticCurvePrivateKey) -> bytes:
    now = dt.datetime.now(dt.timezone.utc)
    is_authority = key is authority
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, owner)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .sign(authority, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)
