"""Which tensors of some networks may be pinned, as patterns of names, each with what its reason must say.

In all others only the bias of the outputs may be.
"""

from __future__ import annotations

MAY_BE_PINNED: dict[str, dict[str, str]] = {
    "tied_autoencoder": {"output_bias": "input"},
    "sorted_units": {"fixed.bias": "sort", "head.weight": "sort"},
    # Channels in groups of 5, 3 and 4: no order of a unit would fit all of them.
    "shufflenet": {"[35].branch.[145].*": "groups units by 3 and by 4"},
    "stack_roll_pad": {"weights": "stack"},
    "mlp_mixer": {"blocks.?.across.2.bias": "spatial"},
}
