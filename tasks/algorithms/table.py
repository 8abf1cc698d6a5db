"""The table of named algorithms, and what builds one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from storage.errors import UsageError
from tasks.algebra import Algorithm
from tasks.algorithms.averaging import (
    diloco,
    fed_adagrad,
    fed_adam,
    fed_avg,
    fed_avgm,
    fed_prox,
    fed_yogi,
    matched,
    scaffold,
    sync_sgd,
)
from tasks.algorithms.chosen import auto
from tasks.algorithms.serving import async_sgd, downpour, easgd, fed_buff
from tasks.user_code import Code

ALGORITHMS: Mapping[str, Callable[..., Algorithm]] = {
    make.__name__: make
    for make in (
        *(sync_sgd, fed_avg, diloco, matched),
        *(fed_avgm, fed_adam, fed_adagrad, fed_yogi, fed_prox, scaffold),
        *(async_sgd, downpour, easgd, fed_buff),
    )
}

NAMED: Mapping[str, Callable[..., Algorithm]] = {**ALGORITHMS, auto.__name__: auto}
"""What a configuration may name: the algorithms, and the name that stands for the one that is chosen."""


def check_taken(name: str, given: Iterable[str], taken: Iterable[str]) -> None:
    """Raise `UsageError` for options that an algorithm does not take."""
    taken = list(taken)
    if refused := sorted(set(given) - set(taken)):
        raise UsageError(
            f"algorithm {name} takes no {', '.join(refused)}; it takes {', '.join(taken) or 'no options'}"
        )


def build_algorithm(named: str | Code, options: Mapping[str, Any]) -> Algorithm:
    """A named algorithm, or the user's own, with options; one that it does not take is refused by name."""
    make, name = (named.load(), named.reference) if isinstance(named, Code) else (NAMED[named], named)
    check_taken(name, options, inspect.signature(make).parameters)
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise UsageError(f"algorithm {name}: {error}; give every option a default") from error
    algorithm = make(**options)
    if not isinstance(algorithm, Algorithm):
        raise UsageError(f"algorithm {name} must return an Algorithm, not {type(algorithm).__name__}")
    return algorithm
