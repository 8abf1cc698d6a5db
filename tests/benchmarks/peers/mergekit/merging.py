"""mergekit and Roundweave merge the same files of a small Llama: differences, seconds, memory.

``pip install --target PACKAGES --no-deps -r requirements.txt peft accelerate immutables``, and then
``python -m tests.benchmarks.peers.mergekit.merging FOLDER PACKAGES [CASE ...]``. Each program merges in a process
of its own, a case after the other; seconds are the median of three after a first merge, memory the process's peak.
mergekit's TIES is measured once more with a stable sort: of equal changes that do not all stay, it then keeps the
first, as Roundweave does, and not any.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file

SIZES = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8}
TRIES = 3
BASE, PARTS = "base", ("a", "b")
HALF = {"weight": 0.5, "density": 0.5}


def case(method: str, base: str = "", **more: Any) -> dict[str, Any]:
    return {"merge_method": method, **({"base_model": base} if base else {}), **more}


CHANGES = {"base": BASE, "each": HALF}
WHOLE = {"base": BASE, "each": HALF | {"density": 1.0}}
T, LAMBDA = {"t": 0.3}, {"lambda": 0.9}
SLICES = {"slices": {"a": [0, 6], "b": [2, 8]}}
SCALES = [{"filter": "o_proj", "value": 0.3}, {"filter": "mlp", "value": [0.5, 1.5, 0.7]}]
CASES: dict[str, dict[str, Any]] = {
    "linear": case("linear", each={"weight": [0.3, 0.7]}),
    "slerp": case("slerp", "a", parameters=T),
    "slerp, far apart": case("slerp", "a", models=("a", "far"), parameters=T),
    "task_arithmetic": case("task_arithmetic", BASE, each={"weight": [0.6, -0.3]}),
    "ties": case("ties", **CHANGES, parameters=LAMBDA),
    "ties, stable": case("ties", **CHANGES, parameters=LAMBDA, peer="stable"),
    "dare_linear, density 1": case("dare_linear", **WHOLE),
    "dare_ties, density 1": case("dare_ties", **WHOLE),
    "passthrough": case("passthrough", **SLICES),
    "passthrough, scaled": case("passthrough", **SLICES, parameters={"scale": SCALES}),
    "dare_linear": case("dare_linear", **CHANGES),
    "dare_ties": case("dare_ties", **CHANGES),
}


def make(folder: Path) -> None:
    """Folders with a base network, two that were changed a little, and one that has nothing of it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=8000, num_key_value_heads=4, **SIZES)
    network = LlamaForCausalLM(config)
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for name, size in {BASE: 0.0, "a": 0.05, "b": 0.05, "far": 1.0}.items():
        drawn = {
            n: t * (1 - size) + size * t.std() * torch.randn_like(t) if t.ndim > 1 else t for n, t in start.items()
        }
        network.load_state_dict(drawn)
        network.save_pretrained(folder / name)


def recipe(folder: Path, case: dict[str, Any], file: bool) -> dict[str, Any]:
    """The configuration of a case, of folders or of the files in them."""

    def place(name: str) -> str:
        return str(folder / name / "model.safetensors" if file else folder / name)

    if "slices" in case:
        sources = [{"model": place(name), "layer_range": layers} for name, layers in case["slices"].items()]
        given = {"merge_method": case["merge_method"], "parameters": case.get("parameters", {})}
        return given | {"slices": [{"sources": [each]} for each in sources]}
    parts = [{"model": place(name)} for name in case.get("models", PARTS)]
    for i, part in enumerate(parts if "each" in case else []):
        part["parameters"] = {k: v[i] if isinstance(v, list) else v for k, v in case["each"].items()}
    given = {"merge_method": case["merge_method"], "models": parts, "parameters": case.get("parameters", {})}
    base = {"base_model": place(case["base_model"])} if "base_model" in case else {}
    return given | base | {"dtype": "float32"}


