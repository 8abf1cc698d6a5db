"""Read named tensors from a torch or safetensors file, or several, each when it is asked for, without caching it.

A file may come from anybody, so no code in it is executed: torch files are read with `weights_only`.
"""

from __future__ import annotations

import functools
import mmap
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from roundweave.storage.errors import CheckpointError, one_line
from roundweave.storage.parsing import from_json
from roundweave.storage.values.lazy import BLOCK, LazyTensors, Tensors, known_places, picked
from roundweave.storage.values.tensors import Specs, TensorSpec, is_dense, specs_of

SAFETENSORS = ".safetensors"


SUFFIXES = (SAFETENSORS, ".pt", ".pth", ".bin")


DTYPES = {
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{"bool": "BOOL", "bfloat16": "BF16", "complex64": "C64"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
    **{"float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"},
}
"""The names that the safetensors format has for torch's dtypes."""


STATE_KEYS = ("state_dict", "model", "model_state_dict")
"""Keys under which a torch file may hold the state dict, next to the optimizer's state and the like."""


WRAPPERS = ("module.", "_orig_mod.")
"""Prefixes that DataParallel and torch.compile put before every tensor's name."""


BYTEARRAY = b"bytearray"
"""The type that `weights_only` lets a file allocate at any length. No state dict needs it, so it is refused."""


SAVE = "save it with torch.save(model.state_dict(), …)"


INDEX = ".index.json"


LARGEST_INDEX = 1 << 26
"""The most bytes that an index may have, enough for some hundred thousand names."""


MOST_MAPPED = 1 << 26
"""The bytes that are read from a mapped file before it is mapped anew, since what was read counts as memory."""


Stamp = tuple[int, int]
"""A file's modification time in nanoseconds and its size in bytes. Another stamp means another content."""


def open_file(path: Path) -> Tensors:
    """Return the named tensors of a file, each of its own shape, read one at a time when they are asked for.

    The file is checked to be complete first. Prefixes that DataParallel or torch.compile put before all names are
    removed. Raises `CheckpointError` if the file is broken, and when a tensor is read after the file changed.
    """
    if path.suffix.lower() == SAFETENSORS:
        return _lazy(path, _SafetensorsFile())
    if _guarded(path, zipfile.is_zipfile):
        return _lazy(path, _TorchFile())
    tensors = _guarded(path, _torch_tensors)  # the format of torch before 1.6 can only be read as a whole
    prefix = _prefix(tensors)
    return {name.removeprefix(prefix): dense(path, name, tensor) for name, tensor in tensors.items()}


def dense(path: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor detached from autograd, of the same shape.

    Raises `CheckpointError` for one that is not dense.
    """
    if not is_dense(tensor):
        raise CheckpointError(f"{path}: {name!r} is no dense tensor with values; save it as one")
    return tensor.detach()


def few(names: Iterable[object]) -> str:
    """Return the first three names, quoted, and how many more there are."""
    quoted = [repr(name) for name in names]
    more = f" and {len(quoted) - 3} more, {len(quoted)} in all" if len(quoted) > 3 else ""
    return ", ".join(quoted[:3]) + more


def _lazy(path: Path, file: _SafetensorsFile | _TorchFile) -> LazyTensors:
    stamp, found = _stamp(path), _guarded(path, file.specs)
    prefix = _prefix(spec.name for spec in found)
    specs = tuple(replace(spec, name=spec.name.removeprefix(prefix)) for spec in found)
    names, read = tuple(spec.name for spec in specs), partial(_read, path, stamp, prefix, file.tensor)
    if isinstance(file, _SafetensorsFile):
        return LazyTensors(names, read, specs, partial(_stream, path, stamp, prefix, file.blocks))
    places = {name.removeprefix(prefix): place for name, place in file.places.items()}
    return LazyTensors(names, read, specs, places=places)


def _read(
    path: Path, stamp: Stamp, prefix: str, tensor_in: Callable[[str, Path], torch.Tensor], name: str
) -> torch.Tensor:
    _check_unchanged(path, stamp)  # before it is read as well: a mapped file that became shorter ends the process
    tensor = _guarded(path, partial(tensor_in, prefix + name))
    _check_unchanged(path, stamp)
    return dense(path, name, tensor)


def _stream(
    path: Path, stamp: Stamp, prefix: str, blocks_in: Callable[[str, Path], Iterator[torch.Tensor]], name: str
) -> Iterator[torch.Tensor]:
    _check_unchanged(path, stamp)
    blocks = blocks_in(prefix + name, path)
    while (block := _guarded(path, lambda _: next(blocks, None))) is not None:
        yield block
    _check_unchanged(path, stamp)


def _check_unchanged(path: Path, stamp: Stamp) -> None:
    if _stamp(path) != stamp:
        raise CheckpointError(f"{path} has changed while it was read; do it again")


def _guarded(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except CheckpointError:
        raise
    except Exception as error:  # a broken file can make torch raise any error
        raise CheckpointError(f"{path} {_refusal(error)}") from error


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


class _SafetensorsFile:
    """A safetensors file that is read without a memory map, whose pages would count as the process's memory."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[TensorSpec, int]] = {}

    def specs(self, path: Path) -> Specs:
        """Return the specs of the tensors in the file."""
        with safe_open(path, "pt") as opened:  # it checks the header, which is then read as it is
            names = list(opened.keys())
        if not names:
            raise CheckpointError(f"{path} holds what is no named tensor: an empty dict; {SAVE}")
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header, known = from_json(file.read(length)), {code: dtype for dtype, code in DTYPES.items()}
        for name in names:
            code, (first, _) = header[name]["dtype"], header[name]["data_offsets"]
            if code not in known:
                raise CheckpointError(f"{path}: {name!r} is of {code}, which no network holds; save another dtype")
            self._places[name] = TensorSpec(name, known[code], tuple(header[name]["shape"])), 8 + length + first
        return [self._places[name][0] for name in names]

    def tensor(self, name: str, path: Path) -> torch.Tensor:
        """Return one tensor, of its own shape."""
        spec, _ = self._places[name]
        return next(self.blocks(name, path, max(spec.size, 1))).view(spec.shape)

    def blocks(self, name: str, path: Path, most: int = BLOCK) -> Iterator[torch.Tensor]:
        """Yield the elements of a tensor in blocks (element,). Each block takes the memory of the one before."""
        spec, start = self._places[name]
        memory = torch.empty(min(most, spec.size), dtype=getattr(torch, spec.dtype))
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            for first in range(0, max(spec.size, 1), most):
                block = memory[: spec.size - first]
                left = block.view(torch.uint8).numpy().data
                while left:
                    if not (count := file.readinto(left)):
                        raise EOFError(f"the file ends within {name}")
                    left = left[count:]
                yield block


class _TorchFile:
    """A torch file that stays mapped from one tensor to the next, since it takes long to open."""

    def __init__(self) -> None:
        self._mapped: dict[str, torch.Tensor] = {}
        self._read = 0
        self.places: dict[str, Hashable] = {}

    def specs(self, path: Path) -> Specs:
        """Return the specs of the tensors in the file, whose places are noted."""
        self._mapped = self._mapped or _torch_tensors(path, mapped=True)
        self.places.update(known_places(self._mapped))
        return specs_of(self._mapped.items())

    def tensor(self, name: str, path: Path) -> torch.Tensor:
        """Return a copy of one tensor; the file is mapped anew after `MOST_MAPPED` bytes."""
        self._mapped = self._mapped or _torch_tensors(path, mapped=True)
        tensor = self._mapped[name]
        tensor = tensor.clone() if tensor.layout == torch.strided else tensor
        self._read += tensor.numel() * tensor.itemsize
        if self._read > MOST_MAPPED:
            self._mapped, self._read = {}, 0
        return tensor


def _torch_tensors(path: Path, mapped: bool = False) -> dict[str, torch.Tensor]:
    """Return the state dict of a torch file; where `mapped`, tensors are read from the file when they are used."""
    _check_torch(path, _stamp(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch warns of here is followed by an error
        return _state_dict(path, torch.load(path, map_location="cpu", weights_only=True, mmap=mapped))


@functools.lru_cache(maxsize=64)
def _check_torch(path: Path, stamp: Stamp) -> None:
    """Raise an error for flipped bits, a `bytearray`, and a file that would take more memory than its size.

    The result is cached by the file's path and stamp.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(BYTEARRAY) >= 0:
            raise pickle.UnpicklingError("GLOBAL builtins.bytearray")
    if zipfile.is_zipfile(path):
        _check_archive(path, stamp[1])


def _check_archive(path: Path, length: int) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        # torch does not compress its members, so a compressed one was made to exhaust memory.
        if sum(member.file_size for member in members) > length:
            raise zipfile.BadZipFile("it promises more than the file is long")
        # The CRC is 0 where torch.serialization.set_crc32_options turned it off.
        for member in (member for member in members if member.CRC):
            with archive.open(member) as packed:
                while packed.read(1 << 20):
                    pass


def _refusal(error: Exception) -> str:
    code = re.search(r"GLOBAL ([\w.]+)|TorchScript", str(error))
    if code:
        return f"holds code, {code[1] or code[0]}, which weights_only refuses; {SAVE}"
    cause = one_line(error).partition(". ")[0]
    return f"is truncated, corrupt or no checkpoint ({cause}); copy it again, or {SAVE}"


def _state_dict(path: Path, value: Any) -> dict[str, torch.Tensor]:
    if _is_state_dict(value):
        return dict(value)
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{path} holds a {type(value).__name__}, not named tensors; {SAVE}")
    state_dicts = [key for key in STATE_KEYS if _is_state_dict(value.get(key))]
    if len(state_dicts) == 1:
        return dict(value[state_dicts[0]])
    others = [key for key, member in value.items() if not _is_state_dict({key: member})]
    what = "several state dicts" if state_dicts else "what is no named tensor"
    raise CheckpointError(f"{path} holds {what}: {few(state_dicts or others) or 'an empty dict'}; {SAVE}")


def _is_state_dict(value: Any) -> bool:
    items = value.items() if isinstance(value, Mapping) else ()
    return bool(items) and all(isinstance(key, str) and isinstance(each, torch.Tensor) for key, each in items)


def _prefix(names: Iterable[str]) -> str:
    """Return the prefix of `WRAPPERS`, or several of them, that all names share; empty if there is none."""
    every = list(names)
    for prefix in WRAPPERS:
        if all(name.startswith(prefix) and name != prefix for name in every):
            return prefix + _prefix(name.removeprefix(prefix) for name in every)
    return ""


def within(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder. Raises `CheckpointError` for a link that leads out of the folder.

    Links of a snapshot in the cache of Hugging Face may lead to the blobs of the same cache.
    """
    path, home = folder / name, folder.resolve()
    blobs = home.parent.with_name("blobs") if home.parent.name == "snapshots" else home
    if not any(map(path.resolve().is_relative_to, (home, blobs))):
        raise CheckpointError(f"{path} is a link that leads out of the folder; put the file itself in its place")
    return path


def is_index(path: Path) -> bool:
    """Tell whether a file's name is that of an index of shards, such as ``model.safetensors.index.json``."""
    return path.name.lower().endswith(tuple(f"{suffix}{INDEX}" for suffix in SUFFIXES))


def open_shards(path: Path) -> Tensors:
    """Return the named tensors of all shards, each of its own shape, read one at a time when they are asked for.

    The index may come from anybody, so shards in another folder are refused, as `within` does. Raises
    `CheckpointError`.
    """
    places = _weight_map(path)
    shards = {name: open_file(_beside(path, name)) for name in sorted(set(places.values()))}
    for shard, tensors in shards.items():
        named = {name for name, place in places.items() if place == shard}
        if odd := sorted(named ^ set(tensors)):
            raise CheckpointError(f"{path} and {shard} do not agree on {few(odd)}; copy both again")
    return picked({name: (shards[place], name) for name, place in places.items()})


def _weight_map(path: Path) -> dict[str, str]:
    if path.stat().st_size > LARGEST_INDEX:
        raise CheckpointError(f"{path} is too large for an index of shards; copy it again")
    try:
        document: Any = from_json(path.read_bytes())
        places = document["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is no index of shards, a JSON object with a weight_map") from error
    if not isinstance(places, dict) or not places or not all(isinstance(place, str) for place in places.values()):
        raise CheckpointError(f"{path}: its weight_map does not say in which file each tensor is; copy it again")
    return places


def _beside(index: Path, shard: str) -> Path:
    plain = shard not in ("", "..") and shard == Path(shard).name and "\\" not in shard and "\0" not in shard
    path = within(index.parent, shard) if plain else None
    if path is None or path.suffix.lower() not in SUFFIXES:
        raise CheckpointError(f"{index} names the shard {shard!r}, no checkpoint beside it; copy it again")
    if not path.is_file():
        raise CheckpointError(f"{index} names the shard {shard}, which is not beside it; copy all shards")
    return path
