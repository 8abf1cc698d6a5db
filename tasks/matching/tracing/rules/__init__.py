"""Rules that say what each operation does to the axes of its tensors; importing the modules registers them."""

from tasks.matching.tracing.rules import elementwise, recurrent, shapes, sums

__all__ = ["elementwise", "recurrent", "shapes", "sums"]
