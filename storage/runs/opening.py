"""Open checkpoints, which are files of tensors or rounds of stored runs, and check that they fit a network."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from roundweave.storage.checkpoints.files import few, is_index, open_file, open_shards
from roundweave.storage.checkpoints.folders import tensors_file
from roundweave.storage.errors import CheckpointError, near, nearest, one_line
from roundweave.storage.places.base import Where, as_path, full_address
from roundweave.storage.places.schemes import place_of
from roundweave.storage.runs.names import is_run, run_address, stored_round
from roundweave.storage.runs.run import Opener, open_stored
from roundweave.storage.values.lazy import LazyTensors, Tensors, changed, known_places, known_specs, picked
from roundweave.storage.values.tensors import dtype_name, specs_of

INTEGER = "integer of shape ()"


WHOSE = "is it of this network?"


def open_checkpoint(place: Where, root: Where | None = None, opened: Opener = open_stored) -> Tensors:
    """Named tensors of a checkpoint on the CPU, which are read from files one by one when they are asked for.

    `place` is a torch file, a ``.safetensors`` file, the index of a checkpoint in shards
    (``model.safetensors.index.json``), a folder with one of these as `save_pretrained` of transformers writes it,
    or a stored round such as ``RUN@12``, where ``RUN@-1`` is the last one, of a run that `opened` opens. Prefixes
    that DataParallel or torch.compile put before all names are removed. Raises `CheckpointError`, and for stored
    rounds `NotARun`, `RoundMissing` and `StoreDamaged`.
    """
    if stored := stored_round(place):
        run, number = stored
        return opened(run, root).round(number).tensors
    path = _existing(tensors_file(path) if is_folder_of_tensors(path := as_path(place)) else path, root)
    return open_shards(path) if is_index(path) else open_file(path)


def is_folder_of_tensors(path: Path) -> bool:
    """Tell whether a path is a folder that may hold a checkpoint, and no run."""
    return os.path.isdir(path) and not (path / "zarr.json").exists()  # noqa: PTH112, it takes names of any length


def lasting(place: Where, root: Where | None = None) -> str:
    """Return the full address of a checkpoint, which means the same from any folder and at any later time.

    A round such as ``RUN@last`` is replaced by its number. A link keeps its name, which tells the file's format.
    """
    if stored := stored_round(place):
        run = open_stored(stored[0], root)
        return f"{full_address(run.address)}@{run.round(stored[1]).number}"
    path = path if is_folder_of_tensors(path := as_path(place)) else _existing(path, root)
    return str(path.parent.resolve() / path.name)


def check_checkpoint(place: str | Path, tensors: Tensors, expected: Tensors, values: bool = True) -> None:
    """Raise `CheckpointError` unless tensors have the names and shapes of a network and are finite in its dtypes.

    `expected` has the network's tensors, of which the values are not read. Integer scalars, such as
    ``num_batches_tracked``, may be missing, and so may all but one of tied tensors. What is not trained may be
    infinite, if `expected` is an outline. Without `values` no tensor is read, and none checked to be finite.
    """
    tensors = _with_tied(tensors, expected)
    _check_names(place, tensors, expected)
    for spec in known_specs(tensors):
        actual = _kind(getattr(torch, spec.dtype), spec.shape)
        if actual != (wanted := _described(expected[spec.name])):
            raise CheckpointError(f"{place}: {spec.name!r} is {actual}, but {wanted} in the network; {WHOSE}")
    for name in tensors if values else ():
        check_finite(place, name, tensors[name], expected[name])


def check_finite(place: str | Path, name: str, tensor: torch.Tensor, expected: torch.Tensor) -> None:
    """Raise `CheckpointError` unless a tensor (*shape) is finite in a network's dtype; see `check_checkpoint`."""
    masks = expected.is_meta and not expected.requires_grad  # only outlines tell
    if broken := _not_finite(tensor, expected.dtype, masks):
        number = f"{broken} of {tensor.numel()} elements that are not finite as {dtype_name(expected.dtype)}"
        raise CheckpointError(f"{place}: {name!r} has {number}; take an earlier checkpoint")


