"""Refusals about names, places and what is kept: fields of a configuration, and words of the line."""

from __future__ import annotations

from typing import Any

ROWS: list[tuple[dict[str, Any], str]] = [
    ({"keep": "lats:5"}, "keep 'lats:5' is no policy; did you mean last?"),
    ({"keep": "last"}, "keep 'last': give last:n with a number of rounds, 1 or more"),
    ({"keep": "last:0"}, "keep 'last:0': give last:n with a number of rounds, 1 or more"),
    ({"keep": "every:1.5"}, "keep 'every:1.5': give every:k with a number of rounds, 1 or more"),
    ({"keep": "all:3"}, "keep 'all:3': give all alone"),
    ({"root": "ftp://bucket/runs"}, "there are no places of scheme ftp://; give a folder or s3://"),
    ({"root": "s3://bucket/../other"}, "give s3://BUCKET/NAME"),
    ({"name": "a/b"}, "name = 'a/b': expected a run name of letters, digits"),
    ({"rounds": 0}, "rounds = 0: Input should be greater than or equal to 1"),
]
