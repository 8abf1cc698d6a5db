"""Memory that a worker has freed goes back to the system when it is told so."""

import os
import subprocess
import sys

import pytest

from roundweave.tasks.executors.clusters.fork_server import WORKER_ENVIRONMENT

SCRIPT = """
import ctypes, torch
from roundweave.tasks.numerics.devices import trim_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

before = resident()
tensors = [torch.ones(1 << 22) for _ in range(16)]
tensors, last = None, tensors.pop()  # the last one stays at the top of the heap
kept = resident() - before
trim_memory()
print(kept, resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries decide this themselves")
@pytest.mark.thorough
def test_a_worker_gives_back_what_it_has_freed() -> None:
    environment = os.environ | WORKER_ENVIRONMENT
    said = subprocess.check_output([sys.executable, "-c", SCRIPT], env=environment, text=True)
    kept, after = map(int, said.split())
    assert kept > 200 << 20  # 16 of 16 MB, which the allocator keeps
    assert after < 40 << 20
