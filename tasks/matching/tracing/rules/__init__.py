"""What each operation does to the axes of its tensors; importing the modules enters their rules."""

from tasks.matching.tracing.rules import contractions, elementwise, layers, recurrent, reductions, shapes
from tasks.matching.tracing.rules.registry import RULES, Result, Site, Unknown

__all__ = [
    "RULES",
    "Result",
    "Site",
    "Unknown",
    "contractions",
    "elementwise",
    "layers",
    "recurrent",
    "reductions",
    "shapes",
]
