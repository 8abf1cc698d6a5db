"""BLAKE3 digests of bytes, texts and JSON values, as texts of 64 hexadecimal digits; without torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from blake3 import blake3

ALGORITHM = "blake3"
"""The name of the digests in a store's attributes."""


def bytes_digest(content: bytes | memoryview) -> str:
    """Return the digest of the bytes of a file."""
    return blake3(content).hexdigest()


def pieces_digest(pieces: Iterable[bytes]) -> str:
    """Return the digest of bytes that are given in pieces."""
    digest = blake3()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def text_digest(text: str) -> str:
    """Return the digest of source code or another text."""
    return bytes_digest(text.encode())


def json_digest(value: Any) -> str:
    """Return the digest of a JSON value, independent of the order of its keys."""
    return text_digest(json.dumps(value, sort_keys=True))
