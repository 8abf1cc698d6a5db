"""The objective of training: the description of a network, its loss and scores, and networks from states."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from roundweave.storage.errors import ModelError, failing_as, one_line
from roundweave.storage.values.state import Layout, State, Update, layout_of
from roundweave.storage.values.tensors import (
    UNSUMMED,
    Specs,
    Vectors,
    dtype_name,
    empty_vectors,
    is_dense,
    let_go,
    pack,
    same_bits,
    views,
)
from roundweave.tasks.data.examples import IGNORED, Tensors, first_tensor
from roundweave.tasks.data.splits.split import LARGEST_SCORE_BATCH
from roundweave.tasks.networks.copying import copied_module
from roundweave.tasks.networks.outputs import call, output_of
from roundweave.tasks.networks.reference import MODELS, Shape
from roundweave.tasks.networks.scores import AS_SHAPED, LABELLED, LOSSES, OWN_LOSS, LabelRule, Loss, loss_in
from roundweave.tasks.networks.sizes import measured, without_values
from roundweave.tasks.numerics.devices import moved
from roundweave.tasks.numerics.pinning import derive_seed, pinned
from roundweave.tasks.numerics.unofficial import hooked
from roundweave.tasks.own_code.code import Code


@dataclass(frozen=True)
class ModelSpec:
    """Everything that decides a network and its initial weights.

    Args:
        inputs: The shape of one example.
        outputs: The number of classes, or of output numbers for each example.
        options: A JSON object of keyword arguments.
        moving: Names of the frozen parameters that the network itself changes in training. They are stored as
            buffers, and `check_fit` finds them.
    """

    model: str | Code
    inputs: Shape
    outputs: int
    dtype: str
    seed: int
    options: str = "{}"
    moving: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The built-in name, or the reference of the user's function."""
        return self.model if isinstance(self.model, str) else self.model.reference

    def outlined(self) -> nn.Module:
        """Return the network of `build` with parameters that have no values and take no memory.

        Raises `ModelError`.

        A network whose function reads its parameters is built with values.
        """
        with suppress(ModelError):
            network = self.build(fill=False, values=False)
            if not any(buffer.is_meta for buffer in network.buffers()):  # buffers were computed from parameters
                return network
        return self.build()

    def build(self, fill: bool = True, values: bool = True) -> nn.Module:
        """Return a new network with weights drawn from the seed. Raises `ModelError`. `fill` is that of `limited`.

        The network is in training mode, except for parts that the user's function has in evaluation mode. Without
        `values` its parameters are on torch's meta device.
        """
        options = json.loads(self.options)
        given = f" with options {options}" if options else ""
        with (
            failing_as(lambda e: ModelError(f"model {self.name}{given} fails with {one_line(e)}{_advice(e)}")),
            pinned(derive_seed(self.seed, "model"), threads=1, fill=fill),
            measured(),
            nullcontext() if values else without_values(),
        ):
            if isinstance(self.model, Code):
                network = _maker(self.model.load(), self.name)(**options)
            else:
                network = MODELS[self.model](self.inputs, self.outputs, **options)
        network = _checked(network, self.name, values).to(getattr(torch, self.dtype))
        # A network that is wholly in evaluation mode was just loaded.
        parts = [module for module in network.modules() if network.training and not module.training]
        network.train()
        for module in parts:
            module.training = False
        return network


def _maker(given: Any, name: str) -> Any:
    """Return the function or class of a network. Raises `ModelError` for a network: each process makes its own."""
    if isinstance(given, nn.Module):
        raise ModelError(f"model {name} is a network; give the function or class that makes the network")
    return given


def _advice(error: BaseException) -> str:
    """Return advice about an error in making a network, as the end of a line."""
    lacks = isinstance(error, TypeError) and "required" in f"{error}"
    return "; give arguments by model_options" if lacks else ""


