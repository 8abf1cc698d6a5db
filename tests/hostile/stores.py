"""Stores as a stranger would make them: what a field says is wrong, and every digest, seal and chain is of that.

`STORES` has what is known to have done harm, by name; `product()` every field of attributes and records with every
odd value. Each is made of a sound run, whose folder is copied first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roundweave.storage.parsing import MOST_PARTITIONS
from roundweave.storage.values.hashing import json_digest, text_digest

PWN = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\x7f\u202etxt.exe\u2066\n[bold red]forged[/]\r"
"""Sets a terminal's title, clears it, in 7 and 8 bits, deletes, turns text around, forges a line."""

BIG = 10**15

DEEP: Any = []
for _ in range(60):
    DEEP = [DEEP]

VALUES: dict[str, Any] = {
    "text": "x",
    "escapes": PWN,
    "nothing": None,
    "list": [],
    "object": {},
    "true": True,
    "negative": -1,
    "huge": BIG,
    "beyond": 10**400,
    "float": 1e300,
    "nan": float("nan"),
    "infinite": float("inf"),
    "deep": DEEP,
    "long": "a" * 1_000_000,
    "surrogate": "\ud800",
    "nul": "\0",
    "numbers": [1, 2, 3],
    "mapping": {"a": {"b": 1}},
}
"""What a field may say that no writer writes, by name."""

TAIL = re.compile(r', "before": "[0-9a-f]*", "chain": "[0-9a-f]*"\}$')


@dataclass
class Store:
    """A copy of a run's folder; `attributes` and `records` are changed, then `seal` makes them consistent."""

    path: Path
    attributes: dict[str, Any] = field(init=False)
    records: dict[int, dict[str, Any]] = field(init=False)
    seals: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = json.loads((self.path / "zarr.json").read_text())
        self.attributes = self.root["attributes"]
        names = sorted(int(file.stem) for file in (self.path / "commits").glob("[0-9]*.json"))
        texts = {name: (self.path / f"commits/{name}.json").read_text() for name in names}
        self.records = {name: json.loads(TAIL.sub("}", text)) for name, text in texts.items()}

    @property
    def last(self) -> dict[str, Any]:
        """The record of the last round."""
        return self.records[max(self.records)]

    def seal(self) -> None:
        """Write attributes and records, each with the digests that a writer of it would have made."""
        (self.path / "zarr.json").write_text(json.dumps(self.root, indent=2))
        run, before = json_digest(self.attributes), ""
        for round, record in sorted(self.records.items()):
            text = json.dumps(record)
            chain = text_digest("\n".join((run, str(round), before, text)))
            sealed = f'{text[:-1]}, "before": "{before}", "chain": "{chain}"}}'
            (self.path / f"commits/{round}.json").write_text(sealed)
            before = chain
        self.chain, self.run = before, run

    def pruned(self, **value: Any) -> None:
        """A record of what was pruned, sealed; after `seal`."""
        said = {"states": [], "updates": [], "carried": []} | {"newest": max(self.records)}
        value = said | {"run": self.run, "chain": self.chain} | value
        (self.path / "commits/pruned.json").write_text(json.dumps(value | {"digest": json_digest(value)}))

    def lease(self, epoch: int = 2, **value: Any) -> None:
        """A writer's claim, sealed."""
        said = {"host": "h", "pid": 1, "born": 1.0, "token": "t", "epoch": epoch, "expiry": 0.0}
        said |= {"failure": None, "rounds": 2} | value
        content = json.dumps(said | {"digest": json_digest(said)})
        (self.path / f"commits/leases/{epoch}.json").write_text(content)

    def also(self, round: int, **fields: Any) -> None:
        """A further record, which follows the last one."""
        self.records[round] = json.loads(json.dumps(self.last)) | {"round": round} | fields


Make = Callable[[Store], object]


def put(value: Any, place: tuple[str, ...], new: Any) -> Any:
    """A JSON value with something else at a place; a ``*`` is the first key there is."""
    if not place:
        return new
    key: Any = place[0]
    if isinstance(value, list):
        return [put(value[0], place[1:], new), *value[1:]] if value else value
    key = next(iter(value)) if key == "*" else key
    return {**value, key: put(value.get(key), place[1:], new)}


