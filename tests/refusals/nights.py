"""Refusals about scheduled runs: fields of a configuration, and words of the line."""

from __future__ import annotations

from typing import Any

SERVER = {"algorithm": "async_sgd", "model": "logistic"}
FULL = {"algorithm": "fed_buff", "model": "logistic"}

ROWS: list[tuple[dict[str, Any], str]] = [
    # Gates and aliases.
    ({"accept": "accuracy => 0.9"}, "'accuracy => 0.9' is no condition; give one such as"),
    ({"accept": "acuracy >= 0.9"}, "accept: 'acuracy' is not scored; did you mean accuracy?"),
    ({"accept": "loss <= 1", "held_out": 0.0}, "accept = loss <= 1 needs scores, and no examples are"),
    ({"accept": "nowhere.py:gate"}, "nowhere.py"),
    ({"promote": "no/name"}, "promote = 'no/name': expected an alias, such as champion"),
    # Names and dates.
    ({"on_complete": "skip"}, "give name"),
    ({"algorithm": "auto", "name": "a", "on_complete": "extend"}, "auto counts epochs"),
    ({"name": "night-{day}"}, "expected a run name of letters, digits, "),
    ({"retain": "14d", "name": "night"}, "retain needs scheduled runs; give a name with {date}, or"),
    (
        {"date": "24.2.2031", "name": "a-{date}"},
        "date = '24.2.2031': expected the day that {date} stands for, such as",
    ),
    ({"date": "2031-02-30", "name": "a-{date}"}, "day is out of range for month"),
    (
        {"date": "2031-02-24", "name": "a"},
        "date = 2031-02-24 has no effect: nothing in the configuration has {date}",
    ),
    ({"retain": "14", "name": "a-{date}"}, "'14' is no span of time; give one such as 90s, 10m, 12h, 14d or 2w"),
    ({"timezone": "Europe"}, "'Europe' is no time zone"),
    ({"timezone": "../../etc/passwd"}, "is no time zone"),
    ({"timezone": "CEST"}, "'CEST' is no time zone; give one such as Europe/Berlin"),
    # Validation data.
    ({"validation": "digits", "held_out": 0}, "validation needs held-out examples, too"),
    ({"validation": "digits", "accept": "validation_f1 >= 1"}, "'validation_f1' is not scored"),
    ({"best": "validation_accuracy"}, "no score 'validation_accuracy' is computed"),
    ({"validation": "digits", "data": "npz:x", "partitions": 2, "sites": "a,b"}, "leave validation out"),
    # Exports.
    ({"export": "model.foo", "name": "a"}, "a checkpoint ends in "),
    ({"export": "out, ,mlflow", "name": "a"}, "'' is no target of an export"),
    ({"export": "s3://bucket/out", "name": "a"}, "is not on a disk of this machine"),
    ({"export": "mlfow", "name": "a"}, "did you mean mlflow"),
    ({"export": "out/{date:%Y.%m.%d}", "name": "a"}, "a folder whose name has a dot ends in /"),
    # Parameter servers.
    (SERVER | {"resplit_every": 2}, "rounds in which all partitions begin together; leave it out"),
    (SERVER | {"quorum": 2}, "quorum 2 needs rounds of all partitions; leave it out"),
    (FULL | {"buffer": 5}, "a buffer of 5 is never full: 4 partitions have one update each in it; give a smaller"),
    (FULL | {"buffer": 4, "reduce": "krum:1"}, "Krum(f=1, keep=1) needs 5 updates, and a round has 4"),
    (SERVER | {"executor": "graph", "order": "seeded"}, "on a cluster the workers decide the order"),
    (SERVER | {"executor": "graph", "speeds": "1,1,1,1"}, "on a cluster the workers decide the order"),
    (SERVER | {"speeds": "1,1"}, "speeds needs 4 numbers above 0, one for each partition"),
    (SERVER | {"speeds": "1,1,1,0"}, "speeds needs 4 numbers above 0, one for each partition"),
    (SERVER | {"speeds": "1,1,1,inf"}, "speeds needs 4 numbers above 0, one for each partition"),
    (SERVER | {"speeds": "1,1,1,1", "order": "recorded:a"}, "speeds decide a seeded order"),
    (SERVER | {"order": "sorted"}, "order = 'sorted': expected the order of arrivals at a parameter server"),
    (SERVER | {"order": "recorded:nowhere"}, "nowhere"),
    ({"speeds": "1,1,1,1"}, "order and speeds need the algorithm of a parameter server, as async_sgd"),
    ({"algorithm": "downpour", "fetch_every": 3, "push_every": 2}, "fetch_every 3 is no multiple of push_"),
    (SERVER | {"max_staleness": -1}, "max_staleness = -1: Input should be greater than or equal to 0"),
    (SERVER | {"fetch_every": 0}, "fetch_every = 0: Input should be greater than or equal to 1"),
    (SERVER | {"stale": "scaled"}, "stale = 'scaled': Input should be 'drop' or 'scale'"),
    # Topologies.
    ({"topology": "ring", "algorithm": "fed_avg"}, "networks of their own; choose d_psgd"),
    ({"topology": "ring", "algorithm": "easgd"}, "topology needs rounds of partitions"),
    ({"topology": "torus:3"}, "size a divisor of 4 partitions"),
    ({"topology": "torus"}, "topology 'torus' must be written torus:ROWS"),
    ({"topology": "two_level:2"}, "topology 'two_level:2' must be written two_level:SITE:K"),
    ({"topology": "two_level:2:0"}, "give numbers from 1"),
    ({"topology": [[0, 1], [1, -1]], "partitions": 2}, "edges must join partitions 0 to 1; look at -1"),
    ({"topology": [[0, 1], [1, 4]], "partitions": 2}, "edges must join partitions 0 to 1; look at 4"),
    ({"topology": "rinq"}, "unknown topology 'rinq'"),
    ({"topology": [[0, 1]]}, "edges must join partitions 0 to 3; look at 2"),
    (
        {"topology": [[0, 1, 2]]},
        "topology = [[0, 1, 2]]: expected graph of neighbours that average networks: ring, torus:ROWS, ",
    ),
    ({"topology": "none.json"}, "topology none.json cannot be read"),
    ({"topology": "ring", "init": "per-partition"}, "begin from one network; leave init out"),
    ({"topology": "ring", "stacked": 2}, "not for map OwnNetwork"),
    ({"topology": "ring", "apply": "adam"}, "the state is the mean of all networks: leave apply out"),
    # Names of fields, and their values.
    ({"partitons": 3}, "unknown field 'partitons'; did you mean partitions?"),
    ({"algorithm": "fedavg"}, "unknown algorithm 'fedavg'; did you mean fed_avg?"),
    ({"algorithm": {"name": "scaffold", "mu": 1}}, "algorithm scaffold takes no mu; it takes lr"),
    ({"apply": "adam", "outer_momentum": 0.9}, "algorithm fed_avg takes no outer_momentum"),
    ({"reduce": "medan"}, "unknown reduce 'medan'; did you mean median?"),
    ({"lr": -1.0}, "lr = -1.0: Input should be greater than 0"),
    ({"init": "own"}, "init = 'own': Input should be 'shared' or 'per-partition'"),
    ({"data": 3, "rounds": 0}, "rounds = 0: Input should be "),
    ({"data": 3}, "data = 3: expected "),
    # Data of a day.
    ({"data_options": {"day": 1}}, "data digits takes no options"),
    # Seeds and what is kept.
    ({"init": "per-partition", "init_seed": 1}, "init = per-partition draws weights by seed; leave init_seed out"),
]
