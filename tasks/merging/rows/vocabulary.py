"""Networks whose tokenizers number other tokens: rows of embeddings are put in the order of one tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from roundweave.storage.checkpoints.folders import NUMBERED, files_beside
from roundweave.storage.errors import CheckpointError, ModelError, UsageError, failing_as, one_line
from roundweave.tasks.merging.rows.orders import Numbers, RowOrder, axes_of, check_of_transformers, rows_of
from roundweave.tasks.merging.rows.unions import open_tokenizer, with_all
from roundweave.tasks.networks.pretrained import SIZES, configs_within

OF_SEGMENTS = "type_vocab_size"
"""The member that says how many segments there are, which are no tokens."""

SECOND = ("target_vocab.json", "vocab-tgt.json")
"""Files of tokenizers that number the tokens they read and those they write apart."""

ELSE = re.compile(r"(.*_)?config\.json(?<!tokenizer_config\.json)|.*\.jinja")
"""Matches the names of files beside tensors that number no tokens."""


def find_vocabulary(
    folders: Sequence[Path], configs: Sequence[Mapping[str, Any]], choice: Literal["union", "first", "base"] | None
) -> RowOrder | None:
    """Return how the rows of the folders' networks are put in order.

    None if their tokenizers number the same tokens.

    `configs` has the networks' whole configurations. With `base` the tokens are those of the last folder. Raises
    `UsageError` for other tokens without a choice.
    """
    counts = [_counts(config) for config in configs]
    alike = all(each == counts[0] for each in counts)
    numberings = [_numbering(folder) for folder in folders]
    if alike and all(each == numberings[0] for each in numberings):
        return None
    found = [_tokens(folder) for folder in folders]
    every = [tokens for tokens in found if tokens is not None]
    if alike and all(tokens == every[0] for tokens in every):
        return None
    if choice is None:
        one, other = next(((0, i) for i, tokens in enumerate(found) if tokens != found[0]), (0, len(found) - 1))
        pair = f"{folders[one]} and {folders[other]}"
        raise UsageError(f"{pair} differ in their tokens; give --vocabulary union, or first, or base with --base")
    if len(every) < len(found):
        raise CheckpointError(f"{folders[found.index(None)]} has no tokenizer, so its tokens are unknown")
    sizes = [_size(folder, each) for folder, each in zip(folders, counts, strict=True)]
    tokenizer, whose = with_all(folders, every) if choice == "union" else None, -1 if choice == "base" else 0
    rows = _rows(folders[whose], every, sizes, every[whose] if tokenizer is None else tokenizer.get_vocab(), whose)
    options = _with_tokens(configs[0], len(rows[0]), configs[whose])
    changed = {name: value for name, value in options.items() if value != configs[0][name]}
    return RowOrder(rows, partial(_of_tokens, len(rows[0]), sizes), changed, folders[whose], tokenizer)


def _rows(
    folder: Path, every: Sequence[Numbers], sizes: Sequence[int], merged: Numbers, whose: int
) -> tuple[torch.Tensor, ...]:
    """Return the rows that each network has for the merged tokens.

    Raises `CheckpointError` for one that none has.
    """
    each = [{t: n for t, n in tokens.items() if n < size} for tokens, size in zip(every, sizes, strict=True)]
    known = {token for tokens in each for token in tokens}  # a tokenizer may number tokens without a row
    size = max(sizes[whose], *(1 + number for token, number in merged.items() if token in known))
    if lost := next((token for token, number in merged.items() if token not in known and number < size), None):
        raise CheckpointError(f"no network has a row for token {lost!r} of {folder}; take it out there")
    rows = tuple(rows_of(tokens, merged, size) for tokens in each)
    # Rows that stand for no token, with which some networks fill up their embedding, are those of one network.
    unnamed = torch.tensor(sorted(set(range(sizes[whose])) - set(merged.values())), dtype=torch.int64)
    rows[whose][unnamed] = unnamed
    return rows


def _counts(config: Mapping[str, Any]) -> dict[str, int]:
    """The members of a configuration, and of those within it, that say how many tokens there are, by name."""
    names = [name for name in config if name in SIZES or ("vocab" in name and name != OF_SEGMENTS)]
    found = {name: config[name] for name in names if isinstance(config[name], int)}
    for name, each in configs_within(config).items():
        found |= {f"{name}.{inner}": count for inner, count in _counts(each).items()}
    return found


def _size(folder: Path, counts: Mapping[str, int]) -> int:
    """Return how many tokens a network has. Raises `CheckpointError` unless it has one vocabulary."""
    odd = next((name for name in counts if name.rpartition(".")[2] not in SIZES), None)
    if odd or len(set(counts.values())) != 1 or any((folder / name).exists() for name in SECOND):
        several = ", ".join(f"{name} = {count}" for name, count in counts.items()) or "no vocab_size"
        raise CheckpointError(f"{folder} has {several}, and only networks of one vocabulary are put in order")
    return next(iter(counts.values()))


def _with_tokens(config: Mapping[str, Any], size: int, of: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration, and those within it, with so many tokens, and the numbers that another has for some."""
    given = {name: size for name in config if name in SIZES}
    given |= {name: number for name, number in of.items() if name.endswith("_token_id")}
    within = configs_within(config).items()
    return {**config, **given, **{name: _with_tokens(each, size, of.get(name) or {}) for name, each in within}}


def _of_tokens(size: int, sizes: Sequence[int], network: Any) -> dict[str, int]:
    """Return the axes of tensors with a row for each token: those that would have one more with one token more.

    Raises `ModelError` for a tensor that has as many rows in networks of these sizes for what nobody knows.
    """
    check_of_transformers(network)
    config = network.config.to_dict()
    larger = network.config.from_dict(_with_tokens(config, size + 1, config))
    failing = failing_as(
        lambda error: ModelError(f"{type(network).__name__} takes no token more: {one_line(error)}")
    )
    with failing, torch.device("meta"):
        axes = axes_of(network, type(network)(larger))
    other = {name: tensor.shape for name, tensor in network.state_dict().items() if name not in axes}
    if odd := next((name for name, shape in other.items() if len(set(sizes)) == 1 and sizes[0] in shape), None):
        raise ModelError(f"{odd} is as large as there are tokens, {sizes[0]}, and nobody knows if it is of tokens")
    if not axes:
        raise ModelError(f"{type(network).__name__} has no row for each token, so its tokens have no order")
    return axes


def _numbering(folder: Path) -> dict[str, bytes]:
    """Return what a folder's files say of its tokenizer, so that equal ones need no package to read them."""
    return {path.name: path.read_bytes() for path in files_beside(folder) if not ELSE.fullmatch(path.name)}


def _tokens(folder: Path) -> Numbers | None:
    """Return the tokens of a folder's tokenizer by name; None if it has none."""
    if not any(NUMBERED.fullmatch(path.name) for path in files_beside(folder)):
        return None
    numbers: Numbers = open_tokenizer(folder).get_vocab()
    return numbers
