"""Refusals of merges: fields of a configuration, and words of the line that refuses them.

The networks `a.pt` and `b.pt`, and their `base.pt`, have three numbered layers.
"""

from __future__ import annotations

from typing import Any

DATA = {"data": "mine.py:data", "input": None}
THREE = DATA | {"networks": ("a.pt", "b.pt", "c.pt")}
BASE = {"base": "base.pt"}
WITHIN = DATA | {"within": True, "average": "mean"}
ONE = '[{"network": "a.pt", "layers": [0, 1]}]'
SLICES = {"networks": ("a.pt",), "slices": ONE, "model": None, "input": None}

ROWS: list[tuple[dict[str, Any], str]] = [
    # Averages and what they take
    ({"average": "tie"}, "unknown average 'tie'; did you mean ties? There are auto, best"),
    ({"average": "ties"}, "average ties needs the network from which all were trained; give base"),
    ({"average": "slerp", **BASE}, "average slerp takes no base network; leave base out"),
    (BASE, "base is an option of averages"),
    ({"average": "slerp", "networks": ("a.pt", "b.pt", "c.pt")}, "Slerp takes 2 networks, not 3"),
    ({"average": "slerp", "coefficients": (1, 2)}, "average slerp has no option coefficients; it has t"),
    ({"average": "slerp", "t": 1.5}, "t = 1.5: Input should be less than or equal to 1"),
    ({"average": "slerp", "t": [{"filtre": "mlp", "value": 1}]}, "expected slerp"),
    ({"average": "slerp", "t": [{"filter": "mpl", "value": 0.1}, {"value": 0.5}]}, "'mpl' is in the name of no"),
    (
        {"average": "slerp", "t": [{"filter": "s.0", "value": 0}]},
        "t has no value for layers.1.weight; end the list",
    ),
    ({"t": 0.5}, "t is an option of averages; give one that has it: mean, slerp"),
    ({"average": "dare_ties", "density": 0, **BASE}, "density = (0.0,): Input should be greater than 0"),
    ({"average": "mean", "density": 0.5}, "average mean has no option density"),
    ({"average": "ties", "density": "0.1,0.2,0.3", **BASE}, "density has 3 values for 2 networks"),
    ({"average": "mean", "networks": ("a.pt",)}, "a merge takes two networks or more, not 1; or one with a base"),
    # Coefficients
    ({"average": "mean", "coefficients": "1,2,3"}, "2 networks need 2 coefficients, not 3"),
    ({"average": "mean", "coefficients": "1,-1"}, "whose sum is not 0, not [1.0, -1.0]"),
    ({"average": "mean", "layers": {"layers.0": (1,)}}, "layer 'layers.0': 2 networks need 2 coeff"),
    ({"average": "mean", "layers": {"layers.0": (1, -1)}}, "whose sum is not 0"),
    ({"average": "mean", "layers": {"layer": (1, 2)}}, "no tensor is of layer 'layer'; there are layers.0"),
    ({"average": "ties", "coefficients": "2,-1", **BASE}, "would undo the negative ones of [2.0, -1.0]"),
    ({"average": "regmean", "coefficients": "2,-1"}, "must be numbers, none negative and not all zero"),
    ({"average": "best", "coefficients": (1, 2)}, "average = best finds the coefficients; give none"),
    # What needs examples, or files in their place
    *(
        ({"average": name}, f"average = {name} needs examples; give --data")
        for name in ("best", "pleas", "fisher", "regmean")
    ),
    ({"average": "regmean", "grams": ("a.safetensors",)}, "2 networks need 2 files of Gram"),
    ({"average": "mean", "grams": ("a", "b")}, "Gram matrices are for average = regmean"),
    ({"average": "regmean", "grams": ("g.safetensors", "h.safetensors")}, "g.safetensors"),
    (WITHIN | {"data": None, "input": "2x6"}, "within needs examples; give --data"),
    # Units that are mixed, or paired within their network
    (DATA | {"average": "pleas", "soft": 2, "match": "mixed"}, "average pleas needs a one-to-one match"),
    ({"soft": 2, "match": "none"}, "soft needs a match: weights, activations or mixed"),
    ({"soft": 2, "metric": "l2"}, "soft needs metric = cosine or correlation"),
    ({"temperature": 0.5}, "temperature needs a soft mixture"),
    ({"match": "mixed", "metric": "l2"}, "weights and activations differ in scale"),
    (WITHIN | {"match": "weights"}, "within compares activations"),
    (WITHIN | {"coefficients": (3, 1)}, "leave coefficients out"),
    (WITHIN | {"average": "pleas"}, "leave within out"),
    (WITHIN | {"networks": ("a.pt", "b.pt", "c.pt")}, "within needs two networks, not 3"),
    # Repairs and distillations
    (WITHIN | {"repair": True}, "without BatchNorm, repair needs the plain mean, not within"),
    (DATA | {"average": "regmean", "repair": True}, "not average regmean; leave repair out"),
    (DATA | {"average": "mean", "coefficients": (2, -1), "repair": True}, "weights by layers or below 0"),
    ({"distil_lr": 0.1}, "distil_lr needs a distillation"),
    # Slices
    (SLICES | {"average": "ties"}, "slices exclude average; leave it out"),
    (SLICES | {"match": "weights"}, "slices exclude match; leave it out"),
    (SLICES | {"out": None}, "slices need out"),
    (SLICES | {"slices": ONE.replace("0, 1", "2, 1")}, "layers [2, 1] of a.pt: give two numbers"),
    (SLICES | {"networks": ("a.pt", "c.pt")}, "the slices name the networks; leave networks out"),
    (SLICES | {"slices": '[{"network": "a.pt"}]'}, "Field required"),
    # Paths, places and inputs
    (THREE | {"plot": "a.png"}, "shows the path between two networks"),
    (THREE | {"average": "best"}, "needs two networks"),
    (DATA | {"plot": "a.xyz"}, "a.xyz: a plot ends in .png, .pdf, .svg"),
    (DATA | {"plot": "no/a.png"}, "there is no folder no; make it first"),
    ({"out": "a.onnx"}, "a checkpoint ends in .safetensors, .pt, .pth,"),
    ({"input": "2by6"}, "--input '2by6' is no shape such as 2x3x32x32"),
    ({"input": None}, "give --data, or --input with the shape of example inputs"),
    ({"match": "mixed"}, "match mixed needs examples"),
    ({"coefficients": "a,b"}, "coefficients = 'a,b': expected weight of each network"),
]
