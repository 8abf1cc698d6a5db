"""Write named tensors to a torch or safetensors file."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import torch

from roundweave.storage.checkpoints.files import DTYPES, SAFETENSORS, SUFFIXES, dense
from roundweave.storage.errors import CheckpointError, UsageError, one_line
from roundweave.storage.places.base import PARTIAL, Where, as_path, file_path
from roundweave.storage.places.local import FOLDER, sync_and_close
from roundweave.storage.values.lazy import LazyTensors, Tensors, blocks_of, memory_of
from roundweave.storage.values.tensors import Specs, little_bytes, specs_of, to_numpy

WRITTEN = ".written-"
"""Begins the names of folders with what is not yet whole."""


CARD = "README.md"
"""The file of the card in an exported folder."""

MARK = "<!-- written by roundweave export, which may replace this folder -->"
"""The first line of a card, by which the folder is known as one that an export wrote."""


def is_folder(to: str) -> bool:
    """Tell whether a network is written to a folder there, or else to a file. Raises `UsageError`."""
    path = as_path(to)
    if not to.strip():
        raise UsageError(f"{to!r} is no target of an export; give a folder, a file or a tracker")
    if to.endswith("/") or path.is_dir():
        return True
    if path.suffix.lower() in SUFFIXES:
        return False
    if path.suffix:
        known = f"a checkpoint ends in {', '.join(SUFFIXES)}, not in {path.suffix!r}"
        raise UsageError(f"{to}: {known}; a folder whose name has a dot ends in /")
    return True


def check_folder(to: str, replace: bool = True) -> Path:
    """Return the path of a folder to write. Raises `UsageError` if something lies that may not be replaced."""
    folder = as_path(to).resolve()
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{to} is a file; give the folder another name")
    if not folder.is_dir() or not any(folder.iterdir()):
        return folder
    if not (folder / CARD).is_file() or not (folder / CARD).read_bytes().startswith(MARK.encode()):
        raise UsageError(f"{to} has files that no export wrote; give another folder")
    if not replace:
        raise UsageError(f"{to} exists already; give another name, or --force to replace it")
    return folder


def check_place(place: Where, replace: bool = True) -> Path:
    """Return the path of a checkpoint to write. Raises `UsageError` as `file_path` does."""
    return file_path(place, "a checkpoint", SUFFIXES, replace)


def write_checkpoint(place: Where, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> None:
    """Create or replace a ``.safetensors`` or torch file (``.pt``, ``.pth``, ``.bin``) of named tensors.

    Tensors have any shapes. Tied tensors stay tied in a torch file and become equal copies in a safetensors file,
    which is written a block of elements at a time; the tensors of a torch file are all in memory before.
    `metadata` is written to safetensors files only. Raises `UsageError` for tensors that such a file cannot hold,
    and `CheckpointError` if the file cannot be written.
    """
    path = check_place(place)
    if not tensors:
        raise UsageError(f"{path}: there are no tensors to write")
    if path.suffix.lower() == SAFETENSORS:
        _write(path, lambda partial: _save_safetensors(path, tensors, partial, metadata))
    else:
        named = {name: dense(path, name, tensor) for name, tensor in tensors.items()}
        _write(path, lambda partial: torch.save(_tied(named), partial))


def _write(path: Path, save: Callable[[Path], None]) -> None:
    """Have a temporary file beside `path` written, and rename it."""
    try:
        with partial_folder(path) as folder:
            save(partial := folder / "whole")
            # Synced before the rename: a power loss in between must not cost the file that is replaced.
            sync_and_close(os.open(partial, os.O_RDONLY))
            partial.replace(path)
            sync_and_close(os.open(path.parent, FOLDER))
    except (OSError, RuntimeError) as error:  # torch has the latter for a disk that is full
        raise CheckpointError(f"{path} cannot be written: {one_line(error)}") from error


@contextmanager
def partial_folder(place: Path) -> Iterator[Path]:
    """A new folder beside a place for what is to take the place, which is removed at the end if it is left.

    What killed writers left there is removed before, unless others are at work: each holds a lock of the folder
    that the place is in, which ends with its process.
    """
    # The temporary name does not contain the place's name, which may be as long as names can be.
    partial = place.with_name(f"{WRITTEN}{secrets.token_hex(8)}{PARTIAL}")
    above = os.open(place.parent, FOLDER)
    try:
        with suppress(OSError):  # others are at work, or the disk has no locks
            fcntl.flock(above, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in place.parent.glob(f"{WRITTEN}*{PARTIAL}"):
                shutil.rmtree(left)
        with suppress(OSError):
            fcntl.flock(above, fcntl.LOCK_SH)
        partial.mkdir()
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(above)


def _save_safetensors(path: Path, tensors: Tensors, partial: Path, metadata: Mapping[str, str] | None) -> None:
    """Write the format of safetensors: the header's length, the header in JSON, and the tensors without gaps.

    Larger dtypes come first, so that each tensor is aligned to its own, and then the order is that of the names.
    """
    specs = sorted(_specs(path, tensors), key=lambda spec: (-_bytes(spec.dtype), spec.name))
    # Readers such as transformers look for the format in metadata.
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for spec in specs:
        start, end = end, end + spec.size * _bytes(spec.dtype)
        header[spec.name] = {"dtype": DTYPES[spec.dtype], "shape": spec.shape, "data_offsets": (start, end)}
    try:
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{path}: safetensors cannot hold this: {one_line(error)}; write a .pt file") from error
    text += b" " * (-len(text) % 8)
    with partial.open("wb") as file, _behind(file) as write:
        write(len(text).to_bytes(8, "little") + text)
        for spec in specs:
            for block in blocks_of(tensors, spec.name):
                write(little_bytes(to_numpy(_plain(dense(path, spec.name, block)))).data)


@contextmanager
def _behind(file: BinaryIO) -> Iterator[Callable[[bytes | memoryview], None]]:
    """Yield a function that writes to a file while the caller goes on, one piece after the other.

    A piece is copied before it returns. An error is raised at the next piece, or at the end.
    """
    with ThreadPoolExecutor(1) as pool:
        last, memory = pool.submit(int), [memoryview(bytearray())] * 2

        def write(piece: bytes | memoryview) -> None:
            nonlocal last
            if len(memory[0]) < len(piece):
                memory[0] = memoryview(bytearray(len(piece)))
            copy = memory[0][: len(piece)]
            copy[:] = piece
            last.result()
            last = pool.submit(file.write, copy)
            memory.reverse()

        yield write
        last.result()


def _specs(path: Path, tensors: Tensors) -> Specs:
    """Return the specs of the tensors, which are read one by one where these are not known."""
    known = tensors.specs if isinstance(tensors, LazyTensors) else ()
    specs = known or specs_of((name, dense(path, name, tensor)) for name, tensor in tensors.items())
    for spec in specs:
        if spec.name == "__metadata__":
            raise UsageError(f"{path}: safetensors keeps the name '__metadata__' for itself; write a .pt file")
        if spec.dtype not in DTYPES:
            raise UsageError(f"{path}: safetensors cannot hold {spec.name!r}, of {spec.dtype}; write a .pt file")
    return specs


def _bytes(dtype: str) -> int:
    """Return the bytes of one element."""
    size: int = getattr(torch, dtype).itemsize
    return size


def _tied(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors without unused memory behind them, where tied names stand for one tensor.

    torch saves all of a tensor's memory, so a small view of a large tensor would be saved as the large one.
    """
    keys = {name: memory_of(tensor) for name, tensor in tensors.items()}
    alone = {key: _alone(tensors[name]) for name, key in keys.items()}
    return {name: alone[key] for name, key in keys.items()}


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself where it fills its memory, is contiguous and on the CPU.

    Otherwise a copy that does.
    """
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
    plain = tensor.device.type == "cpu" and not (tensor.is_conj() or tensor.is_neg())
    kept = whole and plain and tensor.is_contiguous()
    return tensor if kept else _plain(tensor).clone(memory_format=torch.contiguous_format)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor on the CPU, its elements stored as they are read, neither conjugated nor negated then."""
    return tensor.cpu().resolve_conj().resolve_neg()
