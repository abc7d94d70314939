"""shoal/certificate_expiry.py, against certificates that the package cryptography makes."""

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from shoal.certificate_expiry import expires_s

BEGUN = dt.datetime(1999, 1, 2, tzinfo=dt.timezone.utc)


def write(
    path: Path,
    *ends: dt.datetime,
    num_organisations: int = 1,
    key: "ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None" = None,
) -> None:
    """Certificates, one behind the other."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "o" * 60)] * num_organisations)
    pieces = []
    for each in ends:
        builder = x509.CertificateBuilder(name, name, key.public_key(), 5, BEGUN, each)
        pieces.append(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    path.write_bytes(b"a comment\n" + b"".join(pieces))


# Times up to 2049 have two digits of the year, later ones four.
@pytest.mark.parametrize("year", [1999, 2026, 2049, 2050, 9999])
def test_the_end_of_the_first_certificate_is_read(tmp_path: Path, year: int) -> None:
    end = dt.datetime(year, 12, 3, 4, 5, 6, tzinfo=dt.timezone.utc)
    write(tmp_path / "chain.pem", end, end + dt.timedelta(days=-1))
    assert expires_s(str(tmp_path / "chain.pem")) == end.timestamp()


def test_long_names_and_keys_do_not_matter(tmp_path: Path) -> None:
    end = dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc)
    write(
        tmp_path / "a", end, num_organisations=1000, key=rsa.generate_private_key(65537, 2048)
    )  # a length of three bytes
    assert expires_s(str(tmp_path / "a")) == end.timestamp()


def test_what_is_no_certificate(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, dt.datetime(2030, 1, 1, tzinfo=dt.timezone.utc))
    lines = path.read_bytes().splitlines(keepends=True)
    for content in (
        b"",
        b"-----BEGIN CERTIFICATE-----\n",
        b"".join([*lines[:3], lines[-1]]),
        b"".join([*lines[:2], b"MIIB", lines[-1]]),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="certificate"):
            expires_s(str(path))
    with pytest.raises(FileNotFoundError):
        expires_s(str(tmp_path / "none"))
