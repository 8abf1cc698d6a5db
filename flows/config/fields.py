"""Types that several configurations use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from storage.parsing import at_commas
from tasks.user_code import Code, find_code


def _keep_callable(value: Any) -> Any:
    return find_code(value) if callable(value) else value


if TYPE_CHECKING:
    NamedOrOwn = Any  # a checker knows what a field holds, and not what may be given for it
else:
    NamedOrOwn = Annotated[str | Code, BeforeValidator(_keep_callable, json_schema_input_type=str | Code)]
"""A built-in name, ``FILE.py:function``, ``module:function``, or (in Python) a callable."""


if TYPE_CHECKING:
    EachOwn = Any
else:
    EachOwn = tuple[NamedOrOwn, ...]
"""One for each partition."""


if TYPE_CHECKING:
    Names = Any
else:
    Names = Annotated[tuple[NamedOrOwn, ...], BeforeValidator(at_commas)]
"""Built-in names or functions of the user's, or a text of names with commas between them."""

Integers = Annotated[tuple[int, ...], BeforeValidator(at_commas)]
"""Whole numbers, or a text with commas between them."""

Numbers = Annotated[tuple[float, ...], BeforeValidator(at_commas)]
"""Numbers, or a text with commas between them."""
