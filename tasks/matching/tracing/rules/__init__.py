"""Rules that say what each operation does to the axes of its tensors; importing the modules registers them."""

from roundweave.tasks.matching.tracing.rules import routing, shapes, sums

__all__ = ["routing", "shapes", "sums"]
