"""Writing down the operations of a step while it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from storage.values.tensors import same_bits
from tasks.maps.stepping.programs import NOWHERE, Operation, Place, Program, leaves, mapped

Geometry = tuple[Any, ...]
"""Where a tensor lies in memory, and how: while all that was seen is alive, two with the same are one value."""

UNREPLAYABLE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def geometry(tensor: torch.Tensor) -> Geometry:
    """Pointer, dtype, shape and stride; autograd hands out other objects for the tensors that it has saved."""
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


class Recorder(TorchDispatchMode):
    """Within it, operations are done and written down, those of the backward pass as well.

    `inputs` are the tensors that change from step to step; all others are constants. `reason` tells why the
    operations cannot be done again to the same end, None where they can.
    """

    # Without this, the first operation imports torch's compiler: 800 modules, a second and more.
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.reason: str | None = None
        self._operations: list[tuple[Any, ...]] = []  # the fields of each
        self._inputs = tuple(inputs)
        self._places = {geometry(tensor): Place(place) for place, tensor in enumerate(inputs)}
        self._count = len(inputs)
        self._alive: list[Any] = []
        self._constants: dict[Place, tuple[torch.Tensor, torch.Tensor, int]] = {}
        if len(self._places) < len(inputs) or not all(tensor.numel() for tensor in inputs):
            self.reason = "two of its tensors are one, or one is empty"

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        keywords = keywords or {}
        given = leaves([arguments, list(keywords.values())])
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        self.reason = self.reason or _refusal(function, given, tensors)
        if self.reason is not None:
            return function(*arguments, **keywords)
        placed = mapped(self._placed, torch.Tensor, (arguments, keywords))
        before = [geometry(tensor) for tensor in tensors]
        returned = function(*arguments, **keywords)
        self._alive.append((arguments, keywords, returned))
        if before != [geometry(tensor) for tensor in tensors]:
            self.reason = f"{function} moves a tensor"
        self._add(function, placed, leaves(returned))
        return returned

    def program(self, loss: torch.Tensor, gradients: Sequence[torch.Tensor]) -> Program:
        """What was written down, as a function of the inputs to the loss and the gradients.

        Each gradient is given in memory of its own, in the order of its elements, as a backward pass gives it.
        """
        outputs = []
        for value in (loss, *gradients):
            outputs.append(self._placed(value))
        for number in range(1, len(outputs)):
            others = [*self._inputs, loss, *gradients[: number - 1], *gradients[number:]]
            if not _is_apart(gradients[number - 1], others):
                outputs[number] = self._copied(outputs[number])
        self.reason = self.reason or self._changed_constant()
        constants = {place: tensor.detach() for place, (tensor, *_) in self._constants.items()}
        operations = tuple(Operation(*fields) for fields in self._operations)
        return Program(len(self._inputs), constants, operations, tuple(outputs))

    def _placed(self, tensor: torch.Tensor) -> Place:
        """The place of a tensor; one that no operation gave is a constant."""
        known = geometry(tensor) in self._places
        place = self._place(geometry(tensor))
        if not known:
            self._constants[place] = (tensor, tensor.detach().clone(), tensor._version)
        return place

    def _add(self, function: Any, placed: Any, returned: list[Any]) -> None:
        if not all(value is None or isinstance(value, torch.Tensor) for value in returned):
            self.reason = f"{function} gives a number"
            return
        keys = [None if value is None else geometry(value) for value in returned]
        # What only shows memory that is known, such as a transpose of a transpose, need not be done again.
        if not function._schema.is_mutable and all(key is None or key in self._places for key in keys):
            return
        results = [NOWHERE if key is None else self._place(key) for key in keys]
        self._operations.append((function, *placed, tuple(results)))

    def _place(self, key: Geometry) -> Place:
        if key not in self._places:
            self._places[key] = self._new_place()
        return self._places[key]

    def _new_place(self) -> Place:
        self._count += 1
        return Place(self._count - 1)

    def _copied(self, place: Place) -> Place:
        copied, form = self._new_place(), {"memory_format": torch.contiguous_format}
        self._operations.append((torch.ops.aten.clone.default, (place,), form, (copied,)))
        return copied

    def _changed_constant(self) -> str | None:
        for tensor, before, version in self._constants.values():
            if tensor.requires_grad:
                return "it has a parameter that its network does not know"
            if tensor._version != version or not same_bits(tensor, before):
                return "it changes a tensor that is no buffer"
        return None


def _refusal(function: Any, given: list[Any], tensors: list[torch.Tensor]) -> str | None:
    """Why an operation cannot be done again, None where it can."""
    if function.namespace != "aten":
        return f"{function} is not one of torch's own operations"
    if _depends_on_data(function, tensors):
        return f"{function} depends on data"
    if any(isinstance(value, torch.Generator) for value in given):
        return f"{function} draws from a generator of its own"
    if any(type(t) not in KINDS or t.layout != torch.strided or t.device.type != "cpu" for t in tensors):
        return f"{function} takes a tensor that is not dense, or not of the processor's"
    return None


def _depends_on_data(function: Any, tensors: list[torch.Tensor]) -> bool:
    """Whether an operation gives numbers, or tensors whose shape the numbers decide."""
    if function is torch.ops.aten.index.Tensor:
        return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors[1:])
    return any(tag in function.tags for tag in UNREPLAYABLE)


def _is_apart(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    """Whether its elements lie in order in memory that no other has."""
    memory = tensor.untyped_storage().data_ptr()
    return tensor.is_contiguous() and all(memory != other.untyped_storage().data_ptr() for other in others)
