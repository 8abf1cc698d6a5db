"""What `roundweave units` tells of a network."""

from __future__ import annotations

import time
from typing import Any

from flows.config.merge import Architecture
from flows.merging.subject import kept_code, subject
from tasks.matching.check import check_function
from tasks.matching.units import find_units


def unit_report(config: Architecture) -> dict[str, Any]:
    """Groups, coverage, what is free and pinned and why, and the function error; raises where it is too large."""
    found = subject(kept_code(config))
    network = found.objective.model.build()
    began = time.perf_counter()
    units = find_units(network, found.inputs)
    seconds = time.perf_counter() - began
    return {
        "groups": {
            name: {
                "units": group.size,
                "depends_on": list(group.parents),
                "members": [
                    {"tensor": tensor, "axis": axis, "offset": offset}
                    for tensor, axis, offset in units.members(name)
                ],
            }
            for name, group in units.groups.items()
        },
        "coverage": units.coverage,
        "free_units": units.free_units,
        "pinned_units": units.pinned_units,
        "pinned": dict(units.pinned),
        "unknown": dict(units.unknown),
        "function_error": check_function(network, found.inputs, units),
        "seconds": seconds,
    }