def outline(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a network's tensors without their values, on the meta device; only integer scalars keep theirs.

    Those that are tied, as they are one tensor under several names, are one here, too, and trained ones are so.
    """
    named, outlines = network.state_dict(keep_vars=True), dict[int, torch.Tensor]()
    for tensor in named.values():
        empty = torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad)
        outlines.setdefault(id(tensor), tensor.detach() if _described(tensor) == INTEGER else empty)
    return {name: outlines[id(tensor)] for name, tensor in named.items()}


def outline_of(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint without values, like those of a network that trains all floats."""
    empty = {
        spec.name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
        for spec in known_specs(tensors)
    }
    return {name: tensor.requires_grad_(tensor.is_floating_point()) for name, tensor in empty.items()}


def tied_in(checkpoints: Sequence[Tensors]) -> dict[str, str]:
    """By name the first name of a tensor that has several in all checkpoints, as only torch files know."""
    firsts: dict[tuple[Hashable, ...], str] = {}
    every = [known_places(tensors) for tensors in checkpoints]
    names = [name for name in checkpoints[0] if all(name in places for places in every)]
    first = {name: firsts.setdefault(tuple(places[name] for places in every), name) for name in names}
    return {name: other for name, other in first.items() if name != other}


def types_of(checkpoints: Iterable[Tensors]) -> dict[str, torch.dtype]:
    """By name the dtype that holds the floats of a tensor in all checkpoints; floats of 8 bits become float32."""
    types: dict[str, torch.dtype] = {}
    for spec in (spec for tensors in checkpoints for spec in known_specs(tensors)):
        dtype: torch.dtype = getattr(torch, spec.dtype)
        if dtype.is_floating_point:
            dtype = dtype if dtype.itemsize > 1 else torch.float32
            types[spec.name] = torch.promote_types(types.get(spec.name, dtype), dtype)
    return types


def fitted(tensors: Tensors, expected: Tensors, types: Mapping[str, torch.dtype] | None = None) -> LazyTensors:
    """Return tensors of a checkpoint in the dtypes of a network.

    Missing integer scalars are taken from the network.

    The tensors must have passed `check_checkpoint`. They are read when they are asked for, and `expected` may be
    an `outline` of the network. `types` has other dtypes for some tensors, by name; tied ones have the same.
    """

    known, dtypes = _with_tied(tensors, expected), {id(each): each.dtype for each in expected.values()}
    dtypes |= {id(expected[name]): dtype for name, dtype in (types or {}).items()}
    there = picked({name: (known if name in known else expected, name) for name in expected})
    specs = specs_of((name, tensor.to(dtypes[id(tensor)])) for name, tensor in expected.items())
    return changed(there, specs, lambda name, tensor: tensor.to(dtypes[id(expected[name])]))


def _with_tied(tensors: Tensors, expected: Tensors) -> Tensors:
    """Return tensors with those that a file leaves out because they are tied to others, as safetensors does."""
    there = {id(tensor): name for name, tensor in expected.items() if name in tensors}
    tied = {n: there[id(t)] for n, t in expected.items() if n not in tensors and id(t) in there}
    if not tied:
        return tensors
    return picked({name: (tensors, tied.get(name, name)) for name in (*tensors, *tied)})


def _existing(place: Where, root: Where | None) -> Path:
    """Return the path of a readable, non-empty file.

    Raises `CheckpointError` for any other, and `UsageError` for an address that is not on this machine.
    """
    path = as_path(place)
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file; {_hint(path, root)}") from error
    except IsADirectoryError as error:
        raise CheckpointError(f"{path} is a run; {path}@-1 is its last round") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {one_line(error)}") from error
    if empty:
        raise CheckpointError(f"{path} is empty; copy or save it again")
    return path


def _hint(path: Path, root: Where | None) -> str:
    if is_run(run_address(root, path)):
        return f"of the run of that name, {path}@-1 is the last round"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    names = place_of(path.parent).names()
    return nearest(path.name, names, "give a file, or a stored round as RUN@12", most=3)


def _check_names(place: str | Path, tensors: Mapping[str, Any], expected: Tensors) -> None:
    absent = [name for name in expected if name not in tensors]
    missing = [name for name in absent if _described(expected[name]) != INTEGER]
    extra = [name for name in tensors if name not in expected]
    if not missing and not extra:
        return
    problems = [f"lacks {few(missing)}"] * bool(missing) + [f"has {few(extra)} too much"] * bool(extra)
    pairs = ((wanted, near(wanted, extra)) for wanted in (missing or absent)[:3])
    hint = next((f"perhaps {close[0]!r} is {wanted!r}" for wanted, close in pairs if close), WHOSE)
    raise CheckpointError(f"{place} {' and '.join(problems)}; {hint}")


def _described(tensor: torch.Tensor) -> str:
    return _kind(tensor.dtype, tensor.shape)


def _kind(dtype: torch.dtype, shape: Sequence[int]) -> str:
    number = "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "integer"
    return f"{'bool' if dtype == torch.bool else number} of shape {tuple(shape)}"


def _not_finite(tensor: torch.Tensor, dtype: torch.dtype, masks: bool) -> int:
    """Count the elements that a network cannot have: NaN, and infinity unless it may be a mask with -inf."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0
    values = tensor.to(dtype)
    values = values.float() if values.itemsize == 1 else values  # isfinite does not support float8
    if not dtype.is_complex and values.numel() and all(math.isfinite(end.item()) for end in values.aminmax()):
        return 0  # in one pass without memory of its own
    return int(values.isnan().sum() + (0 if masks else values.isinf().sum()))
