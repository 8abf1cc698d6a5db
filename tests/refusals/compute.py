"""Refusals about compute: fields of a configuration, and words of the line that refuses them."""

from __future__ import annotations

from typing import Any

SIGN: dict[str, Any] = {"compress": "sign"}
FP16: dict[str, Any] = {"precision": "fp16"}
STACKED: dict[str, Any] = {"stacked": 8, "partitions": 10, "model_options": {"hidden": 16}, "local_steps": 3}
RANKS: dict[str, Any] = {"ranks": 2, "executor": "ranks"}
SHARED = "stacked = 8 is for plain SGD from a shared start, not for map "

ROWS: list[tuple[dict[str, Any], str]] = [
    ({"compress": "zip"}, "unknown compress 'zip'; there are bf16, int8, sign, top_k:SHARE"),
    ({"compress": "top_k"}, "compress 'top_k' must be written top_k:SHARE"),
    ({"compress": "top_k:0"}, "must be written top_k:SHARE: Input should be greater than 0"),
    ({"compress": "random_k:nan"}, "must be written random_k:SHARE: Input should be"),
    ({"compress": "random_k:1.5"}, "must be written random_k:SHARE: Input should be less than or equal to 1"),
    ({"compress": "powersgd:1.5"}, "must be written powersgd:RANK: Input should be a valid integer"),
    (SIGN | {"stacked": 2}, "compress and stacked exclude each other; leave one of them out"),
    (SIGN | RANKS, "and ranks exclude each other; leave one of them out"),
    (SIGN | {"algorithm": "d_psgd"}, "with map OwnNetwork each partition has its own; leave compress out"),
    (SIGN | {"algorithm": "easgd"}, "with map Elastic each partition has its own; leave compress out"),
    (SIGN | {"init": "per-partition"}, "with map LocalSteps each partition has its own; leave compress out"),
    (SIGN | {"algorithm": "matched"}, "goes by compression_error in the order of units"),
    (SIGN | {"algorithm": "downpour", "push_every": 1, "fetch_every": 2}, "give fetch_every = push_every"),
    (FP16 | {"algorithm": "sync_sgd"}, "for local steps, which it skips if gradients overflow, not for map"),
    (FP16 | {"algorithm": "scaffold"}, "not for map Scaffold; give bf16"),
    (FP16 | {"stacked": 2}, "precision fp16 and stacked exclude each other; leave one of them out"),
    (FP16 | RANKS, "in its own dtype; leave precision fp16 out, or ranks"),
    (FP16 | {"dtype": "float64"}, "precision fp16 is for parameters in float32, not in float64"),
    ({"precision": "bf16", "dtype": "float64"}, "bf16 is for parameters in float32, not in float64"),
    ({"compiled": True, "stacked": 2}, "compiled and stacked exclude each other"),
    (RANKS | {"device": "cuda"}, "ranks share a network on processors"),
    (STACKED | {"momentum": 0.9}, SHARED + "LocalSteps(local_steps=3, momentum=0.9)"),
    (STACKED | {"clip_norm": 1.0}, "clip_norm=1.0"),
    (STACKED | {"init": "per-partition"}, "init='per-partition'"),
    (STACKED | {"algorithm": "diloco"}, "optimizer='AdamW'"),
    (STACKED | {"algorithm": "scaffold"}, SHARED + "Scaffold"),
    (STACKED | {"algorithm": "fed_buff"}, "stacked needs rounds in which all partitions begin together"),
    (STACKED | {"model_options": {"dropout": 0.5}}, "mlp cannot be stacked: it draws random numbers"),
    (STACKED | {"model": "cnn", "model_options": {}}, "changes its buffer norm1.running_mean"),
    (STACKED | {"ranks": 2}, "ranks and stacked both decide the mapper; leave one of them out"),
    (STACKED | {"stacked": 0}, "stacked"),
    (STACKED | {"split": "dirichlet_by_class:0.5", "resplit_every": 1}, "sizes stay"),
    (RANKS | {"algorithm": "fed_prox"}, "not for map FedProx("),
    (RANKS | {"clip_norm": 1.0}, "clip_norm=1.0); leave one of them out"),
    ({"units": ("fc1",)}, "units and hybrid need ranks: give ranks, 2 or more"),
]
