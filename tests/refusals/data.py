"""Refusals about data: fields of a configuration, and words of the line that refuses them."""

from __future__ import annotations

from typing import Any

import pandas as pd

SHARE = "expected a number (10) or fraction (0.1) of partitions"
TABLE = "expected FILE.toml or FILE.json: a table"

ROWS: list[tuple[dict[str, Any], str]] = [
    ({"data": "digit"}, "unknown data 'digit'; did you mean digits? There are digits, mnist:DIR, "),
    ({"data": "mnist"}, "data mnist needs its DIR: mnist:DIR"),
    ({"data": "digits:3"}, "data digits takes no '3'"),
    ({"data": ""}, "and FILE.py:function"),
    ({"data": "mine.py:arrays()"}, "must be written FILE.py:function, with the function's bare name"),
    ({"data": pd.DataFrame({"a": [1]})}, "data = a DataFrame: give a function that returns (inputs, targets)"),
    ({"data": lambda: (pd.DataFrame({"a": ["x"], "b": 1}), [0])}, "column 'a' holds str; code it as numbers"),
    ({"split": "non-iid"}, "unknown split 'non-iid'; there are iid, "),
    ({"data": "digits", "target": "age"}, "data digits is no table; leave target out"),
    (
        {"data": "mine.py:arrays", "target": "a", "encode": "one-hot"},
        "mine.py:arrays is no table; leave target, encode out",
    ),
    ({"data": "mine.py:arrays", "data_options": {"x": 1}}, "data mine.py:arrays takes no option 'x'"),
    ({"data": "csv:http://127.0.0.1:9/x.csv"}, "there is no file http://"),
    ({"cohort": 11, "partitions": 10}, "a cohort of 11 is more than the 10 partitions"),
    ({"cohort": "1.5"}, SHARE),
    ({"cohort": 3, "quorum": 4}, "quorum 4 is more than the 3 partitions of a round"),
    ({"cohort_from": "present"}, "cohort_from = present needs sites; give sites, too"),
    ({"cohort_by_size": True}, "cohort_by_size needs a cohort; give cohort, too"),
    ({"cohort": 3, "topology": "ring"}, "topology and cohort both decide the sampler; leave one"),
    ({"cohort": 3, "algorithm": "auto"}, "auto chooses the number of partitions"),
    ({"cohort": 3, "algorithm": "fed_buff", "buffer": 4}, "a buffer of 4 is never full"),
    ({"cohort": 3, "algorithm": "downpour", "fetch_every": 4, "push_every": 2}, "give fetch_every 2"),
    ({"cohort": 3, "recombined": {"reduce": "krum:1"}}, "needs 5 updates, and a round has 3"),
    ({"split": "odd"}, "unknown split 'odd'; there are iid, contiguous"),
    ({"split": "iid:3"}, "split 'iid:3' must be written iid"),
    ({"split": "contiguous", "resplit_every": 3}, "resplit_every needs a random split, and contiguous is always"),
    *(
        ({"split": f"proportions:{text}", "partitions": 2}, "and there are 2; give a number")
        for text in ("3", "3,1,2")
    ),
    *(({"split": f"{kind}:"}, f"must be written {kind}:COLUMN") for kind in ("by", "largest")),
    *(
        ({"split": f"{kind}:{text}"}, f"split '{kind}:{text}' must be written {kind}:{what}")
        for kind, what, texts in (
            ("shards", "SHARDS", ("", "0", "-2", "1.5", "two")),
            ("sizes", "EXPONENT", ("0", "-1", "big")),
            ("proportions", "NUMBERS", ("3,0", "3,-1", "3,", "3,one", "3,nan", "3,inf", "3;1")),
            ("dirichlet", "ALPHA", ("0", "-1", "x", "nan", "inf")),
            ("dirichlet_by_class", "ALPHA", ("0", "-1", "x", "nan", "inf")),
        )
        for text in texts
    ),
    ({"split": "by:street"}, "the data has no column 'street'"),
    ({"partition_options": "north"}, "'north' is no FILE.toml or FILE.json"),
    ({"partition_options": "nowhere.toml"}, "partition_options nowhere.toml cannot be read: "),
    ({"partition_options": {"0": 5}}, TABLE),
    ({"partition_options": {"0": {"when": object()}}}, TABLE),
    ({"partition_options": {"7": {}}}, "'7' is no partition, or has options already; there are 0 to 3"),
]