def ours(yml: Path, out: Path) -> None:
    """Merge with Roundweave, as the command does after Prefect has started."""
    from roundweave.flows.config.files import read_recipe
    from roundweave.flows.config.merging.merge import MergeConfig
    from roundweave.flows.merging.preparing import plan_merge
    from roundweave.flows.merging.writing import write_out
    from roundweave.tasks.merging.gallery import Blend, combined_by

    plan = plan_merge(MergeConfig(**read_recipe(str(yml)), out=str(out / "model.safetensors"), force=True))
    blend = Blend(plan.places, plan.config.shares(len(plan.states)), recipe=plan.recipe)
    write_out(plan, combined_by(blend, plan.states, *plan.every_state[plan.count :]))


def theirs(yml: Path, out: Path) -> None:
    """Merge with mergekit."""
    import yaml
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge

    config = MergeConfiguration.model_validate(yaml.safe_load(yml.read_text()))
    run_merge(config, str(out), MergeOptions(copy_tokenizer=False, write_model_card=False, random_seed=0))


def stably(yml: Path, out: Path) -> None:
    """Merge with mergekit, whose sorts leave equal numbers in their order."""
    with mock.patch.object(torch, "argsort", partial(torch.argsort, stable=True)):
        theirs(yml, out)


PROGRAMS: dict[str, Callable[[Path, Path], None]] = {"roundweave": ours, "mergekit": theirs, "stable": stably}


def measured(program: str, yml: Path, out: Path) -> dict[str, float]:
    """The seconds of merges without the imports, and the peak of the memory of their process, in MB."""
    out.mkdir(parents=True, exist_ok=True)
    given = [sys.executable, "-m", "tests.benchmarks.peers.mergekit.merging", program, str(yml), str(out)]
    answer = subprocess.run(given, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return found


def alone(program: str, yml: Path, out: Path) -> None:
    """Merge several times, and print the median of the seconds and the peak of the memory."""
    torch.set_num_threads(2)
    seconds, processor = [], []
    for _ in range(TRIES + 1):  # the first one imports what it needs
        began = time.perf_counter(), time.process_time()
        PROGRAMS[program](yml, out)
        seconds.append(time.perf_counter() - began[0])
        processor.append(time.process_time() - began[1])
    times = {"seconds": statistics.median(seconds[1:]), "CPU seconds": statistics.median(processor[1:])}
    print(json.dumps(times | {"MB": peak()}))


def peak() -> float:
    """The most memory that this process had since it runs this program, in MB.

    Not `ru_maxrss`, which begins at that of the process that started it.
    """
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in status if line.startswith("VmHWM"))


def compared(folder: Path, name: str, case: dict[str, Any]) -> dict[str, Any]:
    programs = ("roundweave", case.get("peer", "mergekit"))
    files = {program: folder / f"{program}.yml" for program in programs}
    for program, file in files.items():
        file.write_text(json.dumps(recipe(folder, case, program == "roundweave")))  # JSON is YAML, too
    outs = {program: folder / "out" / program for program in programs}
    every = {program: measured(program, files[program], outs[program]) for program in programs}
    one, other = (load_file(out / "model.safetensors") for out in outs.values())
    base = load_file(folder / BASE / "model.safetensors")
    moments = {
        f"{what} {program}": sum(getattr((found[n] - t).double(), what)().item() for n, t in base.items())
        / len(base)
        for program, found in zip(programs, (one, other), strict=True)
        for what in ("mean", "std")
    }
    assert one.keys() == other.keys()
    differences = [(one[n] - other[n]).abs() for n in one]
    return {
        "merge": name,
        "largest difference": max(each.max().item() for each in differences),
        "above 1e-6": sum(int((each > 1e-6).sum()) for each in differences),
        **{f"{what} {program}": number for program, found in every.items() for what, number in found.items()},
        **(moments if "dare" in name else {}),
    }


def main(folder: Path, packages: str, *cases: str) -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), packages])
    if not (folder / BASE).exists():
        make(folder)
    for name, case in CASES.items() if not cases else [(name, CASES[name]) for name in cases]:
        print(json.dumps(compared(folder, name, case)), flush=True)


if __name__ == "__main__":
    if sys.argv[1] in PROGRAMS:
        alone(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), *sys.argv[2:])
