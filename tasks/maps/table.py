"""The table of maps by name."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.tables import Entry

MAPS: Mapping[str, Entry] = {
    "gradient": Entry("one gradient of a partition, or of a batch of it", "tasks.maps.gradient:Gradient"),
    "local_steps": Entry("local training by any optimizer", "tasks.maps.local_steps:LocalSteps"),
    "fed_prox": Entry("local training held near the round's start", "tasks.maps.prox:FedProx"),
    "scaffold": Entry("local SGD with control variates", "tasks.maps.scaffold:Scaffold"),
    "downpour": Entry("gradients added up on the way", "tasks.maps.downpour:Downpour"),
    "elastic": Entry("local training tied to the server by a force", "tasks.maps.elastic:Elastic"),
}
