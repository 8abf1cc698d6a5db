"""One tokenizer with the tokens of several."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from roundweave.storage.errors import CheckpointError, failing_as, one_line
from roundweave.tasks.merging.rows.orders import Numbers
from roundweave.tasks.networks.pretrained import transformers_package

FILE = "tokenizer.json"

OF_TOKENS = dict.fromkeys(("vocab", "merges", "unk_id"))
"""Members of a tokenizer's model that do not say how it splits texts into pieces."""

AROUND = dict.fromkeys(("added_tokens", "post_processor", "truncation", "padding", "version"))
"""Members of a tokenizer's file that do not say this either."""

OTHERWISE = "give --vocabulary first, or base with --base"
"""What to do if there is no union."""


def open_tokenizer(folder: Path) -> Any:
    """Return the folder's tokenizer, of the transformers package alone. Raises `CheckpointError`."""
    package = transformers_package()
    with failing_as(lambda error: CheckpointError(f"{folder} has no tokenizer that opens: {one_line(error)}")):
        return package.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def with_all(folders: Sequence[Path], every: Sequence[Numbers]) -> Any:
    """Return the first folder's tokenizer with the tokens of all, pieces as such and added ones with their flags.

    None if the first has all. Raises `CheckpointError` for pieces of tokenizers that split texts otherwise, and
    where none has all tokens.
    """
    in_order = [token for tokens in every[1:] for token in sorted(tokens, key=tokens.__getitem__)]
    more = dict.fromkeys(token for token in in_order if token not in every[0])
    if not more:
        return None
    opened = [open_tokenizer(folder) for folder in folders]
    if slow := next((folder for folder, each in zip(folders, opened, strict=True) if not each.is_fast), None):
        raise CheckpointError(f"the tokenizer of {slow} has no {FILE} to add to; {OTHERWISE}")
    files = [json.loads(each.backend_tokenizer.to_str()) for each in opened]
    added = {each["content"]: each for file in reversed(files) for each in file["added_tokens"]}
    if more.keys() - added.keys():
        _check_same_splits(folders, files)
    numbers = {**every[0], **{token: number for number, token in enumerate(more, 1 + max(every[0].values()))}}
    as_added = more.keys() | {each["content"] for each in files[0]["added_tokens"]}  # others' may be own pieces
    file = {**files[0], "model": _grown([file["model"] for file in files], numbers)}
    file["added_tokens"] = [{**added[t], "id": n} for t, n in numbers.items() if t in added and t in as_added]
    with TemporaryDirectory() as place:
        opened[0].save_pretrained(place)
        Path(place, FILE).write_text(json.dumps(file), encoding="utf-8")
        tokenizer = open_tokenizer(Path(place))
    if tokenizer.get_vocab() != numbers:
        raise CheckpointError(f"the tokenizer of {folders[0]} does not take the tokens of all; {OTHERWISE}")
    return tokenizer


def _check_same_splits(folders: Sequence[Path], files: Sequence[Mapping[str, Any]]) -> None:
    splits = [{**file, **AROUND, "model": {**file["model"], **OF_TOKENS}} for file in files]
    if other := next((folder for folder, each in zip(folders, splits, strict=True) if each != splits[0]), None):
        raise CheckpointError(
            f"{folders[0]} and {other} split texts differently, so pieces have no union; {OTHERWISE}"
        )


def _grown(models: Sequence[Mapping[str, Any]], numbers: Numbers) -> dict[str, Any]:
    """Return the first tokenizer's model with all tokens, and the merges of all that build them, its own first."""
    model: dict[str, Any] = {**models[0], "vocab": numbers}
    if isinstance(vocab := models[0]["vocab"], list):  # of pieces and their log-probabilities, by their numbers
        known = {piece: score for each in reversed(models) for piece, score in each["vocab"]}
        least, names = min(known.values()), sorted(numbers, key=numbers.__getitem__)
        model["vocab"] = [*vocab, *([token, known.get(token, least)] for token in names[len(vocab) :])]
    if "merges" in model:
        model["merges"] = list(dict.fromkeys(tuple(pair) for each in models for pair in each["merges"]))
    return model
