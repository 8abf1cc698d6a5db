'''One idea: a training algorithm is three values, map, reduce and apply.

Each round maps backprop over the partitions, reduces what comes back, and applies the result. All three
are frozen dataclasses with ``__call__``: they pickle small, compare equal, print themselves and keep
nothing on ``self``. A direction is always something to subtract, so averaging deltas and averaging
networks are the same thing. A complete algorithm that needs no network, descending to the mean of the
partitions' numbers:

>>> import torch
>>> from dataclasses import dataclass, replace
>>> from roundweave import Algorithm, Apply, Map, Mean, State, Update, reduce_all
>>> @dataclass(frozen=True)
... class Distance(Map):
...     """The gradient of half the squared distance to the mean example."""
...     def __call__(self, objective, state, examples, carry, seed):
...         gradient = state.params["float64"] - examples.mean(0)
...         return Update({"float64": gradient}, weight=len(examples))
>>> @dataclass(frozen=True)
... class Step(Apply):
...     """Subtract lr times the direction."""
...     lr: float
...     def __call__(self, state, update):
...         params = {k: p - self.lr * update.direction[k] for k, p in state.params.items()}
...         return replace(state, params=params, round=state.round + 1)
>>> algorithm = Algorithm(Distance(), Mean(), Step(lr=1.0))
>>> state = State({"float64": torch.zeros(1, dtype=torch.float64)})
>>> partitions = [torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[10.0]])]
>>> updates = [algorithm.map(None, state, examples, {}, 0) for examples in partitions]
>>> state = algorithm.apply(state, reduce_all(algorithm.reduce, state, updates))
>>> state.params["float64"].item(), state.round
(4.0, 1)
'''

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots, Specs, TensorSpec, Vectors
from roundweave.tasks.algorithms.when import SYNCHRONOUS, When

OWN = "own"
"""The slot of a carry that holds a partition's own network."""


def own_slots(carry: Iterable[str]) -> list[str]:
    """The slots of a carry that hold a partition's own network: ``own``, or ``own.LAYER`` for a layer of it."""
    return [slot for slot in carry if slot.partition(".")[0] == OWN]


class Mixing(Protocol):
    """Says how partitions' own networks are averaged before a round. A round is mixed after the one before it."""

    def weights(self, partition: int, partitions: int, exchange: int) -> Mapping[int, float]:
        """What networks count in a partition's new one, by partition, in the order in which they are added.

        Exchanges are numbered by the round that they follow.
        """


Node = Any
"""A partial result of a reduce over some partitions; a lone `Update` is one."""


class Part(Protocol):
    """What map, reduce and apply have in common. A part of the user's own inherits one of the three."""

    either: ClassVar[tuple[str, ...]] = ()
    """Options of which only one may be given; a given one overrides the default of the other."""

    @property
    def elementwise(self) -> bool:
        """Whether each element of its vectors is computed, to the bit, from the same element of those given.

        Numbers such as weights may matter, too. It is not inherited, see `says`.
        """
        return False

    def bound(self, objective: Any, partitions: Any) -> Self:
        """The part, bound to a run's networks and partitions before round 1; by default the part itself."""
        return self


def says(part: Part, what: Literal["elementwise", "stackable", "reads_extras_alone"]) -> bool:
    """Whether the class of a part itself says this of its formula, whatever the classes say that it inherits.

    >>> from roundweave import Sgd
    >>> class Clipped(Sgd):
    ...     pass
    >>> says(Sgd(), "elementwise"), says(Clipped(), "elementwise")
    (True, False)
    """
    return what in vars(type(part)) and bool(getattr(part, what))


def check_frozen(part: Part) -> None:
    """Raise `UsageError` for a part that may change from call to call, so that no round could be replayed."""
    name, parameters = type(part).__name__, getattr(type(part), "__dataclass_params__", None)
    if (parameters is None and vars(part)) or not getattr(parameters, "frozen", True):
        raise UsageError(f"{name} may keep something on self from call to call; write @dataclass(frozen=True)")


def as_given(part: Any) -> str:
    """A part, and those within it, with the options that differ from its defaults.

    >>> from roundweave import LocalSteps
    >>> as_given(LocalSteps(local_steps=5, clip_norm=1.0))
    'LocalSteps(local_steps=5, clip_norm=1.0)'
    """
    options = [each for each in fields(part) if each.repr] if is_dataclass(part) else []
    given = {each.name: value for each in options if (value := getattr(part, each.name)) != each.default}
    texts = {name: as_given(value) if is_dataclass(value) else repr(value) for name, value in given.items()}
    return f"{type(part).__name__}({', '.join(f'{name}={text}' for name, text in texts.items())})"


