"""Networks whose code torch's compiler makes, with bits that do not depend on what was compiled before."""

from __future__ import annotations

from torch import nn

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
