"""Named tensors from outside, and for outside: torch and safetensors files, and rounds of stored runs.

A file may come from anybody, so nothing that it says is run: torch reads it with `weights_only`.
"""

from __future__ import annotations

import io
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from storage.errors import CheckpointError, PlaceError, UsageError, one_line, reason
from storage.places.schemes import place_of
from storage.runs.names import near, nearest, run_path, stored_round
from storage.runs.run import open_run
from storage.values.tensors import dtype_name, is_dense

SAFETENSORS = ".safetensors"


WRITABLE = (SAFETENSORS, ".pt", ".pth", ".bin")


STATE_KEYS = ("state_dict", "model", "model_state_dict")
"""Where a torch file may keep its state dict beside the optimizer and others."""


WRAPPERS = ("module.", "_orig_mod.")
"""What DataParallel and torch.compile put before every name."""


INTEGER = "integer of shape ()"


WHOSE = "is it of this network?"


BYTEARRAY = b"bytearray"
"""What `weights_only` lets a file make of any length; no state dict has one."""


SAVE = "save it with torch.save(model.state_dict(), …)"


def read_checkpoint(place: str | Path, root: Path | None = None) -> dict[str, torch.Tensor]:
    """Named tensors on the CPU, (*shape) each, as a module's `load_state_dict` takes them.

    `place` is a torch file, a ``.safetensors`` file or a stored round such as ``RUN@12``; ``RUN@-1`` is the last.
    Tensors saved from DataParallel or torch.compile lose the prefix that all of them have.
    Raises `CheckpointError`, and for stored rounds `NotARun`, `RoundMissing` and `StoreDamaged`.
    """
    if stored := stored_round(place):
        run, number = stored
        return open_run(run, root).round(number).tensors
    path = Path(place)
    place_of(path)
    content = _content(path, root)
    load = safetensors.torch.load if path.suffix.lower() == SAFETENSORS else _torch_load
    try:
        value = load(content)
    except Exception as error:  # what a broken file makes torch raise may be anything
        raise CheckpointError(f"{path} {_refusal(error)}") from error
    return _unwrapped({name: _dense(path, name, tensor) for name, tensor in _state_dict(path, value).items()})


def check_place(place: str | Path) -> Path:
    """The path of a file to write; raises `UsageError` for another suffix or a folder that is not there."""
    path = Path(place)
    place_of(path)
    if path.suffix.lower() not in WRITABLE:
        raise UsageError(f"{path}: a checkpoint ends in {', '.join(WRITABLE)}, not in {path.suffix!r}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give the file another name")
    return path


