"""Texts as examples, from which a network learns the next character."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from roundweave.storage.errors import DataError
from roundweave.storage.parsing import from_json
from roundweave.tasks.data.datasets import Dataset
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.data.meaning import Meaning
from roundweave.tasks.data.sources.arrays import check_memory, reading
from roundweave.tasks.data.sources.table import Source

TIME = 64
"""The default number of characters in an example."""


@dataclass(frozen=True)
class Text(Source):
    """A text, or the texts of a .json object {name: text}, in windows of `time` characters that do not overlap.

    Classes are the characters of `vocabulary`, or if that is empty the distinct ones of the whole file, sorted.
    The names are the column `role`. A text of `time` characters or fewer gives no example. (Federated by role as
    in LEAF, Caldas et al. 2018.)
    """

    file: str
    time: int = TIME
    vocabulary: str = ""

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """Inputs int64 (examples, time), and as targets int64 (examples, time) the character after each."""
        texts = _read(Path(self.file))
        characters = {role: np.frombuffer(text.encode("utf-32-le"), np.uint32) for role, text in texts.items()}
        known = [np.frombuffer(self.vocabulary.encode("utf-32-le"), np.uint32)] if self.vocabulary else []
        vocabulary = np.unique(np.concatenate(known or list(characters.values())))
        if unknown := {*"".join(texts.values())} - {*map(chr, vocabulary.tolist())}:
            raise DataError(f"{self.file} has {min(unknown)!r}, none of the {len(vocabulary)} characters known")
        windows = [_windows(np.searchsorted(vocabulary, text), self.time) for text in characters.values()]
        inputs, targets = (torch.from_numpy(np.concatenate(half)) for half in zip(*windows, strict=True))
        if not len(inputs):
            raise DataError(f"{self.file} has no text of more than {self.time} characters")
        roles = np.repeat(list(texts), [len(half) for half, _ in windows])
        columns = {"role": roles} if Path(self.file).suffix == ".json" else {}
        names = tuple(map(chr, vocabulary.tolist()))
        return Dataset(Examples(inputs, targets), columns=columns, classes=len(vocabulary), class_names=names)

    def arranged(self, meaning: Meaning) -> Text:
        """Return the text with the characters of another one's vocabulary, if that has some."""
        return replace(self, vocabulary="".join(meaning.class_names) or self.vocabulary)


def characters(place: str) -> Text:
    """Return the source for a text ``FILE`` or ``FILE:TIME``."""
    file, _, time = place.rpartition(":")
    return Text(file, int(time)) if file and time.isdecimal() and int(time) else Text(place)


def _windows(codes: np.ndarray, time: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes (characters,) as inputs and targets, int64 (examples, time) each."""
    count = max(0, len(codes) - 1) // time
    first, after = codes[: count * time], codes[1 : count * time + 1]
    return first.reshape(count, time), after.reshape(count, time)


def _read(path: Path) -> dict[str, str]:
    """Return the texts of a file by role; a plain text file has the single role ""."""
    with reading(path, "text"):
        check_memory(path, path.stat().st_size * 16)  # inputs and targets are int64
        text = path.read_text(encoding="utf-8")
        texts = from_json(text) if path.suffix == ".json" else {"": text}
    if not isinstance(texts, dict) or not texts or not all(isinstance(value, str) for value in texts.values()):
        raise DataError(f"{path} must be a JSON object of texts by name, such as {{'HAMLET': 'To be'}}")
    return texts
