"""Small but faithful networks of many architectures, each with the inputs of one forward pass."""

from tests.tasks.matching.zoo import convolution, plain, transformer
from tests.tasks.matching.zoo.huggingface import TRANSFORMERS
from tests.tasks.matching.zoo.registry import ZOO, Member

__all__ = ["TRANSFORMERS", "ZOO", "Member", "convolution", "plain", "transformer"]