def places(value: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every place of a JSON value, whole parts too; of a list the first element stands for all."""
    if at:
        yield at
    if isinstance(value, dict):
        for key, part in list(value.items()):
            yield from places(part, (*at, key))
    if isinstance(value, list) and value:
        yield from places(value[0], (*at, "0"))


def attribute(*place: str, value: Any) -> Make:
    """Attributes with something else at a place."""

    def make(store: Store) -> None:
        store.attributes = store.root["attributes"] = put(store.attributes, place, value)
        store.seal()

    return make


def record(*place: str, value: Any) -> Make:
    """The last record with something else at a place."""

    def make(store: Store) -> None:
        number = max(store.records)
        store.records[number] = put(store.records[number], place, value)
        store.seal()

    return make


def further(round: int, **fields: Any) -> Make:
    """One more record, of any number."""

    def make(store: Store) -> None:
        store.also(round, **fields)
        store.seal()

    return make


def without(key: str) -> Make:
    """A file or a folder is missing."""

    def make(store: Store) -> None:
        path = store.path / key
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return make


def instead(key: str, kind: str, size: int = 1 << 40) -> Make:
    """Something else has the name of a file or a folder."""

    def make(store: Store) -> None:
        path = store.path / key
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        match kind:
            case "folder":
                (path / "within").mkdir(parents=True)
            case "fifo":
                os.mkfifo(path)
            case "link":
                path.symlink_to("/etc/passwd")
            case "loop":
                path.symlink_to(path)
            case "noise":
                path.write_bytes(b"\xff\xfe\0{" * 50)
            case "sparse":
                with path.open("wb") as file:
                    file.truncate(size)

    return make


def named(name: bytes, folder: bool = False) -> Make:
    """A file or a folder of any name."""

    def make(store: Store) -> None:
        path = store.path / os.fsdecode(name)
        (path if folder else path.parent).mkdir(parents=True, exist_ok=True)
        if not folder:
            path.write_bytes(b"x")

    return make


def many_updates(store: Store) -> None:
    """A record tells of ten thousand updates of a run that has as many partitions."""
    updates = store.last["updates"]
    store.attributes["schema"]["partitions"] = 10_000
    store.last["updates"] = {str(p): next(iter(updates.values())) for p in range(10_000)}
    store.seal()


def many_rounds(store: Store) -> None:
    """Five hundred small records, and as many partitions as there can be."""
    store.attributes["schema"]["partitions"] = MOST_PARTITIONS
    for round in range(max(store.records) + 1, 500):
        store.also(round, updates={}, carry_from={})
    store.seal()


def wide_and_sparse(store: Store) -> None:
    """As many partitions as there can be, the last of which is in a record, and chunks that take no disk."""
    store.attributes["schema"]["partitions"] = MOST_PARTITIONS
    store.last["updates"][str(MOST_PARTITIONS - 1)] = store.last["updates"]["0"]
    store.seal()


def columns(value: Any) -> Make:
    """The records are in a pack, whose columns have this value."""

    def make(store: Store) -> None:
        store.seal()
        run, text = json_digest(store.attributes), json.dumps({"bookkeeping/seconds": [0.0] * 100} | value)
        chain = text_digest("\n".join((run, "0", "", text)))
        files = [store.path / f"commits/{round}.json" for round in sorted(store.records)]
        lines = [f'{text[:-1]}, "before": "", "chain": "{chain}"}}', *(file.read_text() for file in files)]
        (store.path / "commits/0-99.jsonl").write_text("".join(f"{line}\n" for line in lines))
        for file in files:
            file.unlink()

    return make


def rows(path: str, count: Any) -> Make:
    """A description tells of so many rows."""

    def make(store: Store) -> None:
        for name in (path,) if path else ("commits", "committed", "round"):
            file = store.path / name / "zarr.json"
            value = json.loads(file.read_text())
            value["shape"] = count if isinstance(count, list) else [count]
            file.write_text(json.dumps(value))

    return make


def sealed(method: Callable[..., None], **value: Any) -> Make:
    """What was pruned is said otherwise."""

    def make(store: Store) -> None:
        store.seal()
        method(store, **value)

    return make


def lease(epoch: int = 2, **value: Any) -> Make:
    """A writer's claim."""
    return lambda store: store.lease(epoch, **value)


def file(key: str, content: str) -> Make:
    """Another text in a file."""
    return lambda store: (store.path / key).write_text(content)


def code_named(text: str) -> Make:
    """The network is code of the user's, whose every name is a text."""
    code = {"reference": text, "name": text, "source": text, "path": text, "package": text, "pickled": text}
    code |= {"siblings": [[text, text]], "definitions": [[text, text]]}
    return attribute("config", "model", value=code)


def both(*makes: Make) -> Make:
    def make(store: Store) -> None:
        for each in makes:
            each(store)

    return make


NAN = float("nan")
ENDLESS = ("npz:/dev/zero", "csv:/dev/urandom", "text:/dev/ptmx")
"""Data that have no end, or would be waited for."""
UPDATE = {"digest": "0" * 64, "weight": 1}
WHOLE = {"refused": None, "metrics": {}, "seconds": 1.0, "worker": "", "match": None, "arrival": None}
WIDE = {"ranks": 10**9, "sharing": -1, "exchanged": {"x": 10**400}, "memory": [10**400]}
IN_HAND = {"0": {"push": 1, "version": 10**9, "steps": 0}}

ATTRIBUTES: dict[str, tuple[Any, ...]] = {
    "algorithm": (PWN,),
    "awaits": (3, [[PWN]], [PWN]),
    "config": (None, {}),
    "config.algorithm": (None, ["fed_avg"], {"name": "scaffold", **{f"o{n}": n for n in range(10**5)}}),
    "config.algorithm.name": (PWN, {"path": 3, "name": []}),
    "config.model": (PWN, None, {"source": 1}, DEEP, "m" * 10_000_000),
    "config.model_options": ([1],),
    "config.data": (PWN, [{"reference": PWN}, 3], *ENDLESS, [*ENDLESS]),
    "config.plugins": (3, [7], [{"name": 7}], [{"name": PWN}], {"name": PWN}),
    "config.planned": (7, {"strategy": PWN}),
    "config.rounds": (10**12,),
    "config.keep": ({"x": 1},),
    "config.fsync": ("x",),
    "coordinates": (None,),
    "created": (1e300, NAN, -(10**18), 10**10),
    "data": (None, {}),
    "data.class_names": (7, [PWN, "[/nothing]"]),
    "data.digest": (PWN,),
    "data.held_out": ("x",),
    "decided_by": (3, [{}], [PWN]),
    "fingerprint": ([1], {PWN: PWN, "torch": PWN}),
    "network": ({"inputs": "x", "outputs": -1}, {"inputs": [10**6, 10**6], "outputs": 10**9}),
    "parent": ([1], {}, {"run": PWN, "round": 1, "chain": PWN, "changed": {PWN: PWN}}),
    "schema": (None,),
    "schema.layout.aliases": ({"a": "b", "b": "a"},),
    "schema.layout.params": ([], [[f"p{number}", "float32", [1]] for number in range(200_000)]),
    "schema.layout.params.0.0": ("../../../../tmp/x", PWN, "$\\frac{a$"),
    "schema.layout.params.0.1": ("object", "float128", "uint32"),
    "schema.layout.params.0.2": ([2**57], [1] * 70),
    "schema.matches": ([["fc", "int64", [10**9]]],),
    "schema.memory": ([f"s{n}" for n in range(100_000)],),
    "schema.partitions": (10**12, 10**7, 10**400, True, 0, MOST_PARTITIONS),
    "schema.shard": (2, 1000, 10**6),
    "version": (10**30,),
    "versions": ("x", {PWN: PWN}),
}
"""By the place of a field, values that no run has: each makes a store of its own."""

RECORD: dict[str, tuple[Any, ...]] = {
    "carry_from.0": (999, -7),
    "epoch": (10**17,),
    "executor": (PWN,),
    "process_group": (WIDE, {"ranks": 2, "sharing": 2, "exchanged": {PWN: 1}, "memory": []}),
    "round": (77,),
    "score.loss": ("x", NAN, float("inf"), 10**400),
    "score.values": ({f"s{n}": 1.0 for n in range(5_000)}, {"../../x": 1.0, "$\\frac{": 2.0, "": 3.0}, {PWN: 0.5}),
    "seconds": (-1e308,),
    "server": ({"in_flight": IN_HAND, "steps": 1, "unsound": [9]},),
    "split.examples": (10**12, -5),
    "split.number": (10**17,),
    "tensors": ({PWN: PWN},),
    "time": (1e300, NAN),
    "token": (PWN,),
    "updates.0.arrival": ({"push": 1, "version": -3, "staleness": 10**9},),
    "updates.0.metrics": ({"../../../x": 1.0, "a/b": 2.0}, {"train_loss": "x"}, {PWN: 0.5}),
    "updates.0.weight": (10**400, -(10**18)),
    f"updates.{BIG}": (UPDATE,),
    "updates.2": (UPDATE | WHOLE,),
}
"""The same of the last record."""

INSTEAD: dict[str, str] = {
    "bookkeeping/seconds/c/0": "sparse fifo",
    "commits": "noise link",
    "commits/0-99.jsonl": "folder fifo link noise sparse",
    "commits/2.json": "folder fifo link noise sparse",
    "commits/leases": "noise",
    "commits/leases/1.json": "folder sparse",
    "commits/pruned.json": "noise sparse",
    "committed/c/0": "folder",
    "params": "noise loop",
    "partitions/0/c/0": "sparse",
    "stranger": "sparse fifo link",
    "updates/float32/c/1/0/0": "sparse",
    "zarr.json": "noise sparse folder fifo",
}
"""What has the name of a file or a folder and is something else."""

MISSING = ("commits", "commits/0.json", "commits/2.json", "zarr.json", "params", "updates", "bookkeeping")

STORES: dict[str, Make] = {
    **{
        f"{place}-{number}": make(*place.split("."), value=value)
        for make, table in ((attribute, ATTRIBUTES), (record, RECORD))
        for place, values in table.items()
        for number, value in enumerate(values)
    },
    **{f"{key}-{kind}": instead(key, kind) for key, kinds in INSTEAD.items() for kind in kinds.split()},
    **{f"{key}-missing": without(key) for key in (*MISSING, "partitions")},
    "record-of-round-10^17": further(10**17),
    "record-of-round-999999": further(999_999),
    "record-of-a-round-past-the-room": further(50_000, updates={}, carry_from={}),
    "partitions-many-rounds": many_rounds,
    "partitions-sparse-chunks": wide_and_sparse,
    "updates-of-10000-partitions": many_updates,
    "update-of-partition-minus-1": both(
        lambda store: store.last["updates"].update({"-1": store.last["updates"]["0"]}), Store.seal
    ),
    "rows-10^15": rows("", 10**15),
    "rows-odd": rows("", ["x", -1]),
    "rows-of-an-array": rows("committed", 10**15),
    "escapes-refusal": both(record("updates", "0", "refused", value=PWN), record("stop", value=PWN)),
    "escapes-worker": both(
        record("updates", "0", "worker", value=PWN),
        record("updates", "0", "arrival", value={"push": 1, "version": 1, "staleness": 0}),
    ),
    "escapes-option": attribute("config", "algorithm", PWN, value=PWN),
    "escapes-field": attribute("config", PWN, value=PWN),
    "escapes-code": code_named(PWN),
    "escapes-failure": lease(failure=PWN),
    "escapes-file": named(PWN.encode() + b".json"),
    "escapes-record-name": named(b"commits/damaged-1-" + PWN.encode()),
    "escapes-metric-folder": named(b"scores/" + PWN.encode().replace(b"/", b"_"), folder=True),
    "name-not-utf8": named(b"\xff\xfe.bin"),
    "score-not-utf8": named(b"scores/\xff\xfe", folder=True),
    "metric-not-utf8": named(b"metrics/\xff\xfe", folder=True),
    "attributes-a-list": file("zarr.json", "[]"),
    "attributes-a-text": file("zarr.json", '{"attributes": "x"}'),
    "attributes-deep": file("zarr.json", '{"attributes": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "pack-far-away": named(b"commits/999900-999999.jsonl"),
    "lease-epoch-10^17": lease(10**17),
    "lease-pid": lease(pid=10**30, host="h"),
    "lease-rounds-10^15": lease(rounds=10**15),
    "lease-for-ever": lease(expiry=9e10, host="elsewhere"),
    "folders-deep": named(b"/".join([b"d"] * 300), folder=True),
    "pruned-10^12": sealed(Store.pruned, states=[[0, 10**12]], newest=10**12),
    "pruned-in-spans": sealed(Store.pruned, updates=[[0, 999_999]] * 50, newest=999_999),
    "pruned-texts": sealed(Store.pruned, states="ab", carried=[["x", None]]),
    "pruned-minus": sealed(Store.pruned, states=[[-(10**9), 0]]),
    "columns-elsewhere": columns({"../../metrics/x": [0.0] * 100, "committed": [0.0] * 100, PWN: [1e300] * 100}),
    "columns-too-short": columns({"scores/loss": [0.0] * 99}),
    "columns-of-much": columns({f"metrics/m{number}": [1e308] * 100 for number in range(10_000)}),
    "columns-of-no-counts": columns(
        {f"bookkeeping/{name}": [NAN, 1e308] * 50 for name in ("accepted", "refused")}
    ),
}
"""Stores by name, each of which was found, or may be expected, to do harm."""

FOLDERS = {
    "escapes-folder": PWN.replace("/", "_"),
    "mathematics-folder": "$\\frac{a$",
    "markup-folder": "[bold]x[/y]",
}
"""Names of a run's folder."""


def product(path: Path) -> Iterator[tuple[str, Make]]:
    """Every field of the attributes and of a record, with every value that no writer writes; by name."""
    sound = Store(path)
    for kind, make, value in (("attributes", attribute, sound.attributes), ("record", record, sound.last)):
        for place in places(value):
            for what, odd in VALUES.items():
                yield f"{kind}:{'.'.join(place)}={what}", make(*place, value=odd)


def write(base: Path, make: Make, path: Path) -> Path:
    """A copy of a sound run at a path, made hostile."""
    shutil.copytree(base, path)
    make(Store(path))
    return path