def write_checkpoint(place: str | Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Create or replace a ``.safetensors`` or torch file (``.pt``, ``.pth``, ``.bin``) of named tensors, (*shape).

    Tied tensors stay tied in a torch file, and become equal copies in a safetensors file.
    Raises `UsageError` for what such a file cannot hold, and `CheckpointError` where it cannot be written.
    """
    path = check_place(place)
    if not tensors:
        raise UsageError(f"{path}: there are no tensors to write")
    content = _encoded(path, {name: _dense(path, name, tensor) for name, tensor in tensors.items()})
    try:
        place_of(path.parent).write(path.name, content)
    except PlaceError as error:
        raise CheckpointError(f"{path} cannot be written: {reason(error.__cause__ or error)}") from error


def check_checkpoint(
    place: str | Path, tensors: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    """Raise `CheckpointError` unless the tensors, (*shape), fit those of a network, and are finite in its dtypes.

    Integer scalars, such as ``num_batches_tracked``, may be absent. The values of `expected` are not read.
    """
    _check_names(place, tensors, expected)
    for name, tensor in tensors.items():
        given, wanted = _described(tensor), _described(expected[name])
        if given != wanted:
            raise CheckpointError(f"{place}: {name!r} is {given}, but {wanted} in the network; {WHOSE}")
        dtype = expected[name].dtype
        broken = _not_finite(tensor, dtype)
        if broken:
            number = f"{broken} of {tensor.numel()} elements that are not finite as {dtype_name(dtype)}"
            raise CheckpointError(f"{place}: {name!r} has {number}; take an earlier checkpoint")


def _content(path: Path, root: Path | None) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file; {_hint(path, root)}") from error
    except IsADirectoryError as error:
        what = f"a run; {path}@-1 is its last round" if (path / "zarr.json").exists() else "a folder; name a file"
        raise CheckpointError(f"{path} is {what}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {one_line(error)}") from error
    if not content:
        raise CheckpointError(f"{path} is empty; copy or save it again")
    return content


def _hint(path: Path, root: Path | None) -> str:
    if run_path(root, path).is_dir():
        return f"of the run of that name, {path}@-1 is the last round"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    names = place_of(path.parent).names()
    return nearest(path.name, names, "give a file, or a stored round as RUN@12", most=3)


def _torch_load(content: bytes) -> Any:
    _check_archive(content)
    if BYTEARRAY in content:
        raise pickle.UnpicklingError("GLOBAL builtins.bytearray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of what it then refuses
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _check_archive(content: bytes) -> None:
    """Raise `BadZipFile` for more than there can be and for flipped bits, neither of which torch looks for."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            # torch writes its members as they are, so what is packed was made to take memory.
            if sum(member.file_size for member in members) > len(content):
                raise zipfile.BadZipFile("it promises more than the file is long")
            # It is 0 where torch.serialization.set_crc32_options turned it off.
            for member in (member for member in members if member.CRC):
                archive.read(member)


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
    found = [key for key in STATE_KEYS if _is_state_dict(value.get(key))]
    if len(found) == 1:
        return dict(value[found[0]])
    others = [key for key, item in value.items() if not _is_state_dict({key: item})]
    what = "several state dicts" if found else "what is no named tensor"
    raise CheckpointError(f"{path} holds {what}: {_few(found or others) or 'an empty dict'}; {SAVE}")


def _is_state_dict(value: Any) -> bool:
    items = value.items() if isinstance(value, Mapping) else ()
    return bool(items) and all(isinstance(key, str) and isinstance(item, torch.Tensor) for key, item in items)


def _unwrapped(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for prefix in WRAPPERS:
        if all(name.startswith(prefix) and name != prefix for name in tensors):
            return _unwrapped({name.removeprefix(prefix): tensor for name, tensor in tensors.items()})
    return tensors


def _dense(path: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not is_dense(tensor):
        raise CheckpointError(f"{path}: {name!r} is no dense tensor with values; save it as one")
    return tensor.detach()


def _encoded(path: Path, tensors: Mapping[str, torch.Tensor]) -> bytes:
    if path.suffix.lower() != SAFETENSORS:
        buffer = io.BytesIO()
        torch.save(_tied_copies(tensors), buffer)
        return buffer.getvalue()
    if "__metadata__" in tensors:
        raise UsageError(f"{path}: safetensors keeps the name '__metadata__' for itself; write a .pt file")
    try:
        return safetensors.torch.save({name: _copy(tensor) for name, tensor in tensors.items()})
    except (KeyError, ValueError, SafetensorError) as error:
        raise UsageError(f"{path}: safetensors cannot hold this: {one_line(error)}; write a .pt file") from error


def _tied_copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies without what else lies in the same memory, but one for all names of a tensor."""
    keys = {
        name: (t.device, t.data_ptr(), t.shape, t.stride(), t.dtype, t.is_conj(), t.is_neg())
        for name, t in tensors.items()
    }
    copies = {key: _copy(tensors[name]) for name, key in keys.items()}
    return {name: copies[key] for name, key in keys.items()}


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def _check_names(place: str | Path, tensors: Mapping[str, Any], expected: Mapping[str, torch.Tensor]) -> None:
    absent = [name for name in expected if name not in tensors]
    missing = [name for name in absent if _described(expected[name]) != INTEGER]
    extra = [name for name in tensors if name not in expected]
    if not missing and not extra:
        return
    said = [f"lacks {_few(missing)}"] * bool(missing) + [f"has {_few(extra)} too much"] * bool(extra)
    pairs = ((wanted, near(wanted, extra)) for wanted in (missing or absent)[:3])
    hint = next((f"perhaps {close[0]!r} is {wanted!r}" for wanted, close in pairs if close), WHOSE)
    raise CheckpointError(f"{place} {' and '.join(said)}; {hint}")


def _few(names: Iterable[object]) -> str:
    told = [repr(name) for name in names]
    return ", ".join(told[:3]) + (f" and {len(told) - 3} more, {len(told)} in all" if len(told) > 3 else "")


def _described(tensor: torch.Tensor) -> str:
    dtype = tensor.dtype
    number = "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "integer"
    return f"{'bool' if dtype == torch.bool else number} of shape {tuple(tensor.shape)}"


def _not_finite(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0
    values = tensor.to(dtype)
    values = values.float() if values.itemsize == 1 else values  # isfinite knows no float8
    return int(values.numel() - values.isfinite().sum())
