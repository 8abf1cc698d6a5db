"""Turn errors of an object store into one line that says what to do, without the server's own text."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from obstore.exceptions import BaseError

from storage.errors import PlaceError, StoreError

REASONS = {
    "NoSuchBucket": "there is no such bucket; make it, or give another address",
    "InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|ExpiredToken|Unauthenticated": (
        "the credentials are not accepted; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ),
    "/latest/api/token|/latest/meta-data|169.254.170|[Cc]redential": (
        "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ),
    "AccessDenied|PermissionDenied|403 ": "access is denied; ask for the rights to list, read, write and delete",
    "PermanentRedirect|[Rr]edirect": "the bucket is in another region; set AWS_REGION",
    "BadScheme|scheme is not allowed": "the server has no TLS; set AWS_ALLOW_HTTP=true where that is meant",
    "kind: Timeout|kind: Connect|error sending request|timed out": (
        "the server does not answer; is AWS_ENDPOINT_URL right, and the network up?"
    ),
}
"""What is wrong and what to do, by a pattern in the client's error.

The client's own text is not shown, since it has many lines and may contain internal addresses.
"""


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def telling(act: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """A decorator for methods of a place: an error of the server is raised as a `PlaceError` of one line.

    `act` is the verb of the message, such as ``read``.
    """

    def decorate(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(method)
        def wrapped(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
            try:
                return method(*arguments, **options)
            except (BaseError, OSError) as error:
                if isinstance(error, StoreError):
                    raise
                what = "/".join(map(str, arguments[:2]))
                raise PlaceError(f"cannot {act} {what}: {_reason(error)}") from None

        return wrapped

    return decorate


def _reason(error: Exception) -> str:
    text = f"{type(error).__name__} {error}"
    for pattern, remedy in REASONS.items():
        if re.search(pattern, text):
            return remedy
    status = re.search(r"status code: (\d+[\w ]*)", text)
    return f"the server answers {status[1].strip() if status else type(error).__name__}; try again later"
