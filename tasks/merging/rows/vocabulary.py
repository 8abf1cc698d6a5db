"""Networks whose tokenizers number other tokens: rows of embeddings are put in the order of one tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from roundweave.storage.checkpoints.folders import folder_config, within
from roundweave.storage.errors import CheckpointError, UsageError, failing_as, one_line
from roundweave.tasks.merging.rows.orders import Numbers, RowOrder, check_of_transformers, rows_of
from roundweave.tasks.networks.pretrained import transformers_package

FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
"""Files of which a folder with a tokenizer has one."""


def find_vocabulary(
    folders: Sequence[Path], sizes: Sequence[int], choice: Literal["union", "first", "base"] | None
) -> RowOrder | None:
    """How the rows of the folders' networks are put in order; None where their tokenizers number the same tokens.

    `sizes` has the rows of each network's embedding. With `base` the tokens are those of the last folder. Raises
    `UsageError` for other tokens without a choice.
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
        raise UsageError(f"{pair} number other tokens; give --vocabulary union, or first, or base with --base")
    if len(every) < len(known):
        raise CheckpointError(f"{folders[known.index(None)]} has no tokenizer, so nobody knows its tokens")
    tokenizer, whose = _with_all(folders[0], every) if choice == "union" else None, -1 if choice == "base" else 0
    merged = every[whose] if tokenizer is None else tokenizer.get_vocab()
    size = max(sizes[whose], 1 + max(merged.values()))
    rows = tuple(rows_of(tokens, merged, size) for tokens in every)
    # Rows that stand for no token, with which some networks fill up their embedding, are those of one network.
    unnamed = torch.tensor(sorted(set(range(sizes[whose])) - set(merged.values())), dtype=torch.int64)
    rows[whose][unnamed] = unnamed
    config = folder_config(folders[-1]) if choice == "base" else {}
    special = {name: number for name, number in config.items() if name.endswith("_token_id")}
    return RowOrder(rows, _of_tokens, {"vocab_size": size, **special}, folders[whose], tokenizer)


def _of_tokens(network: Any) -> set[str]:
    """The names of tensors with a row for each token: the embedding, and the output head's weight and bias."""
    check_of_transformers(network)
    layers = [network.get_input_embeddings(), network.get_output_embeddings()]
    found = {id(each) for layer in layers if layer is not None for each in layer.parameters(recurse=False)}
    return {name for name, tensor in network.state_dict(keep_vars=True).items() if id(tensor) in found}


def _same_files(folders: Sequence[Path]) -> bool:
    """Whether the tokenizers' files are the same to the byte, so that no package has to read them."""
    every = [
        [(name, within(each, name).read_bytes()) for name in FILES if (each / name).exists()] for each in folders
    ]
    return all(files == every[0] for files in every)


def _tokens(folder: Path) -> Numbers | None:
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


def _with_all(folder: Path, every: Sequence[Numbers]) -> Any:
    """The tokenizer of a folder with the tokens of others, which it takes as whole words."""
    with failing_as(lambda error: CheckpointError(f"{folder} has no tokenizer to add to: {one_line(error)}")):
        tokenizer = _tokenizer(folder)
        own = tokenizer.get_vocab()
        others = [token for tokens in every[1:] for token in sorted(tokens, key=tokens.__getitem__)]
        tokenizer.add_tokens([token for token in dict.fromkeys(others) if token not in own])
        return tokenizer
