"""Certificates of an authority of one's own, by which a scheduler, its workers and its clients talk by TLS."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed.security import Security

from roundweave.storage.errors import UsageError, reason

AUTHORITY, CERTIFICATE, KEY = "authority.pem", "certificate.pem", "key.pem"
"""The files of a partner's folder: the authority's certificate, the partner's own, and the partner's key."""

FILES = {"tls_ca_file": AUTHORITY}
FILES |= {f"tls_{role}_cert": CERTIFICATE for role in ("client", "worker")}
FILES |= {f"tls_{role}_key": KEY for role in ("client", "worker")}
"""The settings of Dask that have these files: a worker's tasks may be clients."""

AUTHORITY_KEY = "authority-key.pem"
"""The file with the key that makes further certificates. It stays with whoever admits partners."""

DAYS = 825
"""How long certificates are valid."""

PrivateKey = ec.EllipticCurvePrivateKey

PARTNER = re.compile(r"[A-Za-z0-9][\w.\-]{0,62}", re.ASCII)
"""Matches the name of a partner, which is that of a folder and stands in the certificate."""


def write_certificates(folder: Path, partners: Iterable[str]) -> list[Path]:
    """Write a folder with key and certificate for each partner; returns these folders.

    The authority that signs them is made if the `folder` has none yet, so that partners may be added later. Keys
    can be read by their owner alone. Raises `UsageError` for a name that no folder can have or that is taken.
    """
    own = {name: folder / name for name in dict.fromkeys(partners)}
    for name, place in own.items():
        if not PARTNER.fullmatch(name):
            raise UsageError(f"{name!r} is no name of a partner; give letters of ASCII, digits, '_', '-' and '.'")
        if place.exists():
            raise UsageError(f"{place} exists already; give the partner another name, or delete the folder")
    folder.mkdir(parents=True, exist_ok=True)
    key, authority = _authority(folder)
    for name, place in own.items():
        place.mkdir()
        own_key = ec.generate_private_key(ec.SECP256R1())
        _write_key(place / KEY, own_key)
        (place / CERTIFICATE).write_bytes(_pem(_certificate(name, own_key, authority.subject, key)))
        (place / AUTHORITY).write_bytes(_pem(authority))
    return list(own.values())


def security_for(address: str, folder: Path | None, role: str) -> Security:
    """Dask's settings by which a ``client`` or ``worker`` talks with the scheduler at an address.

    TLS takes the files of a partner's folder, or without one those of Dask's own configuration. Raises
    `UsageError` if they cannot be read or have expired, or if the address is of TLS and there are none, or the
    other way round.
    """
    files = {setting: str(folder / name) for setting, name in FILES.items()} if folder else {}
    try:
        security = Security(**files, require_encryption=True if folder else None)
        context = security.get_connection_args(role)["ssl_context"]
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the certificates of {folder or 'the configuration of Dask'} cannot be read ({reason(error)}); "
            f"give a folder with {AUTHORITY}, {CERTIFICATE} and {KEY}, as `roundweave certificates` writes them"
        ) from error
    if folder and (end := _loaded(folder / CERTIFICATE).not_valid_after_utc) < datetime.now(UTC):
        raise UsageError(f"the certificate of {folder} was valid until {end:%Y-%m-%d}; have another one made")
    if address.startswith("tls://") and context is None:
        raise UsageError(f"{address} talks by TLS; give --certificates FOLDER")
    if folder and not address.startswith("tls://"):
        raise UsageError(f"{address} does not talk by TLS; give an address tls://…, or leave --certificates out")
    return security


def _authority(folder: Path) -> tuple[PrivateKey, x509.Certificate]:
    """Return the key and the certificate of the folder's authority, made if there is none."""
    files = folder / AUTHORITY_KEY, folder / AUTHORITY
    if not any(file.exists() for file in files):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Roundweave")])
        _write_key(files[0], key)
        files[1].write_bytes(_pem(_certificate("Roundweave", key, subject, key)))
    try:
        loaded = serialization.load_pem_private_key(files[0].read_bytes(), password=None)
        authority = _loaded(files[1])
    except (OSError, ValueError, TypeError) as error:  # a `TypeError` of a key with a password
        raise UsageError(f"{folder} has no readable authority ({error}); give a new folder") from error
    if not isinstance(loaded, PrivateKey) or loaded.public_key() != authority.public_key():
        raise UsageError(f"{files[0]} is not the key of {files[1]}; give a new folder")
    return loaded, authority


def _certificate(name: str, key: PrivateKey, issuer: x509.Name, issuer_key: PrivateKey) -> x509.Certificate:
    """Return a certificate for the owner of a key, signed with the issuer's; an authority is its own issuer."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks of partners differ
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=key is issuer_key, path_length=None), critical=True)
    )
    return builder.sign(issuer_key, hashes.SHA256())


def _loaded(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(file: Path, key: PrivateKey) -> None:
    """Write a key to a new file that its owner alone can read."""
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file.touch(mode=0o600, exist_ok=False)
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
