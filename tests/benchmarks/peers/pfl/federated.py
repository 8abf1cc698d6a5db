"""Rounds of federated averaging by pfl, in two processes of one thread; arguments: the examples, which recipe."""

from __future__ import annotations

import sys

from torch.distributed.run import main

PROCESSES = 2

if __name__ == "__main__":
    main([f"--nproc-per-node={PROCESSES}", "-m", "tests.benchmarks.peers.pfl.training", *sys.argv[1:]])
