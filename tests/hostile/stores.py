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
        if (self.path / "commits/copied.json").is_file():
            self.copied()

    def copied(self, **value: Any) -> None:
        """What says up to which round numbers are copied, sealed; after `seal`."""
        said = json.loads((self.path / "commits/copied.json").read_text()) | {"chain": self.chain} | value
        del said["digest"]
        (self.path / "commits/copied.json").write_text(json.dumps(said | {"digest": json_digest(said)}))

    def pruned(self, **value: Any) -> None:
        """A record of what was pruned, sealed; after `seal`."""
        newest = max(self.records)
        value = {
            "run": self.run,
            "states": [],
            "updates": [],
            "carried": [],
            "newest": newest,
            "chain": self.chain,
        } | value
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


Make = Callable[[Store], None]


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


def record(*place: str, value: Any, round: int = 0) -> Make:
    """The last record with something else at a place."""

    def make(store: Store) -> None:
        number = round or max(store.records)
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
            case "empty":
                path.touch()
            case "noise":
                path.write_bytes(b"\xff\xfe\0{" * 50)
            case "escapes":
                path.write_text(PWN)
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


def many_parameters(count: int) -> Make:
    """So many parameters are declared."""

    def make(store: Store) -> None:
        layout = [[f"p{number}", "float32", [1]] for number in range(count)]
        attribute("schema", "layout", "params", value=layout)(store)

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
    for path in ("weight", "accepted", "map_seconds"):
        for row in range(3):
            instead(f"bookkeeping/{path}/c/{row}/0", "sparse", 8 * MOST_PARTITIONS + 4)(store)


def rows(path: str, count: Any) -> Make:
    """A description tells of so many rows."""

    def make(store: Store) -> None:
        for name in (path,) if path else ("commits", "committed", "round"):
            file = store.path / name / "zarr.json"
            value = json.loads(file.read_text())
            value["shape"] = count if isinstance(count, list) else [count]
            file.write_text(json.dumps(value))

    return make


def pruned(**value: Any) -> Make:
    def make(store: Store) -> None:
        store.seal()
        store.pruned(**value)

    return make


def copied(**value: Any) -> Make:
    def make(store: Store) -> None:
        store.seal()
        store.copied(**value)

    return make


def lease(epoch: int = 2, **value: Any) -> Make:
    return lambda store: store.lease(epoch, **value)


def file(key: str, content: str | bytes) -> Make:
    def make(store: Store) -> None:
        path = store.path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


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


NO_DIGEST = "0" * 64
LOST: dict[str, Any] = {"refused": PWN, "worker": PWN}

