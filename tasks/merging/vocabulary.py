"""Networks whose tokenizers number other tokens: rows of embeddings are put in the order of one tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from roundweave.storage.checkpoints.files import known_specs
from roundweave.storage.checkpoints.folders import within
from roundweave.storage.errors import CheckpointError, UsageError, failing_as, one_line
from roundweave.storage.values.tensors import LazyTensors
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.networks.pretrained import transformers_package

Tokens = Mapping[str, int]
"""The number of each token."""

FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
"""Files of which a folder with a tokenizer has one."""

ABSENT = -1
"""Stands for the row of a token that a network does not have."""

LEAST = 1e-20
"""The weight of a network whose coefficient is 0, for tokens that no other network has."""


@dataclass(frozen=True)
class Vocabulary:
    """The rows that networks have for the tokens of the merged one.

    `rows` has int64 (tokens,) for each network, of which those that it lacks are `ABSENT`. `tokenizer` is that of
    the merged network, where no folder has it.
    """

    rows: tuple[torch.Tensor, ...]
    tokenizer: Any = None

    @property
    def size(self) -> int:
        """The rows of the merged network's embedding."""
        return len(self.rows[0])

    def ordered(
        self, network: nn.Module, states: Sequence[Tensors], coefficients: Sequence[float]
    ) -> list[LazyTensors]:
        """The networks' tensors with rows in one order; those that a network lacks are the others' weighted mean.

        So a row of the mean of all networks is the mean of those that have it.
        """
        names = _of_tokens(network)
        read = partial(self._row_by_row, states, [c or LEAST for c in coefficients])
        return [
            _replaced(state, names & set(state), self.size, partial(read, i)) for i, state in enumerate(states)
        ]

    def _row_by_row(
        self, states: Sequence[Tensors], coefficients: Sequence[float], number: int, name: str
    ) -> torch.Tensor:
        """One tensor (tokens, *) of a network."""
        own, rows = states[number][name], self.rows[number]
        lacking = (rows == ABSENT).nonzero().flatten()
        ordered = own[rows.clamp(min=0)]
        if len(lacking):
            total, weight = torch.zeros(len(lacking), *own.shape[1:]), torch.zeros(len(lacking))
            for state, every, coefficient in zip(states, self.rows, coefficients, strict=True):
                there = every[lacking] != ABSENT
                total[there] += coefficient * state[name][every[lacking][there]].float()
                weight[there] += coefficient
            ordered[lacking] = (total / weight.reshape(-1, *[1] * (own.ndim - 1))).to(own.dtype)
        return ordered


def _of_tokens(network: Any) -> set[str]:
    """The names of tensors with a row for each token: the embedding, and the output head's weight and bias."""
    layers = [network.get_input_embeddings(), network.get_output_embeddings()]
    found = {id(each) for layer in layers if layer is not None for each in layer.parameters(recurse=False)}
    return {name for name, tensor in network.state_dict(keep_vars=True).items() if id(tensor) in found}


def _replaced(state: Tensors, names: set[str], size: int, read: Any) -> LazyTensors:
    specs = tuple(
        replace(spec, shape=(size, *spec.shape[1:])) if spec.name in names else spec for spec in known_specs(state)
    )
    return LazyTensors(tuple(state), lambda name: read(name) if name in names else state[name], specs)


def find_vocabulary(
    folders: Sequence[Path], sizes: Sequence[int], choice: Literal["union", "first"] | None
) -> Vocabulary | None:
    """How the rows of the folders' networks are put in order; None where their tokenizers number the same tokens.

    `sizes` has the rows of each network's embedding. Raises `UsageError` for other tokens without a choice.
    """
    if len(set(sizes)) == 1 and _same_files(folders):
        return None
    known = [_tokens(folder) for folder in folders]
    every = [tokens for tokens in known if tokens is not None]
    if all(tokens == every[0] for tokens in every) and len(set(sizes)) == 1:
        return None
    if choice is None:
        one, other = next(((0, i) for i, tokens in enumerate(known) if tokens != known[0]), (0, len(known) - 1))
        pair = f"{folders[one]} and {folders[other]}"
        raise UsageError(f"{pair} number other tokens; give --vocabulary union, or first for those of the first")
    if len(every) < len(known):
        raise CheckpointError(f"{folders[known.index(None)]} has no tokenizer, so nobody knows its tokens")
    tokenizer = _with_all(folders[0], every) if choice == "union" else None
    merged = every[0] if tokenizer is None else tokenizer.get_vocab()
    size = max(sizes[0], 1 + max(merged.values()))
    rows = tuple(_rows(tokens, merged, size) for tokens in every)
    # Rows that stand for no token, with which some networks fill up their embedding, are those of the first.
    unnamed = torch.tensor(sorted(set(range(sizes[0])) - set(merged.values())), dtype=torch.int64)
    rows[0][unnamed] = unnamed
    return Vocabulary(rows, tokenizer)


def _rows(tokens: Tokens, merged: Tokens, size: int) -> torch.Tensor:
    """The rows int64 (size,) that a network has for the tokens of the merged one."""
    rows = torch.full((size,), ABSENT)
    shared = [(number, tokens[token]) for token, number in merged.items() if token in tokens]
    there = torch.tensor(shared, dtype=torch.int64).reshape(-1, 2)
    rows[there[:, 0]] = there[:, 1]
    return rows


def _same_files(folders: Sequence[Path]) -> bool:
    """Whether the tokenizers' files are the same to the byte, so that no package has to read them."""
    every = [
        [(name, within(each, name).read_bytes()) for name in FILES if (each / name).exists()] for each in folders
    ]
    return all(files == every[0] for files in every)


def _tokens(folder: Path) -> Tokens | None:
    """The tokens of a folder's tokenizer by name; None if it has none."""
    name = next((name for name in FILES if (folder / name).exists()), None)
    if name is None:
        return None
    path = within(folder, name)
    with failing_as(lambda error: CheckpointError(f"{path} is no tokenizer: {one_line(error)}; copy it again")):
        if name == FILES[0]:
            from tokenizers import Tokenizer  # it comes with transformers

            found: dict[str, int] = Tokenizer.from_file(str(path)).get_vocab()
            return found
        return dict(_tokenizer(folder).get_vocab())


def _tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, of the transformers package alone."""
    package = transformers_package()
    return package.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _with_all(folder: Path, every: Sequence[Tokens]) -> Any:
    """The tokenizer of a folder with the tokens of others, which it takes as whole words."""
    with failing_as(lambda error: CheckpointError(f"{folder} has no tokenizer to add to: {one_line(error)}")):
        tokenizer = _tokenizer(folder)
        own = tokenizer.get_vocab()
        others = [token for tokens in every[1:] for token in sorted(tokens, key=tokens.__getitem__)]
        tokenizer.add_tokens([token for token in dict.fromkeys(others) if token not in own])
        return tokenizer
