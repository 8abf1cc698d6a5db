"""Write named tensors to a torch or safetensors file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from storage.checkpoints.files import SAFETENSORS, SUFFIXES, dense
from storage.errors import CheckpointError, UsageError, one_line
from storage.places.addresses import Where, file_path
from storage.places.base import PARTIAL
from storage.places.local import FOLDER, sync_and_close


def check_place(place: Where) -> Path:
    """The path of a checkpoint to write; raises `UsageError` for an unknown suffix or a missing folder."""
    return file_path(place, "a checkpoint", SUFFIXES)


def write_checkpoint(
    place: Where, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Create or replace a ``.safetensors`` or torch file (``.pt``, ``.pth``, ``.bin``) of named tensors.

    Tensors have any shapes. Tied tensors stay tied in a torch file and become equal copies in a safetensors file.
    `metadata` is written to safetensors files only. Raises `UsageError` for tensors that such a file cannot hold,
    and `CheckpointError` where the file cannot be written.
    """
    path = check_place(place)
    if not tensors:
        raise UsageError(f"{path}: there are no tensors to write")
    named = {name: dense(path, name, tensor) for name, tensor in tensors.items()}
    if path.suffix.lower() == SAFETENSORS:
        _write(path, lambda partial: _save_safetensors(path, named, partial, metadata))
    else:
        _write(path, lambda partial: torch.save(_tied(named), partial))


def _write(path: Path, save: Callable[[Path], None]) -> None:
    try:
        with _beside(path) as partial:
            save(partial)
            # Synced before the rename: a power loss in between must not cost the file that is replaced.
            sync_and_close(os.open(partial, os.O_RDONLY))
            partial.replace(path)
            sync_and_close(os.open(path.parent, FOLDER))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {one_line(error)}") from error


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """The path of a temporary file beside `path`, which is deleted at the end unless it was renamed."""
    partial = path.with_name(f".{secrets.token_hex(8)}{PARTIAL}")
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _save_safetensors(
    path: Path, tensors: Mapping[str, torch.Tensor], partial: Path, metadata: Mapping[str, str] | None
) -> None:
    if "__metadata__" in tensors:
        raise UsageError(f"{path}: safetensors keeps the name '__metadata__' for itself; write a .pt file")
    partial.touch()
    mode = partial.stat().st_mode
    # Readers such as transformers look for the format in metadata, where a file has any.
    header = {"format": "pt", **metadata} if metadata else None
    try:
        safetensors.torch.save_file(_apart(tensors), partial, header)
    except (KeyError, ValueError, SafetensorError) as error:
        raise UsageError(f"{path}: safetensors cannot hold this: {one_line(error)}; write a .pt file") from error
    partial.chmod(mode)  # safetensors makes files that only their owner may read


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same values in tensors that share no memory: a tensor that shares its memory is copied."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        apart[name] = _copy(tensor) if tensor.untyped_storage().data_ptr() in seen else _alone(tensor)
        seen.add(tensor.untyped_storage().data_ptr())
    return apart


def _tied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors without unused memory behind them, where tied names stand for one tensor.

    torch saves all of a tensor's memory, so a small view of a large tensor would be saved as the large one.
    """
    keys = {
        name: (t.device, t.data_ptr(), t.shape, t.stride(), t.dtype, t.is_conj(), t.is_neg())
        for name, t in tensors.items()
    }
    alone = {key: _alone(tensors[name]) for name, key in keys.items()}
    return {name: alone[key] for name, key in keys.items()}


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where it fills its memory, is contiguous and on the CPU; otherwise a copy that does."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
    plain = tensor.device.type == "cpu" and not (tensor.is_conj() or tensor.is_neg())
    return tensor if whole and plain and tensor.is_contiguous() else _copy(tensor)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
