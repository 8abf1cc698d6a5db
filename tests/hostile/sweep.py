"""Prints what every command does with every store: ``python -m tests.hostile.sweep BASE FOLDER [PATTERN]``."""

from __future__ import annotations

import collections
import json
import re
import shutil
import sys
from pathlib import Path

from tests.hostile.commands import COMMANDS, tried
from tests.hostile.running import Commands
from tests.hostile.stores import STORES, write

if __name__ == "__main__":
    base, folder, pattern = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "."
    which = re.compile(sys.argv[4] if len(sys.argv) > 4 else ".")
    commands, count, kinds = Commands(seconds=30), 0, collections.Counter()
    worst = {"seconds": (0, ""), "bytes": (0, "")}
    with (folder / "found.jsonl").open("w") as log:
        for name, make in STORES.items():
            if not re.search(pattern, name):
                continue
            place = folder / "stores"
            shutil.rmtree(place, ignore_errors=True)
            store = write(base, make, place / "x.zarr")
            for told in tried(commands, [c for c in COMMANDS if which.search(c)], store, base, folder):
                count += 1
                worst = {
                    what: max(most, (told[what], f"{name}: {told['command']}")) for what, most in worst.items()
                }
                if told["wrong"] or told["seconds"] > 10 or told["bytes"] > 1 << 30:
                    kind = told["wrong"].split(":")[0] or "slow or large"
                    kinds[kind] += 1
                    took = f"{told['seconds']:5.1f} s {told['bytes'] >> 20:5} MB"
                    print(f"{name:32} {told['command']:18} {took}  {told['wrong']}", flush=True)
                    log.write(json.dumps({"store": name, **told, "page": ""}) + "\n")
            shutil.rmtree(place, ignore_errors=True)
    commands.close()
    print(count, "commands", dict(kinds), worst)
