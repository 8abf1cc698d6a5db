"""The objective of training: a network's description, its loss and scores, and networks made of states."""

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

    `inputs` is the shape of one example, `outputs` the number of classes or of output numbers for each example,
    and `options` a JSON object of keyword arguments. `moving` are the frozen parameters that the network itself
    changes as it is trained, by name, which are kept as buffers; `check_fit` finds them.
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
        """The network of `build` whose parameters have no values and take no memory; raises `ModelError`.

        One whose function reads its parameters is built with them.
        """
        with suppress(ModelError):
            network = self.build(fill=False, values=False)
            if not any(buffer.is_meta for buffer in network.buffers()):  # they were computed from parameters
                return network
        return self.build()

    def build(self, fill: bool = True, values: bool = True) -> nn.Module:
        """A new network with weights drawn from the seed; raises `ModelError`. `fill` is that of `limited`.

        It is in training mode, but for parts that the user's function has in evaluation mode. Without `values` its
        parameters are on torch's meta device.
        """
        options = json.loads(self.options)
        with (
            failing_as(lambda e: ModelError(f"model {self.name} with options {options} fails with {one_line(e)}")),
            pinned(derive_seed(self.seed, "model"), threads=1, fill=fill),
            measured(),
            nullcontext() if values else without_values(),
        ):
            if isinstance(self.model, Code):
                network = self.model.load()(**options)
            else:
                network = MODELS[self.model](self.inputs, self.outputs, **options)
        network = _checked(network, self.name, values).to(getattr(torch, self.dtype))
        # A network that is in evaluation mode as a whole is one that was just loaded.
        parts = [module for module in network.modules() if network.training and not module.training]
        network.train()
        for module in parts:
            module.training = False
        return network


def _checked(network: Any, name: str, values: bool) -> nn.Module:
    """The network unchanged; raises `ModelError` if it cannot be trained or stored.

    Unless its parameters have `values`, those on the meta device are not refused.
    """
    if not isinstance(network, nn.Module):
        raise ModelError(f"model {name} must return a torch.nn.Module, not {type(network).__name__}")
    if any(nn.parameter.is_lazy(tensor) for tensor in [*network.parameters(), *network.buffers()]):
        raise ModelError(f"model {name} has lazy parameters; run it once on an example before returning it")
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ModelError(f"model {name} has no parameter to train")
    for key, tensor in [*network.named_parameters(), *network.named_buffers()]:
        if tensor.dtype.is_complex:  # torch would drop the imaginary part as it takes the network to a real dtype
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
    """Named tensors of which each is held here until it is asked for."""

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.pop(name)


CASTS = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""What torch's autocast computes in, by the names of precisions."""