def _checked(network: Any, name: str, values: bool) -> nn.Module:
    """Return the network unchanged. Raises `ModelError` if it cannot be trained or stored.

    Parameters on the meta device are refused only if parameters should have `values`.
    """
    if not isinstance(network, nn.Module):
        raise ModelError(f"model {name} must return a torch.nn.Module, not {type(network).__name__}")
    if any(nn.parameter.is_lazy(tensor) for tensor in [*network.parameters(), *network.buffers()]):
        raise ModelError(f"model {name} has lazy parameters; run it once on an example before returning it")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ModelError(f"model {name} has no parameter to train")
    for key, tensor in [*network.named_parameters(), *network.named_buffers()]:
        if tensor.dtype.is_complex:  # casting to a real dtype would drop the imaginary part
            raise ModelError(
                f"model {name}: {key} is {dtype_name(tensor.dtype)}, and only real numbers are trained; "
                "hold torch.view_as_real of it, and take torch.view_as_complex of that in forward"
            )
    for key, tensor in network.state_dict(keep_vars=True).items():
        plain = not isinstance(tensor, torch.Tensor) or is_dense(tensor) or (tensor.is_meta and not values)
        if not plain or getattr(tensor, "dtype", None) in UNSUMMED:
            raise ModelError(
                f"model {name}: {key} is sparse, without values, or {dtype_name(tensor.dtype)}, which cannot be "
                "averaged and kept; make it a dense tensor of float32 or int64, or a buffer with persistent=False"
            )
    return network


class _Leaving(dict[str, torch.Tensor]):
    """Named tensors. Each is held here until it is asked for."""

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.pop(name)


CASTS = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype in which torch's autocast computes, by the name of the precision."""


@functools.lru_cache(maxsize=4)
def _skeleton(spec: ModelSpec) -> tuple[nn.Module, Layout]:
    """Return a network and its layout. The tensors that a state holds take no memory.

    Their floats are NaN, to show if a copy of the network still refers to them.
    """
    network = spec.build()
    layout = layout_of(network, spec.moving)
    tensors = network_tensors(network)
    for each in (*layout.params, *layout.buffers, *layout.frozen):
        let_go(tensors[each.name], math.nan)
    return network, layout


LAYOUTS: dict[ModelSpec, Layout] = {}
"""The layouts of networks that another process has built."""


