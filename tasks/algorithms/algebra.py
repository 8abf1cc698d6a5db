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
    """Return the slots of a carry that hold a partition's own network: ``own``, or ``own.LAYER`` for one layer."""
    return [slot for slot in carry if slot.partition(".")[0] == OWN]


class Mixing(Protocol):
    """Averages the partitions' own networks before a round. A round is mixed after the one before it."""

    def weights(self, partition: int, partitions: int, exchange: int) -> Mapping[int, float]:
        """Return the weights of networks in each partition's new network, by partition, in the order of addition.

        Exchanges have the number of the round before them.
        """


Node = Any
"""A partial result of a reduce over some partitions. A lone `Update` is a node, too."""


class Part(Protocol):
    """The common base of map, reduce and apply. A part of your own inherits one of these three."""

    either: ClassVar[tuple[str, ...]] = ()
    """Options that exclude each other. A given one overrides the default of the other."""

    @property
    def elementwise(self) -> bool:
        """Whether each element of the result is computed, to the bit, from the same element of the inputs.

        Numbers such as weights may matter, too. A subclass does not inherit the answer; see `says`.
        """
        return False

    def bound(self, objective: Any, partitions: Any) -> Self:
        """Return the part, bound to a run's networks and partitions before round 1.

        The default is the part itself.
        """
        return self


def says(part: Part, what: Literal["elementwise", "stackable", "reads_extras_alone"]) -> bool:
    """Tell whether the class of a part itself makes this statement. Inherited statements do not count.

    >>> from roundweave import Sgd
    >>> class Clipped(Sgd):
    ...     pass
    >>> says(Sgd(), "elementwise"), says(Clipped(), "elementwise")
    (True, False)
    """
    return what in vars(type(part)) and bool(getattr(part, what))


def check_frozen(part: Part) -> None:
    """Raise `UsageError` for a part that may change from call to call, because no round could be replayed."""
    name, parameters = type(part).__name__, getattr(type(part), "__dataclass_params__", None)
    if (parameters is None and vars(part)) or not getattr(parameters, "frozen", True):
        raise UsageError(f"{name} may change from call to call; write @dataclass(frozen=True)")


def as_given(part: Any) -> str:
    """Return a part, and the parts inside it, as text with the options that differ from the defaults.

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

    A subclass is a frozen dataclass and defines ``__call__``.

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
        """The slots that an update has besides the direction. They are reduced like the direction."""
        return ()

    @property
    def observes(self) -> Specs:
        """The tensors that an update has for the reduce alone, in other shapes than the parameters."""
        return ()

    @property
    def stackable(self) -> bool:
        """Whether the map is plain SGD that a batched network can do for partitions; not inherited, see `says`."""
        return False

    @property
    def reads_extras_alone(self) -> bool:
        """Whether the map reads only the slots of its extras in the state's memory; not inherited, see `says`."""
        return False

    @property
    def unit_slots(self) -> tuple[str, ...]:
        """The slots of carry and extras that are vectors in the order of the network's units, like parameters."""
        return (*self.carry, *self.extras)

    whole: ClassVar[int] = 1
    """A pass takes the largest multiple of this number of examples, and leaves out the rest."""

    extras_of_all: ClassVar[bool] = True
    """Whether the server keeps the mean of the extras over all partitions, or over those that took part."""

    @property
    def fetch_ends_carry(self) -> bool:
        """Whether a state that is fetched from a parameter server replaces the partition's carry."""
        return False

    @property
    def begins_apart(self) -> bool:
        """Whether partitions begin round 1 with networks of their own, and not with one common state."""
        return False

    @property
    def needs_rounds(self) -> str:
        """The option that requires all partitions to begin a round together; empty if there is none."""
        return ""

    pseudo_gradient: ClassVar[bool] = False
    """Whether the direction is the start minus the end of the parameters, including every kind of change."""

    def __call__(self, objective: Any, state: State, examples: Any, carry: Slots, seed: int) -> Update:
        """Return the partition's update. `seed` is drawn from (run seed, round, partition).

        Direction, extras and carry have one vector (elements,) per dtype, like the state's parameters.
        """


class Reduce(Part, Protocol):
    """Combines the accepted updates into one, as a fold over the tree of partitions.

    A subclass is a frozen dataclass and defines `join` and `finish`. Subclass `Gather` or `Robust` if the reduce
    needs all updates at once.

    Example:
        >>> import roundweave as rw
        >>> rw.Mean().gathers, rw.Median().gathers
        (False, True)
    """

    gathers: ClassVar[bool] = False
    """Whether a node is as large as all updates in it. Joining early then saves nothing."""

    @property
    def needs(self) -> int:
        """The fewest updates that the reduce accepts."""
        return 1

    reorders: ClassVar[bool] = False
    """Whether the reduce changes the order of the networks' units."""

    @property
    def matches(self) -> tuple[TensorSpec, ...]:
        """The tensors of a match of units that are stored for each partition."""
        return ()

    def join(self, left: Node, right: Node) -> Node:
        """Join two neighbours. Either may be a lone `Update`."""

    def finish(self, state: State, node: Node) -> Update:
        """Return the round's update, given the root of the tree."""


class Apply(Part, Protocol):
    """The outer (server) optimizer: a pure function from a state and a reduced update to the next state.

    A subclass is a frozen dataclass and defines ``__call__``, and `init` if the optimizer has a memory.

    Example:
        >>> import torch
        >>> import roundweave as rw
        >>> state = rw.State({"float32": torch.ones(2)})
        >>> rw.Sgd(lr=0.5)(state, rw.Update({"float32": torch.ones(2)})).params["float32"]
        tensor([0.5000, 0.5000])
    """

    def init(self, params: Vectors) -> Slots:
        """Return the memory before the first round: slots with vectors like `params`. The default is no slot."""
        return {}

    @property
    def keeps(self) -> tuple[str, ...]:
        """The extras that the apply keeps in its memory for the maps of the next round."""
        return ()

    def __call__(self, state: State, update: Update) -> State:
        """Return the state of the next round. All vectors are (elements,) per dtype."""


@dataclass(frozen=True)
class Algorithm:
    """A training algorithm: a map, a reduce and an apply.

    Args:
        map: Computes the update of one partition.
        reduce: Combines many updates into one.
        apply: The outer optimizer, which makes the next state.
        when: Applies updates in rounds of all partitions, or each update as it arrives.

    Raises:
        UsageError: A part does not inherit its base class, or contradicts another part.

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
        """Return the algorithm with each part bound to a run's networks and partitions.

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
