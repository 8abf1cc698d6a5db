"""All rows, by the name that `--row` takes. A new one is a `Row` in a file here, and its line below."""

from __future__ import annotations

from tests.benchmarks.table.rows import overhead, training

ALL = (
    training.STEP,
    training.SPLIT,
    training.ACCURACY_APART,
    training.FEDAVG,
    overhead.NOOP,
    overhead.CLIENTS,
    overhead.CLIENTS_STACKED,
    *overhead.FEDERATED,
    overhead.SERVER,
    training.ACCURACY,  # last: it deletes many files, after which new ones are slow for minutes
)
ROWS = {row.name: row for row in ALL}