@dataclass(frozen=True)
class Objective:
    """The loss to minimise, together with the network and the scores to report.

    The function `check_fit` tries the network on examples, and sets most of the fields.

    Args:
        model: How the network is built.
        loss: The name or the code of the loss.
        scores: Names or code of the scores; None for the defaults, which `check_fit` chooses.
        rule: How outputs are read for labels. Set by `check_fit`.
        whole: Names of scores, or of the loss, that need all held-out outputs at once. Set by `check_fit`.
        score_batch: The most examples that are scored at once. Set by `check_fit`.
        anew: Whether the user's function makes each network. Copies of a network do not follow what its closures,
            hooks or scripts hold. Set by `check_fit`.
        spectral: Whether the network has spectral norms, whose vectors must fit its weights. Set by `check_fit`.
        rewritten: Names of the trained parameters that a forward pass changes. Set by `check_fit`.
        precision: The precision of forward passes: ``float32`` (as the tensors are), ``bf16`` or ``fp16``. Set by
            a mapper.
        compiled: Whether torch's compiler makes the network's code. Set by a mapper.

    Example:
        >>> objective = rw.Objective(run.model(), "cross_entropy")
        >>> objective.initial().params["float32"].shape
    """

    model: ModelSpec
    loss: str | Code
    scores: tuple[str | Code, ...] | None = None
    rule: LabelRule = AS_SHAPED
    whole: tuple[str, ...] = ()
    score_batch: int = LARGEST_SCORE_BATCH
    anew: bool = False
    spectral: bool = False
    rewritten: tuple[str, ...] = ()
    precision: str = "float32"
    compiled: bool = False

    @property
    def judges(self) -> dict[str, str | Code]:
        """The loss and the scores by name."""
        scores = {score if isinstance(score, str) else score.name: score for score in self.scores or ()}
        return {**scores, "loss": self.loss}

    @property
    def layout(self) -> Layout:
        """The place of each of the network's tensors in its vectors."""
        return LAYOUTS.get(self.model) or _skeleton(self.model)[1]

    @property
    def built(self) -> nn.Module:
        """The network without the values that a state holds. It is shared, so do not change it."""
        return _skeleton(self.model)[0]

    def initial(self) -> State:
        """Compute the state before the first round, without the outer optimizer's memory."""
        network = self.model.build()
        layout, tensors = layout_of(network, self.model.moving), _Leaving(network_tensors(network))
        del network
        return packed_state(layout, tensors)

    def packed(self, tensors: Mapping[str, torch.Tensor]) -> State:
        """Return the state that holds a network's named tensors, without the outer optimizer's memory."""
        return packed_state(self.layout, tensors)

    def seeded(self, seed: int) -> Objective:
        """Return a copy whose initial weights are drawn from another seed."""
        return replace(self, model=replace(self.model, seed=seed))

    def network(self, state: State) -> nn.Module:
        """Return a new network in training mode over a copy of the state, on the device of its tensors."""
        return self.over(copied(state))

    def fresh(self) -> nn.Module:
        """Return a new network in training mode with the initial weights."""
        return self.over(self.initial())

    def over(self, state: State) -> nn.Module:
        """Return a new network in training mode over views of the state's vectors, or over copies if `anew`."""
        if self.anew:
            layout = self.layout  # read it first: building may use what was built last
            network = filled_network(self.model.build(), layout, state)
        else:
            network = network_holding(*_skeleton(self.model), state)
        if self.compiled:
            compile_network(network)
        return network

    def loss_of(self, network: nn.Module, inputs: Tensors, targets: Tensors) -> torch.Tensor:
        """Return the mean loss on inputs and targets ``(example, *)``: a scalar, in the wanted precision."""
        if self.precision == "float32":  # an empty context takes 2 % of a short step
            return self._loss_of(network, inputs, targets)
        with self.casting(first_tensor(inputs).device.type):
            return self._loss_of(network, inputs, targets)

    def _loss_of(self, network: nn.Module, inputs: Tensors, targets: Tensors) -> torch.Tensor:
        return self.value(self.outputs(network, inputs, targets), targets)

    def outputs(self, network: nn.Module, inputs: Tensors, targets: Tensors) -> Any:
        """Return a network's outputs for inputs ``(example, *)``, and its loss for targets if it computes one."""
        own = {"labels": moved(targets, torch.clone)} if self.loss == OWN_LOSS else {}  # forward may write to them
        return call(network, inputs, **own)

    def counted(self, targets: Tensors) -> int:
        """Count the items in the mean loss of targets ``(example, *)``: examples, or labels not `IGNORED`."""
        if self.loss == "cross_entropy" and not targets.is_floating_point():
            return int((targets != IGNORED).sum())
        return self.rule.counted(targets)

    def casting(self, device: str) -> AbstractContextManager[Any]:
        """Return a context in which torch computes in the wanted precision on a device type such as ``cpu``."""
        lower = CASTS.get(self.precision)
        return torch.autocast(device, lower) if lower else nullcontext()

    def accepts(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Tell whether to take a step along the parameters' gradients. If not, the gradients are cleared."""
        return True

    def value(self, outputs: Any, targets: Tensors) -> torch.Tensor:
        """Return the mean loss of a network's outputs and targets ``(example, *)``: a scalar.

        A loss of the user's gets the whole output of the network. A built-in loss gets the tensor in it.
        """
        if self.loss == OWN_LOSS:
            return loss_in(outputs)
        if isinstance(self.loss, str):
            given = output_of(outputs), targets
            return LOSSES[self.loss](*(self.rule(*given) if self.loss in LABELLED else given))
        loss = _own(self.loss)(outputs, moved(targets, torch.clone))  # the user's function may write to them
        each = isinstance(loss, torch.Tensor) and tuple(loss.shape) == (len(first_tensor(targets)),)
        return loss.mean() if each else loss


def mean_loss(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean of the losses of batches, ``(*)``, in float64 on the CPU, over the batches that have a loss.

    Torch gives NaN for the mean of a batch in which no label counts. The gradients of that batch are zeros.
    """
    each = torch.stack([*losses])
    there = ~each.isnan()
    start = torch.zeros_like(each[0], dtype=torch.promote_types(each.dtype, torch.float32))
    return sum(each.where(there, 0.0), start).cpu().double() / there.sum(0).cpu()  # summed in order


def copied(state: State) -> State:
    """Return a copy of a state without the outer optimizer's memory, for a network that is trained."""
    return moved(replace(state, memory={}), torch.clone)


@torch.no_grad()
def packed_state(layout: Layout, tensors: Mapping[str, torch.Tensor]) -> State:
    """Return the state of named tensors. The function asks for the tensors one by one, each once."""
    params, buffers, frozen = map(empty_vectors, (layout.params, layout.buffers, layout.frozen))
    for name, place in named_tensors(layout, params, buffers, frozen).items():
        place.copy_(tensors[name])
    return State(params, buffers, frozen)


def network_holding(skeleton: nn.Module, layout: Layout, state: State) -> nn.Module:
    """Return a copy of a network over views of the state's vectors, as the layout says."""
    views_of = named_tensors(layout, state.params, state.buffers, state.frozen)
    # deepcopy takes given copies from its memo, so that tied tensors stay tied.
    memo: dict[int, Any] = {
        id(old): hooked(nn.Parameter(views_of[name], requires_grad=old.requires_grad), old)
        for name, old in skeleton.named_parameters()
    }
    memo |= {id(old): views_of[name] for name, old in skeleton.named_buffers() if name in views_of}
    network: nn.Module = copied_module(skeleton, memo)
    device = next(iter(views_of.values())).device
    return network if device.type == "cpu" else network.to(device)  # non-persistent buffers are still on the CPU


@torch.no_grad()
def filled_network(network: nn.Module, layout: Layout, state: State) -> nn.Module:
    """Copy the state's values into the network's own tensors, so that everything that holds them follows."""
    tensors, values = network_tensors(network), named_tensors(layout, state.params, state.buffers, state.frozen)
    for name, tensor in values.items():
        tensors[name].copy_(tensor)
    return network.to(next(iter(values.values())).device)


def network_tensors(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return a network's parameters and buffers by name, tied ones once."""
    return dict([*network.named_parameters(), *network.named_buffers()])


def named_tensors(layout: Layout, params: Vectors, buffers: Vectors, frozen: Vectors) -> dict[str, torch.Tensor]:
    """Return every tensor of a network by name, as views of the vectors."""
    return views(layout.params, params) | views(layout.buffers, buffers) | views(layout.frozen, frozen)


def arrived_tensors(layout: Layout, state: State, update: Update) -> dict[str, torch.Tensor]:
    """Return every tensor by name of the network behind an update: the state minus its direction."""
    params = {dtype: start - update.direction[dtype] for dtype, start in state.params.items()}
    return named_tensors(layout, params, update.buffers, state.frozen)


@functools.lru_cache(maxsize=4)
def _own(loss: Code) -> Loss:
    found = loss.load()
    if isinstance(found, type):
        raise ModelError(f"loss {loss.reference} is a class; give what it makes, as {found.__name__}()")
    return found


def buffers_of(objective: Objective, network: nn.Module, state: State) -> dict[str, torch.Tensor]:
    """Return the buffers of a network that was trained from a state, as vectors (element,).

    Raises `ModelError` if its frozen parameters differ from the state's.
    """
    layout = objective.layout
    check_unchanged(network, layout.frozen, state.frozen, "register it as a buffer")
    return pack(layout.buffers, network_tensors(network)) if layout.buffers else {}


def check_unchanged(network: nn.Module, specs: Specs, before: Vectors, advice: str) -> None:
    """Raise `ModelError` with advice if tensors of a network differ from vectors (element,)."""
    if not specs:
        return
    tensors = network_tensors(network)
    for name, values in views(specs, before).items():
        if not same_bits(tensors[name], values):
            raise ModelError(f"forward itself changes {name}, which would get lost; {advice}")


SHAPES = 64
"""The most shapes of inputs that get a program. One more is an error: torch would go on without the compiler."""


def compile_network(network: nn.Module) -> None:
    """Let torch's compiler make a network's code at its first call, one program for each shape of its inputs.

    Networks of one structure share the code. Programs for several shapes at once, or programs chosen by trials,
    would make the bits of a step depend on earlier work of the process.
    """
    import torch._dynamo.config as dynamo  # imported here: it takes a second, and few runs need it

    dynamo.recompile_limit, dynamo.fail_on_recompile_limit_hit = SHAPES, True
    network.compile(dynamic=False, options={"deterministic": True})