@functools.lru_cache(maxsize=4)
def _skeleton(spec: ModelSpec) -> tuple[nn.Module, Layout]:
    """A network and its layout; the tensors that a state holds take no memory.

    Their floats are NaN, which shows where a copy of the network still refers to them.
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
    """The loss to minimise, with the network that it is a function of and the scores to report.

    Args:
        model: How the network is built.
        loss: The name or the code of the loss.
        scores: Names or code of the scores; None means the default ones, which `check_fit` decides.
        rule: How outputs are read for labels; `check_fit` sets it.
        whole: Names of scores, or of the loss, that need all held-out outputs at once; `check_fit` sets it.
        score_batch: The most examples that are scored at once; `check_fit` sets it.
        anew: Whether each network is made by the user's function, as copies of one would not follow what closures,
            hooks or scripts of it hold; `check_fit` sets it.
        spectral: Whether the network has spectral norms, whose vectors must fit its weights; `check_fit` sets it.
        rewritten: The trained parameters that a forward pass changes itself, by name; `check_fit` sets it.
        precision: That of forward passes, ``float32`` (as the tensors are), ``bf16`` or ``fp16``; a mapper sets
            it.
        compiled: Whether torch's compiler makes the network's code; a mapper sets it.

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
        """The network without the values that a state holds; it is shared, so do not change it."""
        return _skeleton(self.model)[0]

    def initial(self) -> State:
        """The state before the first round, without the outer optimizer's memory; it is computed at each call."""
        network = self.model.build()
        layout, tensors = layout_of(network, self.model.moving), _Leaving(network_tensors(network))
        del network
        return packed_state(layout, tensors)

    def packed(self, tensors: Mapping[str, torch.Tensor]) -> State:
        """The state that holds a network's named tensors, without the outer optimizer's memory."""
        return packed_state(self.layout, tensors)

    def seeded(self, seed: int) -> Objective:
        """A copy whose initial weights are drawn from another seed."""
        return replace(self, model=replace(self.model, seed=seed))

    def network(self, state: State) -> nn.Module:
        """A new network in training mode over a copy of the state, on the device of its tensors."""
        return self.over(copied(state))

    def fresh(self) -> nn.Module:
        """A new network in training mode with the initial weights."""
        return self.over(self.initial())

    def over(self, state: State) -> nn.Module:
        """A new network in training mode whose tensors are views of the state's vectors, or copies if `anew`."""
        if self.anew:
            layout = self.layout  # known before the network is built, which may be found by what was built last
            network = filled_network(self.model.build(), layout, state)
        else:
            network = network_holding(*_skeleton(self.model), state)
        if self.compiled:
            compile_network(network)
        return network

    def loss_of(self, network: nn.Module, inputs: Tensors, targets: Tensors) -> torch.Tensor:
        """The mean loss of a network on inputs and targets (examples, *), a scalar, in the wanted precision."""
        if self.precision == "float32":  # a context for nothing would take 2 % of a short step
            return self._loss_of(network, inputs, targets)
        with self.casting(first_tensor(inputs).device.type):
            return self._loss_of(network, inputs, targets)

    def _loss_of(self, network: nn.Module, inputs: Tensors, targets: Tensors) -> torch.Tensor:
        return self.value(self.outputs(network, inputs, targets), targets)

    def outputs(self, network: nn.Module, inputs: Tensors, targets: Tensors) -> Any:
        """What a network gives for inputs (examples, *), and the loss for targets if it computes that itself."""
        own = {"labels": moved(targets, torch.clone)} if self.loss == OWN_LOSS else {}  # forward may write to them
        return call(network, inputs, **own)

    def counted(self, targets: Tensors) -> int:
        """Over how many items of targets (examples, *) the loss is a mean: labels not `IGNORED`, or examples."""
        if self.loss == "cross_entropy" and not targets.is_floating_point():
            return int((targets != IGNORED).sum())
        return self.rule.counted(targets)

    def casting(self, device: str) -> AbstractContextManager[Any]:
        """A context in which torch computes in the wanted precision on a kind of device, such as ``cpu``."""
        lower = CASTS.get(self.precision)
        return torch.autocast(device, lower) if lower else nullcontext()

    def accepts(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether a step is to be taken along the parameters' gradients; if not, they are cleared."""
        return True

    def value(self, outputs: Any, targets: Tensors) -> torch.Tensor:
        """The mean loss of what a network gives and targets (examples, *), a scalar.

        A loss of the user's is called with what the network gives, and a built-in one with the tensor in it.
        """
        if self.loss == OWN_LOSS:
            return loss_in(outputs)
        if isinstance(self.loss, str):
            given = output_of(outputs), targets
            return LOSSES[self.loss](*(self.rule(*given) if self.loss in LABELLED else given))
        loss = _own(self.loss)(outputs, moved(targets, torch.clone))  # which the user's function may write to
        each = isinstance(loss, torch.Tensor) and tuple(loss.shape) == (len(first_tensor(targets)),)
        return loss.mean() if each else loss


def mean_loss(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """The mean of the losses of batches, (*), in float64 on the CPU; it is that of the batches that have one.

    Torch gives NaN for the mean of a batch in which no label counts, whose gradients are zeros.
    """
    each = torch.stack([*losses])
    there = ~each.isnan()
    start = torch.zeros_like(each[0], dtype=torch.promote_types(each.dtype, torch.float32))
    return sum(each.where(there, 0.0), start).cpu().double() / there.sum(0).cpu()  # added up in their order


def copied(state: State) -> State:
    """A copy of a state without the outer optimizer's memory, for a network that is trained."""
    return moved(replace(state, memory={}), torch.clone)


@torch.no_grad()
def packed_state(layout: Layout, tensors: Mapping[str, torch.Tensor]) -> State:
    """The state that holds named tensors; it asks for one after the other, each once."""
    params, buffers, frozen = map(empty_vectors, (layout.params, layout.buffers, layout.frozen))
    for name, place in named_tensors(layout, params, buffers, frozen).items():
        place.copy_(tensors[name])
    return State(params, buffers, frozen)


def network_holding(skeleton: nn.Module, layout: Layout, state: State) -> nn.Module:
    """A copy of a network whose tensors are views of the state's vectors, as the layout says."""
    views_of = named_tensors(layout, state.params, state.buffers, state.frozen)
    # For objects in its memo deepcopy takes the given copy, so that tied tensors stay tied.
    memo: dict[int, Any] = {
        id(old): hooked(nn.Parameter(views_of[name], requires_grad=old.requires_grad), old)
        for name, old in skeleton.named_parameters()
    }
    memo |= {id(old): views_of[name] for name, old in skeleton.named_buffers() if name in views_of}
    network: nn.Module = copied_module(skeleton, memo)
    device = next(iter(views_of.values())).device
    return network if device.type == "cpu" else network.to(device)  # buffers that no state holds are still here


@torch.no_grad()
def filled_network(network: nn.Module, layout: Layout, state: State) -> nn.Module:
    """The network with the state's values copied to where its tensors lie, so that all that holds them follows."""
    tensors, values = network_tensors(network), named_tensors(layout, state.params, state.buffers, state.frozen)
    for name, tensor in values.items():
        tensors[name].copy_(tensor)
    return network.to(next(iter(values.values())).device)


def network_tensors(network: nn.Module) -> dict[str, torch.Tensor]:
    """A network's parameters and buffers by name, tied ones once."""
    return dict([*network.named_parameters(), *network.named_buffers()])


def named_tensors(layout: Layout, params: Vectors, buffers: Vectors, frozen: Vectors) -> dict[str, torch.Tensor]:
    """Every tensor of a network by name, as views of the vectors."""
    return views(layout.params, params) | views(layout.buffers, buffers) | views(layout.frozen, frozen)


def arrived_tensors(layout: Layout, state: State, update: Update) -> dict[str, torch.Tensor]:
    """Every tensor by name of the network at which an update arrived: the state minus its direction."""
    params = {dtype: start - update.direction[dtype] for dtype, start in state.params.items()}
    return named_tensors(layout, params, update.buffers, state.frozen)


@functools.lru_cache(maxsize=4)
def _own(loss: Code) -> Loss:
    return loss.load()


def buffers_of(objective: Objective, network: nn.Module, state: State) -> dict[str, torch.Tensor]:
    """The buffers of a network that was trained from a state, as vectors (element,).

    Raises `ModelError` if its frozen parameters are not the state's.
    """
    layout = objective.layout
    check_unchanged(network, layout.frozen, state.frozen, "register it as a buffer")
    return pack(layout.buffers, network_tensors(network)) if layout.buffers else {}


def check_unchanged(network: nn.Module, specs: Specs, before: Vectors, advice: str) -> None:
    """Raise `ModelError` with an advice if tensors of a network are no longer those of vectors (element,)."""
    if not specs:
        return
    tensors = network_tensors(network)
    for name, values in views(specs, before).items():
        if not same_bits(tensors[name], values):
            raise ModelError(f"forward itself changes {name}, which would get lost; {advice}")


SHAPES = 64
"""So many shapes of inputs get a program. One more is an error, as torch would go on without the compiler."""


def compile_network(network: nn.Module) -> None:
    """Have torch's compiler make a network's code when it is first called, a program for each shape of its inputs.

    Networks of one structure share it. With programs for several shapes at once, or programs that are chosen by
    trials, the bits of a step would depend on what else a process has computed.
    """
    import torch._dynamo.config as dynamo  # imported here: it takes a second, and few runs need it

    dynamo.recompile_limit, dynamo.fail_on_recompile_limit_hit = SHAPES, True
    network.compile(dynamic=False, options={"deterministic": True})
