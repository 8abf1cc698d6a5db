"""Folders as `save_pretrained` of transformers writes them: a configuration beside tensors, whole or in shards."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from roundweave.storage.checkpoints.files import INDEX, LARGEST_INDEX, SAFETENSORS, within
from roundweave.storage.checkpoints.writing import partial_folder, write_checkpoint
from roundweave.storage.errors import CheckpointError, failing_as, reason
from roundweave.storage.parsing import from_json
from roundweave.storage.values.lazy import Tensors, known_specs, picked
from roundweave.storage.values.tensors import TensorSpec, specs_bytes

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"

FULL = tuple(f"{stem}{end}" for stem in ("model.safetensors", "pytorch_model.bin") for end in ("", INDEX))
"""The files that may have a whole network's tensors; the first that is there is read, as transformers does."""

ADAPTER = ("adapter_model.safetensors", "adapter_model.bin")
"""The files that may have an adapter's tensors, as peft writes them."""

SHARD = 5 * 10**9
"""The most bytes of a shard that is written, unless a single tensor has more."""

BESIDE = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".spm", ".codes", ".tokenizer")
"""The suffixes of the files of tokenizers, processors and configurations."""

NUMBERED = re.compile(r"(tokenizer|tekken)\.json|vocab.*\.(json|txt)|.*\.(model|tokenizer|tiktoken)")
"""Matches the names of files of which a folder with a tokenizer has one."""

TOKENIZER = re.compile(rf"{NUMBERED.pattern}|(merges|added_tokens|special_tokens_map|tokenizer_config)\..*")
"""Matches the names of files that a tokenizer replaces when it is written anew."""

MODULES = "modules.json"
"""The file by which sentence-transformers names the folders of what follows a network, such as a pooling."""

OF_A_TRAINING = ("trainer_state.json", "train_results.json", "eval_results.json", "all_results.json")
"""Files that tell of the training of a network, and not of another one that is made of it."""


def tensors_file(folder: Path) -> Path:
    """Return the file of a folder that has its tensors, or their index.

    Raises `CheckpointError` if there is none.
    """
    full, adapter = (next((name for name in names if (folder / name).exists()), None) for names in (FULL, ADAPTER))
    if full and adapter:
        raise CheckpointError(
            f"{folder} holds a network, {full}, and an adapter, {adapter}; name one of the files"
        )
    if not (name := full or adapter):
        raise CheckpointError(f"{folder} is a folder without tensors; name a file, or a folder with {FULL[0]}")
    return within(folder, name)


def folder_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """Return the JSON object in a folder's configuration. Raises `CheckpointError` if there is none."""
    path = within(folder, name)
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no {name}, which says what its tensors are; save_pretrained writes it"
        )
    if path.stat().st_size > LARGEST_INDEX:
        raise CheckpointError(f"{path} is too large for a configuration; copy it again")
    try:
        config = from_json(path.read_bytes())
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} is no JSON ({reason(error)}); copy it again") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is no JSON object; copy it again")
    return config


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside another, whose place it takes at the end; after an error it is removed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with partial_folder(folder) as new, partial_folder(folder) as former:
        yield new
        if folder.exists():
            folder.rename(former)
        new.rename(folder)


def write_shards(folder: Path, tensors: Tensors, most: int = SHARD) -> None:
    """Write named tensors to ``model.safetensors``, or to shards of at most so many bytes and their index.

    Blocks of tensors are written one after the other. Raises `UsageError` and `CheckpointError` as
    `write_checkpoint` does.
    """
    shards = _shards(known_specs(tensors), most)
    places: dict[str, str] = {}
    for number, specs in enumerate(shards, 1):
        stem = f"model-{number:05}-of-{len(shards):05}" if len(shards) > 1 else "model"
        places |= {spec.name: f"{stem}{SAFETENSORS}" for spec in specs}
        write_checkpoint(folder / f"{stem}{SAFETENSORS}", picked({s.name: (tensors, s.name) for s in specs}))
    if len(shards) > 1:
        sizes = {"total_size": sum(map(specs_bytes, shards))}
        sizes |= {"total_parameters": sum(spec.size for specs in shards for spec in specs)}
        write_json(folder / f"model{SAFETENSORS}{INDEX}", {"metadata": sizes, "weight_map": places})


def _shards(specs: Iterable[TensorSpec], most: int) -> list[list[TensorSpec]]:
    """Return tensors in their order, in runs of at most so many bytes."""
    shards: list[list[TensorSpec]] = [[]]
    size = 0
    for spec in specs:
        size += (own := specs_bytes([spec]))
        if size > most and shards[-1]:
            shards.append([])
            size = own
        shards[-1].append(spec)
    return shards


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file as transformers and peft write theirs."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def files_beside(folder: Path) -> list[Path]:
    """Return the files of a folder that are for its tokenizer, its processor and its generation of texts.

    Tensors, their index, code, and what tells of a training are left out. Raises `CheckpointError` for links.
    """
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in BESIDE and path.is_file()]
    names = [path.name for path in paths if not (path.name.startswith(".") or path.name.endswith(INDEX))]
    return [within(folder, name) for name in names if name not in OF_A_TRAINING]


def copy_beside(folder: Path, to: Path, without: Iterable[str] = ()) -> None:
    """Copy the files beside the tensors of a folder, and its modules. Raises `CheckpointError` as these do."""
    for path in (path for path in files_beside(folder) if path.name not in without):
        shutil.copyfile(path, to / path.name)
    for name, content in modules_beside(folder).items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_bytes(content)


def modules_beside(folder: Path) -> dict[str, bytes]:
    """Return the files of what sentence-transformers computes after a network, such as a pooling, by their paths.

    Raises `CheckpointError` for a file that is no configuration: of tensors there no mean is computed.
    """
    if not (folder / MODULES).is_file():
        return {}
    with failing_as(lambda error: CheckpointError(f"{folder / MODULES} names no folders ({reason(error)})")):
        named = [within(folder, each["path"]) for each in from_json(within(folder, MODULES).read_bytes())]
    files = [path for module in named if module.is_dir() and module != folder for path in sorted(module.iterdir())]
    if odd := next((path for path in files if path.suffix not in BESIDE), None):
        raise CheckpointError(f"{odd} is of a module of its own, which is not merged; merge networks without it")
    names = [MODULES, *(str(path.relative_to(folder)) for path in files)]
    return {name: within(folder, name).read_bytes() for name in names}