STORES: dict[str, Make] = {
    # Numbers that are none, or that no run has.
    "record-of-round-10^17": further(10**17),
    "record-of-round-999999": further(999_999),
    "record-of-a-round-past-the-room": further(50_000, updates={}, carry_from={}),
    "partitions-10^12": attribute("schema", "partitions", value=10**12),
    "partitions-10^7": attribute("schema", "partitions", value=10**7),
    "partitions-most": attribute("schema", "partitions", value=MOST_PARTITIONS),
    "partitions-10^400": attribute("schema", "partitions", value=10**400),
    "partitions-true": attribute("schema", "partitions", value=True),
    "partitions-0": attribute("schema", "partitions", value=0),
    "shards-of-2": attribute("schema", "shard", value=2),
    "shards-of-1000": attribute("schema", "shard", value=1000),
    "shards-of-10^6": attribute("schema", "shard", value=10**6),
    "partitions-many-rounds": many_rounds,
    "partitions-sparse-chunks": wide_and_sparse,
    "updates-of-10000-partitions": many_updates,
    "update-of-partition-10^15": record("updates", str(BIG), value={"digest": NO_DIGEST, "weight": 1}),
    "update-of-partition-2": record(
        "updates",
        "2",
        value={
            **{"digest": NO_DIGEST, "weight": 1, "refused": None, "metrics": {}, "seconds": 1.0, "worker": ""},
            **{"match": None, "arrival": None},
        },
    ),
    "update-of-partition-minus-1": both(
        lambda store: store.last["updates"].update({"-1": store.last["updates"]["0"]}), lambda store: store.seal()
    ),
    "score-x": record("score", "loss", value="x"),
    "score-nan": record("score", "loss", value=float("nan")),
    "score-infinite": record("score", "loss", value=float("inf")),
    "score-10^400": record("score", "loss", value=10**400),
    "score-of-many-values": record("score", "values", value={f"s{n}": 1.0 for n in range(5_000)}),
    "score-called-dots": record("score", "values", value={"../../x": 1.0, "$\\frac{": 2.0, "": 3.0}),
    "created-1e300": attribute("created", value=1e300),
    "created-nan": attribute("created", value=float("nan")),
    "created-minus-10^18": attribute("created", value=-(10**18)),
    "created-10^10": attribute("created", value=10**10),
    "time-1e300": record("time", value=1e300),
    "time-nan": record("time", value=float("nan")),
    "seconds-minus": record("seconds", value=-1e308),
    "weight-10^400": record("updates", "0", "weight", value=10**400),
    "weight-minus": record("updates", "0", "weight", value=-(10**18)),
    "weights-zero": both(record("updates", "0", "weight", value=0), record("updates", "1", "weight", value=0)),
    "metrics-text": record("updates", "0", "metrics", "train_loss", value="x"),
    "metric-called-dots": record("updates", "0", "metrics", value={"../../../x": 1.0, "a/b": 2.0}),
    "split-of-10^12": record("split", "examples", value=10**12),
    "split-number-10^17": record("split", "number", value=10**17),
    "split-minus": record("split", "examples", value=-5),
    "carry-from-to-come": record("carry_from", "0", value=999),
    "carry-from-minus": record("carry_from", "0", value=-7),
    "epoch-10^17": record("epoch", value=10**17),
    "round-other": record("round", value=77),
    "process-group-memory-none": record(
        "process_group", value={"ranks": 2, "sharing": 2, "exchanged": {PWN: 1}, "memory": []}
    ),
    "process-group-wide": record(
        "process_group", value={"ranks": 10**9, "sharing": -1, "exchanged": {"x": 10**400}, "memory": [10**400]}
    ),
    "server-hands": record(
        "server", value={"in_flight": {"0": {"push": 1, "version": 10**9, "steps": 0}}, "steps": 1, "unsound": [9]}
    ),
    "arrival-stale-10^9": record("updates", "0", "arrival", value={"push": 1, "version": -3, "staleness": 10**9}),
    # Schemas.
    "parameters-200000": many_parameters(200_000),
    "parameters-none": many_parameters(0),
    "parameter-2^57": attribute("schema", "layout", "params", "0", "2", value=[2**57]),
    "parameter-of-70-axes": attribute("schema", "layout", "params", "0", "2", value=[1] * 70),
    "parameter-object-type": attribute("schema", "layout", "params", "0", "1", value="object"),
    "parameter-float128": attribute("schema", "layout", "params", "0", "1", value="float128"),
    "parameter-uint32": attribute("schema", "layout", "params", "0", "1", value="uint32"),
    "parameter-path": attribute("schema", "layout", "params", "0", "0", value="../../../../tmp/x"),
    "parameter-escapes": attribute("schema", "layout", "params", "0", "0", value=PWN),
    "parameter-mathematics": attribute("schema", "layout", "params", "0", "0", value="$\\frac{a$"),
    "slots-10^5": attribute("schema", "memory", value=[f"s{n}" for n in range(100_000)]),
    "matches-odd": attribute("schema", "matches", value=[["fc", "int64", [10**9]]]),
    "aliases-loop": attribute("schema", "layout", "aliases", value={"a": "b", "b": "a"}),
    "schema-none": attribute("schema", value=None),
    "version-other": attribute("version", value=10**30),
    "rows-10^15": rows("", 10**15),
    "rows-odd": rows("", ["x", -1]),
    "rows-of-an-array": rows("committed", 10**15),
    # Texts that a terminal obeys.
    "escapes-model": attribute("config", "model", value=PWN),
    "escapes-data": attribute("config", "data", value=PWN),
    "escapes-algorithm": attribute("config", "algorithm", "name", value=PWN),
    "escapes-algorithm-told": attribute("algorithm", value=PWN),
    "escapes-option": attribute("config", "algorithm", PWN, value=PWN),
    "escapes-field": attribute("config", PWN, value=PWN),
    "escapes-classes": attribute("data", "class_names", value=[PWN, "[/nothing]"]),
    "escapes-parent": attribute("parent", value={"run": PWN, "round": 1, "chain": PWN, "changed": {PWN: PWN}}),
    "escapes-versions": both(
        attribute("versions", value={PWN: PWN}), attribute("fingerprint", value={PWN: PWN, "torch": PWN})
    ),
    "escapes-digest": attribute("data", "digest", value=PWN),
    "escapes-refusal": both(record("updates", "0", "refused", value=PWN), record("stop", value=PWN)),
    "escapes-worker": both(
        record("updates", "0", "worker", value=PWN),
        record("updates", "0", "arrival", value={"push": 1, "version": 1, "staleness": 0}),
    ),
    "escapes-score": record("score", "values", value={PWN: 0.5}),
    "escapes-metric": record("updates", "0", "metrics", value={PWN: 0.5}),
    "escapes-executor": record("executor", value=PWN),
    "escapes-token": record("token", value=PWN),
    "escapes-tensors": record("tensors", value={PWN: PWN}),
    "escapes-code": code_named(PWN),
    "escapes-failure": lease(failure=PWN),
    "escapes-planned": attribute("config", "planned", value={"strategy": PWN}),
    "escapes-file": named(PWN.encode() + b".json"),
    "escapes-record-name": named(b"commits/damaged-1-" + PWN.encode()),
    "escapes-metric-folder": named(b"scores/" + PWN.encode().replace(b"/", b"_"), folder=True),
    # Names and things that are no files.
    "name-not-utf8": named(b"\xff\xfe.bin"),
    "score-not-utf8": named(b"scores/\xff\xfe", folder=True),
    "metric-not-utf8": named(b"metrics/\xff\xfe", folder=True),
    "commits-missing": without("commits"),
    "commits-a-file": instead("commits", "noise"),
    "commits-a-link": instead("commits", "link"),
    "record-missing": without("commits/2.json"),
    "records-0-missing": without("commits/0.json"),
    "record-a-folder": instead("commits/2.json", "folder"),
    "record-a-fifo": instead("commits/2.json", "fifo"),
    "record-a-link": instead("commits/2.json", "link"),
    "record-noise": instead("commits/2.json", "noise"),
    "record-sparse": instead("commits/2.json", "sparse"),
    "attributes-noise": instead("zarr.json", "noise"),
    "attributes-sparse": instead("zarr.json", "sparse"),
    "attributes-a-folder": instead("zarr.json", "folder"),
    "attributes-a-fifo": instead("zarr.json", "fifo"),
    "attributes-missing": without("zarr.json"),
    "attributes-a-list": file("zarr.json", "[]"),
    "attributes-a-text": file("zarr.json", '{"attributes": "x"}'),
    "attributes-deep": file("zarr.json", '{"attributes": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "pack-a-folder": instead("commits/0-99.jsonl", "folder"),
    "pack-a-fifo": instead("commits/0-99.jsonl", "fifo"),
    "pack-a-link": instead("commits/0-99.jsonl", "link"),
    "pack-noise": instead("commits/0-99.jsonl", "noise"),
    "pack-sparse": instead("commits/0-99.jsonl", "sparse"),
    "pack-far-away": named(b"commits/999900-999999.jsonl"),
    "leases-a-file": instead("commits/leases", "noise"),
    "lease-a-folder": instead("commits/leases/1.json", "folder"),
    "lease-sparse": instead("commits/leases/1.json", "sparse"),
    "lease-epoch-10^17": lease(10**17),
    "lease-pid": lease(pid=10**30, host="h"),
    "lease-rounds-10^15": lease(rounds=10**15),
    "lease-for-ever": lease(expiry=9e10, host="elsewhere"),
    "params-a-file": instead("params", "noise"),
    "params-missing": without("params"),
    "params-a-loop": instead("params", "loop"),
    "updates-missing": without("updates"),
    "chunk-sparse": instead("updates/float32/c/1/0/0", "sparse"),
    "numbers-sparse": instead("bookkeeping/seconds/c/0", "sparse"),
    "numbers-a-fifo": instead("bookkeeping/seconds/c/0", "fifo"),
    "numbers-missing": without("bookkeeping"),
    "committed-a-folder": instead("committed/c/0", "folder"),
    "split-missing": without("partitions"),
    "split-sparse": instead("partitions/0/c/0", "sparse"),
    "stranger-sparse": instead("stranger", "sparse"),
    "stranger-a-fifo": instead("stranger", "fifo"),
    "stranger-a-link": instead("stranger", "link"),
    "folders-deep": named(b"/".join([b"d"] * 300), folder=True),
    "pruned-10^12": pruned(states=[[0, 10**12]], newest=10**12),
    "pruned-in-spans": pruned(updates=[[0, 999_999]] * 50, newest=999_999),
    "pruned-texts": pruned(states="ab", carried=[["x", None]]),
    "pruned-minus": pruned(states=[[-(10**9), 0]]),
    "copied-noise": instead("commits/copied.json", "noise"),
    "copied-sparse": instead("commits/copied.json", "sparse"),
    "copied-a-folder": instead("commits/copied.json", "folder"),
    "copied-to-come": copied(round=999_999),
    "copied-elsewhere": copied(since={"../../metrics/x": 0, "committed": 0, PWN: 10**9}),
    "copied-of-nothing": copied(since={"committed": 999_999}),
    "copied-of-much": copied(since={"committed": 0, **{f"metrics/m{n}": 0 for n in range(10_000)}}),
    "pruned-noise": instead("commits/pruned.json", "noise"),
    "pruned-sparse": instead("commits/pruned.json", "sparse"),
    # What is recorded of it.
    "config-none": attribute("config", value=None),
    "config-empty": attribute("config", value={}),
    "algorithm-none": attribute("config", "algorithm", value=None),
    "algorithm-list": attribute("config", "algorithm", value=["fed_avg"]),
    "algorithm-code": attribute("config", "algorithm", "name", value={"path": 3, "name": []}),
    "model-none": attribute("config", "model", value=None),
    "model-odd-code": attribute("config", "model", value={"source": 1}),
    "model-options-list": attribute("config", "model_options", value=[1]),
    "model-deep": attribute("config", "model", value=DEEP),
    "data-none": attribute("data", value=None),
    "data-empty": attribute("data", value={}),
    "data-list": attribute("config", "data", value=[{"reference": PWN}, 3]),
    "held-out-text": attribute("data", "held_out", value="x"),
    "classes-number": attribute("data", "class_names", value=7),
    "parent-odd": attribute("parent", value=[1]),
    "parent-empty": attribute("parent", value={}),
    "planned-odd": attribute("config", "planned", value=7),
    "fingerprint-list": attribute("fingerprint", value=[1]),
    "versions-text": attribute("versions", value="x"),
    "network-odd": attribute("network", value={"inputs": "x", "outputs": -1}),
    "network-huge": attribute("network", value={"inputs": [10**6, 10**6], "outputs": 10**9}),
    "coordinates-gone": attribute("coordinates", value=None),
    "rounds-10^12": attribute("config", "rounds", value=10**12),
    "keep-odd": attribute("config", "keep", value={"x": 1}),
    "fsync-text": attribute("config", "fsync", value="x"),
    "long-text": attribute("config", "model", value="m" * 10_000_000),
    "fields-100000": attribute(
        "config", "algorithm", value={"name": "scaffold", **{f"o{n}": n for n in range(10**5)}}
    ),
    # Data that have no end, or would be waited for.
    "data-of-zeros": attribute("config", "data", value="npz:/dev/zero"),
    "data-at-random": attribute("config", "data", value="csv:/dev/urandom"),
    "data-of-a-terminal": attribute("config", "data", value="text:/dev/ptmx"),
    "data-of-each": attribute("config", "data", value=["npz:/dev/zero", "csv:/dev/zero"]),
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
