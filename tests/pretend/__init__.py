"""A pretended device of torch, ``pretend``, with which code for devices is tried on machines without one.

Importing this module compiles it, which takes ten seconds once, and makes the device known to torch. It computes
on the processor, so results have the processor's bits, but a tensor of the processor beside one of the device is
an error, as with a GPU.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("device.cpp")


class Module:
    """What torch asks of the module of a device."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """It has no generator of its own."""

    @staticmethod
    def get_rng_state(device: object = None) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16]


def library() -> Path:
    """The compiled device; other processes that need it at the same time compile it as well."""
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    built = Path(tempfile.gettempdir()) / f"roundweave-pretend-{os.getuid()}-{key}.so"
    if not built.exists():
        from torch.utils.cpp_extension import include_paths, library_paths

        partial = built.with_suffix(f".{os.getpid()}")
        line = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", str(SOURCE), "-o", str(partial)]
        line += [f"-I{path}" for path in include_paths()] + [f"-L{path}" for path in library_paths()]
        line += [
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            "-lc10",
            "-ltorch_cpu",
            "-ltorch",
        ]
        subprocess.run(line, check=True)
        partial.rename(built)
    return built


torch.utils.rename_privateuse1_backend("pretend")
torch._register_device_module("pretend", Module)
torch.ops.load_library(str(library()))
torch.utils.generate_methods_for_privateuse1_backend()