class Map(Part, Protocol):
    """Backprop over one partition: a pure function of its inputs.

    Example:
        >>> from dataclasses import replace
        >>> import roundweave as rw
        >>> class WithEqualWeights(rw.Gradient):
        ...     def __call__(self, objective, state, examples, carry, seed):
        ...         return replace(super().__call__(objective, state, examples, carry, seed), weight=1)
    """

    @property
    def carry(self) -> tuple[str, ...]:
        """The slots that a partition keeps from round to round, each one vector (elements,) per dtype."""
        return ()

    @property
    def extras(self) -> tuple[str, ...]:
        """The slots that its updates bring besides the direction, and that are reduced like it."""
        return ()

    @property
    def observes(self) -> Specs:
        """The tensors that its updates bring for the reduce alone, of other shapes than the parameters."""
        return ()

    @property
    def stackable(self) -> bool:
        """Whether it is plain SGD that partitions can take as one batched network; not inherited, see `says`."""
        return False

    @property
    def reads_extras_alone(self) -> bool:
        """Whether it reads no slots of the state's memory but those of its extras; not inherited, see `says`."""
        return False

    @property
    def unit_slots(self) -> tuple[str, ...]:
        """The slots of carry and extras that are vectors in the order of the units, as parameters are."""
        return (*self.carry, *self.extras)

    extras_of_all: ClassVar[bool] = True
    """Whether the server keeps the mean of the extras over all partitions, or over those that took part."""

    @property
    def fetch_ends_carry(self) -> bool:
        """Whether a state that is fetched from a parameter server takes the place of what a partition carries."""
        return False

    @property
    def begins_apart(self) -> bool:
        """Whether partitions begin round 1 from networks of their own, and not from one state."""
        return False

    @property
    def needs_rounds(self) -> str:
        """The option by which all partitions must begin a round together; empty if they need not."""
        return ""

    pseudo_gradient: ClassVar[bool] = False
    """Whether the direction is the start minus the arrived parameters, with all that changed these."""

    def __call__(self, objective: Any, state: State, examples: Any, carry: Slots, seed: int) -> Update:
        """The partition's update; `seed` is drawn from (run seed, round, partition).

        Direction, extras and carry have one vector (elements,) per dtype, as the state's parameters do.
        """


class Reduce(Part, Protocol):
    """Combines the accepted updates, as a fold over the tree of partitions.

    Example:
        >>> import roundweave as rw
        >>> rw.Mean().gathers, rw.Median().gathers
        (False, True)
    """

    gathers: ClassVar[bool] = False
    """Whether a node is as large as all updates in it, so that nothing is gained by joining on the way."""

    @property
    def needs(self) -> int:
        """The fewest updates that can be reduced."""
        return 1

    reorders: ClassVar[bool] = False
    """Whether it brings the units of networks into another order than their maps left them in."""

    @property
    def matches(self) -> tuple[TensorSpec, ...]:
        """The tensors of a match of units that are stored for each partition."""
        return ()

    def join(self, left: Node, right: Node) -> Node:
        """Join two neighbours; either may be a lone `Update`."""

    def finish(self, state: State, node: Node) -> Update:
        """The round's update from the root of the tree."""


class Apply(Part, Protocol):
    """The outer optimizer: a pure function from a state and a reduced update to the next state.

    Example:
        >>> import torch
        >>> import roundweave as rw
        >>> state = rw.State({"float32": torch.ones(2)})
        >>> rw.Sgd(lr=0.5)(state, rw.Update({"float32": torch.ones(2)})).params["float32"]
        tensor([0.5000, 0.5000])
    """

    def init(self, params: Vectors) -> Slots:
        """Its memory before the first round: slots shaped as the parameters, none unless it says so."""
        return {}

    @property
    def keeps(self) -> tuple[str, ...]:
        """The extras that it keeps in its memory for the maps of the next round."""
        return ()

    def __call__(self, state: State, update: Update) -> State:
        """The state of the next round; vectors (elements,) per dtype in, the same out."""


@dataclass(frozen=True)
class Algorithm:
    """A training algorithm: a map, a reduce and an apply.

    Args:
        map: What is computed of one partition.
        reduce: What makes one update of many.
        apply: The outer optimizer, which makes the next state.
        when: Whether updates are applied in rounds of all partitions, or as each arrives.

    Raises:
        UsageError: A part does not inherit its Protocol, or does not go with another.

    Example:
        >>> import roundweave as rw
        >>> algorithm = rw.Algorithm(rw.LocalSteps(lr=0.1), rw.Median(), rw.Sgd(lr=1.0))
    """

    map: Map
    reduce: Reduce
    apply: Apply
    when: When = SYNCHRONOUS

    def __post_init__(self) -> None:
        parts: dict[type, Part] = {Map: self.map, Reduce: self.reduce, Apply: self.apply}
        for base, part in parts.items():
            # Inherited by name, not by shape: isinstance would ask a Protocol for its members only.
            if base not in type(part).__mro__:
                who = f"{base.__name__.lower()} {type(part).__name__}"
                raise UsageError(f"{who} must inherit roundweave.{base.__name__}")
            check_frozen(part)
        for name in ("carry", "extras"):
            if not isinstance(slots := getattr(self.map, name), tuple):
                raise UsageError(
                    f"{name} of map {type(self.map).__name__} must be a tuple of slots, not {slots!r}"
                )
        if not self.when.together and (option := self.map.needs_rounds):
            raise UsageError(f"{option} needs rounds in which all partitions begin together; leave it out")
        if self.reduce.reorders and (slots := self.map.unit_slots):
            raise UsageError(
                f"map {type(self.map).__name__} goes by {', '.join(slots)} in the order of units, which reduce "
                f"{type(self.reduce).__name__} changes; leave one out, or let a map of your own say in unit_slots "
                "which of its slots have that order"
            )

    def bound(self, objective: Any, partitions: Any) -> Algorithm:
        """The algorithm with each part bound to a run's networks and partitions.

        Raises `UsageError` for a reduce that needs more updates than a round has.
        """
        needed = self.reduce.needs
        if needed > 1 and (updates := self.when.updates(partitions.taking_part)) < needed:
            raise UsageError(
                f"{self.reduce} needs {needed} updates, and a round has {updates}; use more partitions, a larger "
                "buffer, or another reduce"
            )
        to = (objective, partitions)
        return replace(self, map=self.map.bound(*to), reduce=self.reduce.bound(*to), apply=self.apply.bound(*to))
