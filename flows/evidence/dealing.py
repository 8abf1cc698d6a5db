"""Loads the data of a stored run again, dealt out as they were."""

from __future__ import annotations

from roundweave.flows.config.experiment import Dealing
from roundweave.flows.config.recorded import check_examples, check_trust
from roundweave.flows.planning.completing import deal
from roundweave.storage.errors import UsageError
from roundweave.storage.places.base import Where
from roundweave.storage.runs.run import StoredRun
from roundweave.tasks.data.description import combine, gather_here
from roundweave.tasks.data.meaning import Meaning
from roundweave.tasks.data.partitions import Partitions


def deal_again(run: StoredRun, root: Where, trust: bool) -> Partitions:
    """Return the data of a run and their split, loaded again. Raises `DataError` if they are not the same."""
    if run.algorithm == "merge" or run.config.get("data") is None:
        raise UsageError(f"{run.name} is a merge of networks, and has no examples")
    recorded = Dealing.of(run.config)
    check_trust(run, root, trust, recorded, ("data",))
    dealt = deal(recorded, meaning=Meaning.recorded(run.attributes["data"]))
    dealt, descriptions = dealt.described_by(gather_here)
    described = combine(descriptions, dealt.called, padded=dealt.loading.collate is not None)
    check_examples(run, run.attributes["data"] | {"digest": described.digest, "files": described.files})
    return dealt
