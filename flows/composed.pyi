# Made by `python -m tests.flows.stub`, which any change of an option needs.

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from roundweave.flows.config.train import TrainConfig as Kernel
from roundweave.flows.plugin import Plugin
from roundweave.storage.places.base import Where
from roundweave.tasks.own_code.code import Code

class TrainConfig(Kernel):
    sites: str | dict[str, Any] | None
    describe_sites: bool
    validation: str | Code | None
    score_partitions: float | None
    on_complete: Literal["new", "extend", "skip"] | None
    timezone: str | None
    date: str | None
    on_unchanged: bool | Literal["skip"] | None
    on_busy: bool | Literal["skip"] | None
    on_rejected: Literal["keep", "fail"] | None
    planned: dict[str, Any] | None
    cohort: int | float | None
    cohort_by_size: bool
    cohort_from: Literal["all", "present"]
    order: str | None
    speeds: tuple[float, ...] | None
    deadline: Literal["auto"] | float | None
    log_file: Path | None
    target_accuracy: float | None
    patience: int | None
    drift: Literal["tell", "refuse"]
    reference: str | Code | None
    accept: tuple[str | Code, ...] | None
    promote: str | None
    approval: bool
    export: tuple[str, ...]
    retain: str | None
    schedule: str | None
    stacked: int
    ranks: int
    units: tuple[str, ...]
    hybrid: bool
    device: str
    precision: Literal["float32", "bf16", "fp16"]
    compiled: bool
    compress: str | None
    topology: str | tuple[tuple[int, int], ...] | None
    def __init__(
        self,
        *,
        accept: Sequence[str | Callable[..., Any]] | str | None = ...,
        address: str | None = ...,
        algorithm: str | Callable[..., Any] | Mapping[str, Any] = ...,
        approval: bool = ...,
        best: str | None = ...,
        certificates: Path | str | None = ...,
        cohort: int | float | str | None = ...,
        cohort_by_size: bool = ...,
        cohort_from: Literal["all", "present"] = ...,
        collate: str | Callable[..., Any] | None = ...,
        columns: Sequence[str] | str | None = ...,
        compiled: bool = ...,
        compress: str | None = ...,
        concurrency: int | None = ...,
        data: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] = ...,
        data_memory: int | str | None = ...,
        data_options: Mapping[str, Any] = ...,
        date: str | None = ...,
        deadline: Literal["auto"] | float | None = ...,
        describe_sites: bool = ...,
        device: str = ...,
        drift: Literal["tell", "refuse"] = ...,
        dtype: Literal["float32", "float64", "bfloat16", "float16"] = ...,
        encode: Literal["one-hot", "ordinal"] | None = ...,
        evaluate_every: int | None = ...,
        executor: Literal["graph", "ranks", "auto", "inline"] = ...,
        export: Sequence[str] | str = ...,
        fsync: bool = ...,
        hash_data: bool = ...,
        held_out: float = ...,
        held_out_transform: str | Callable[..., Any] | None = ...,
        hybrid: bool = ...,
        init_seed: int | None = ...,
        keep: str | None = ...,
        loader_workers: int = ...,
        log_file: Path | str | None = ...,
        loss: str | Callable[..., Any] | None = ...,
        mixed_hardware: bool = ...,
        model: str | Callable[..., Any] = ...,
        model_options: Mapping[str, Any] = ...,
        name: str | None = ...,
        on_busy: bool | Literal["skip"] | None = ...,
        on_complete: Literal["new", "extend", "skip"] | None = ...,
        on_rejected: Literal["keep", "fail"] | None = ...,
        on_unchanged: bool | Literal["skip"] | None = ...,
        order: str | None = ...,
        partition_options: str | Mapping[str, Any] | None = ...,
        partitions: int = ...,
        patience: int | None = ...,
        plain_ranks: bool = ...,
        planned: Mapping[str, Any] | None = ...,
        plugins: Sequence[str | type[Plugin] | Mapping[str, Any]] | str = ...,
        precision: Literal["float32", "bf16", "fp16"] = ...,
        private: bool = ...,
        promote: str | None = ...,
        quorum: int = ...,
        ranks: int = ...,
        recombined: Any | None = ...,
        reference: str | Callable[..., Any] | None = ...,
        resplit_every: int | None = ...,
        retain: str | None = ...,
        retries: int = ...,
        retry_delay: float | str = ...,
        root: str | Path = ...,
        rounds: int = ...,
        schedule: str | None = ...,
        scheduler: str | None = ...,
        score_partitions: float | None = ...,
        scores: Sequence[str | Callable[..., Any]] | str | None = ...,
        seed: int = ...,
        sites: str | Mapping[str, Any] | None = ...,
        speeds: Sequence[float] | str | None = ...,
        split: str = ...,
        split_seed: int | None = ...,
        stacked: int = ...,
        start_from: str | Any | None = ...,
        tags: Sequence[str] | str = ...,
        target: str | None = ...,
        target_accuracy: float | None = ...,
        threads: int = ...,
        timeout: float | str | None = ...,
        timezone: str | None = ...,
        topology: str | Sequence[tuple[int, int]] | None = ...,
        transform: str | Callable[..., Any] | None = ...,
        units: Sequence[str] | str = ...,
        validation: str | Callable[..., Any] | None = ...,
        wait_for_workers: float = ...,
        window: int | None = ...,
        worker_timeout: float = ...,
        workers: int = ...,
        **options: Any,
    ) -> None: ...

def fork(place: str, root: Where | None = None, trust: bool = False, **changes: Any) -> TrainConfig: ...
