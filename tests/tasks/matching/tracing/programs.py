"""Random small networks: programs of operations on a growing pool of parameters and values."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from roundweave.tasks.matching.check import _drawn
from roundweave.tasks.matching.groups import UnitGroups
from tests.tasks.matching.tracing.mixing import MIXED

Operation = Callable[..., Tensor | tuple[Tensor, ...]]
Step = tuple[Operation, list[int]]
SIZES = [2, 3, 4, 4, 6, 6]
LARGEST = 600
KINDS: list[Callable[[Writer], Step | None]] = []


def kind(write: Callable[[Writer], Step | None]) -> Callable[[Writer], Step | None]:
    """Enter a kind of step: it picks operands from the pool and says what to do with them."""
    KINDS.append(write)
    return write


class Program(nn.Module):
    """The parameters of a program and its steps; the last values, with most axes summed, are its outputs."""

    def __init__(self, parameters: list[Tensor], steps: list[Step], ends: list[Step]):
        super().__init__()
        self.values = nn.ParameterList(parameters)
        self.steps, self.ends = steps, ends

    def forward(self, x: Tensor, noise: float = 0.0) -> tuple[Tensor, ...]:
        """The outputs; `noise` is how much every value is off, relative to its size."""
        pool = [_noisy(value, noise) for value in (x, *self.values)]
        for operation, operands in self.steps:
            found = operation(*(pool[i] for i in operands))
            pool += [_noisy(value, noise) for value in (found if isinstance(found, tuple) else (found,))]
        return tuple(operation(*(pool[i] for i in operands)) for operation, operands in self.ends)


def _noisy(value: Tensor, noise: float) -> Tensor:
    return value * (1 + noise * torch.randn_like(value)) if noise else value


class Writer:
    """Writes a program step by step, running it on the way to know the shapes."""

    def __init__(self, seed: int, length: int):
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.input = self.drawn(2, 4)
        # All parameters come first: the numbers of the pool stay the same while the program grows.
        self.parameters = [self.drawn(*self.shape()) for _ in range(self.random.randint(3, 7))]
        self.pool, self.steps = [self.input, *self.parameters], []
        for _ in range(50 * length):
            if len(self.steps) < length:
                self.grow(self.random.choice(KINDS)(self))

    def drawn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def shape(self) -> list[int]:
        return [self.random.choice(SIZES) for _ in range(self.random.choice([1, 2, 2, 2, 3, 3]))]

    def grow(self, step: Step | None) -> None:
        """Take a step that works and whose values are not too large."""
        if step is None:
            return
        operation, operands = step
        try:
            found = operation(*(self.pool[i] for i in operands))
        except (RuntimeError, IndexError, ValueError):
            return
        values = found if isinstance(found, tuple) else (found,)
        if all(0 < v.numel() <= LARGEST and v.isfinite().all() and v.abs().max() < 1e4 for v in values):
            self.pool += values
            self.steps.append(step)

    def pick(self, least: int = 0) -> int:
        """A value with at least so many axes, rather a late one."""
        able = [i for i, value in enumerate(self.pool) if value.ndim >= least] or [0]
        return self.random.choice(able if self.random.random() < 0.5 else able[-4:])

    def axis(self, i: int) -> int:
        return self.random.randrange(max(1, self.pool[i].ndim))

    def finished(self) -> Program:
        used = {i for _, operands in self.steps for i in operands}
        loose = [i for i in range(1, len(self.pool)) if i not in used]
        return Program(self.parameters, self.steps, [self.end(i) for i in loose[-4:]])

    def end(self, i: int) -> Step:
        """Sum over most axes, so that their units stay free."""
        dims = [d for d in range(self.pool[i].ndim) if self.random.random() < 0.75]
        # Neither odd nor even: what should sum to zero would be rounding alone.
        return (lambda v: ((v + 0.5).tanh() + v * v).sum(dims) if dims else v + 0.5), [i]


def unary(*operations: Operation) -> None:
    KINDS.append(lambda writer: (writer.random.choice(operations), [writer.pick()]))


def along(operation: Callable[[Tensor, int], Tensor | tuple[Tensor, ...]]) -> None:
    """A step along an axis drawn at random."""

    def write(writer: Writer) -> Step:
        i = writer.pick(1)
        d = writer.axis(i)
        return (lambda v: operation(v, d)), [i]

    KINDS.append(write)


def pairs(operation: Callable[[Tensor, Tensor], Tensor]) -> None:
    """A step on two values; most that are drawn do not fit, and others are."""

    def write(writer: Writer) -> Step | None:
        for _ in range(20):
            i, j = writer.pick(1), writer.pick(1)
            try:
                operation(writer.pool[i], writer.pool[j])
            except (RuntimeError, IndexError, ValueError):
                continue
            return operation, [i, j]
        return None

    KINDS.append(write)


unary(torch.relu, torch.tanh, torch.sin)
unary(lambda v: v * 0.5, lambda v: v.exp().clamp(max=5), lambda v: -v)
along(torch.softmax)
along(lambda v, d: v - v.mean(d, keepdim=True))
along(lambda v, d: v.sum(d))
along(lambda v, d: v.amax(d))
along(lambda v, d: torch.var_mean(v, d, correction=0, keepdim=True))
along(lambda v, d: v.unsqueeze(d))
along(lambda v, d: v.chunk(2, d))
along(lambda v, d: v.split(1, d))
along(lambda v, d: v.unbind(d))
along(lambda v, d: v.select(d, -1))
along(lambda v, d: v.narrow(d, 1, v.shape[d] - 1))
along(lambda v, d: v.movedim(d, 0))
along(lambda v, d: v.topk(2, d).values)
along(lambda v, d: functional.pad(v.movedim(d, -1), (1, 2)))
along(lambda v, d: v.repeat(*(2 if i == d else 1 for i in range(v.ndim))))
along(lambda v, d: v.repeat_interleave(2, d))
along(functional.glu)
along(lambda v, d: functional.normalize(v, dim=d))
along(lambda v, d: v.unflatten(d, (2, v.shape[d] // 2)))
along(lambda v, d: v.unflatten(d, (v.shape[d] // 2, 2)))
along(lambda v, d: v.flatten(d, min(d + 1, v.ndim - 1)))
along(lambda v, d: torch.stack([v, v.sin()], d))
along(lambda v, d: torch.cat([v, v.cos()], d))
along(lambda v, d: v.index_select(d, torch.tensor([1, 0])))
along(lambda v, d: v.gather(d, (v > 0).long() % v.shape[d]))
along(lambda v, d: v.topk(2, d).indices.to(v.dtype) * 0.1)
along(lambda v, d: v.gather(d, v.topk(2, d).indices))
along(lambda v, d: v.movedim(d, 0)[v.movedim(d, 0).flatten(1).sum(1).topk(2).indices])
along(lambda v, d: v.argmax(d).unsqueeze(d) * 0.1 + v)
along(lambda v, d: v.unsqueeze(d).expand(*v.shape[:d], 3, *v.shape[d:]))
pairs(torch.add)
pairs(torch.mul)
pairs(torch.maximum)
pairs(torch.matmul)
pairs(lambda a, b: a @ b.transpose(-1, -2))
pairs(lambda a, b: functional.linear(a, b).relu())
pairs(lambda a, b: functional.layer_norm(a, b.shape[:1], b.flatten()[: len(b)] if b.ndim == 1 else None))
pairs(lambda a, b: functional.rms_norm(a, b.shape, b))
pairs(lambda a, b: functional.group_norm(a, 2 if len(b) > 2 else 1, b))
pairs(functional.conv1d)
pairs(lambda a, b: functional.conv1d(a, b, padding=1, groups=2))
pairs(lambda a, b: functional.conv_transpose1d(a, b, groups=2))
pairs(lambda a, b: torch.stack([a, b], 1))
pairs(lambda a, b: torch.cat([a, b], -1))
pairs(lambda a, b: a[(b > 0).long() % len(a)])
pairs(lambda a, b: a[largest(a, b)])
pairs(lambda a, b: a[largest(a, b).flatten().sort().values])
pairs(lambda a, b: back(b, a, largest(a, b)[:, 0]))
pairs(lambda a, b: functional.embedding((b > 0).long() % len(a), a))
pairs(lambda a, b: torch.where(a > b, a, b.sin()))
pairs(lambda a, b: functional.scaled_dot_product_attention(a, b, b.sin()))
pairs(lambda a, b: functional.scaled_dot_product_attention(a, a, b))


def largest(values: Tensor, scores: Tensor) -> Tensor:
    """Of each row of scores the places of the two largest, each of which is the number of a value."""
    if scores.ndim < 2 or scores.shape[-1] != len(values):
        raise IndexError
    return scores.flatten(0, -2).topk(2).indices


def back(rows: Tensor, values: Tensor, numbers: Tensor) -> Tensor:
    """Rows sorted by numbers, each with the value of its number, and in their own order again."""
    numbers, order = numbers.sort()
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    return (rows.flatten(0, -2)[order].sin().sum(1) * values[numbers].flatten(1).sum(1).cos())[places]


def mixed(writer: Writer) -> Step:
    """A value beside itself with places along an axis mixed, whole or each of these places alone."""
    i, operation = writer.pick(1), writer.random.choice([*MIXED.values()])
    d, apart = writer.axis(i), writer.random.random() < 0.5

    def beside(v: Tensor) -> Tensor | tuple[Tensor, ...]:
        three = v.movedim(d, -1)[(None,) * (3 - v.ndim)]
        both = three * operation(three)
        return both.unbind(-1) if apart else both

    return beside, [i]


KINDS += [mixed] * 5


@kind
def permute(writer: Writer) -> Step:
    i = writer.pick(2)
    order = writer.random.sample(range(writer.pool[i].ndim), writer.pool[i].ndim)
    return (lambda v: v.permute(order)), [i]


@kind
def einsum(writer: Writer) -> Step | None:
    """Axes of equal length share a letter now and then; some letters are summed."""
    operands = [writer.pick(1) for _ in range(writer.random.choice([1, 2, 2, 3]))]
    sizes: dict[str, int] = {}
    terms = []
    for i in operands:
        term = ""
        for size in writer.pool[i].shape:
            known = [one for one, other in sizes.items() if other == size and one not in term]
            new = "abcdefghijklmnop"[len(sizes)]
            letter = writer.random.choice(known) if known and writer.random.random() < 0.7 else new
            sizes[letter] = size
            term += letter
        terms.append(term)
    kept = [letter for letter in sizes if writer.random.random() < 0.5][:4]
    writer.random.shuffle(kept)
    equation = f"{','.join(terms)}->{''.join(kept)}"
    return (lambda *values: torch.einsum(equation, *values) * 0.3), operands


@kind
def written(writer: Writer) -> Step:
    """A buffer of zeros into whose places values are written."""
    i = writer.pick(1)
    d, other = writer.axis(i), writer.random.random() < 0.5

    def operation(v: Tensor) -> Tensor:
        found = torch.zeros_like(v)
        found.select(d, 0).copy_(v.select(d, 0) if other else v.select(d, -1))
        found.narrow(d, 1, v.shape[d] - 1).add_(v.narrow(d, 0, v.shape[d] - 1) if other else 1.0)
        return found * 1.0

    return operation, [i]


def sensitivity(model: nn.Module, inputs: tuple[Tensor, ...], units: UnitGroups, seed: int = 0) -> float:
    """How much rounding matters to it: a difference of zeros that is normalised, or a tie, makes noise visible.

    The parameters are those that `function_error` draws.

    Values on the way are moved as well as parameters: two that are equal whatever the parameters make a tie, too.
    Of two that tie each draw moves either ahead, so a few draws may all agree with what was before.
    """
    moved = _drawn(model, seed, units, {})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        before = moved(*inputs)
        noisy = [moved(*inputs, noise=1e-13) for _ in range(32)]
    return max(
        ((a - b).abs() / (1 + a.abs())).max().item() for after in noisy for a, b in zip(before, after, strict=True)
    )


def program(seed: int, length: int) -> tuple[Program, tuple[Tensor, ...]]:
    """The network of a seed with so many steps, and its input."""
    writer = Writer(seed, length)
    return writer.finished(), (writer.input,)
