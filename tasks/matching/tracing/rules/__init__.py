"""What each operation does to the axes of its tensors; importing the modules enters their rules."""

from tasks.matching.tracing.rules import elementwise, recurrent, shapes, sums

__all__ = ["elementwise", "recurrent", "shapes", "sums"]
