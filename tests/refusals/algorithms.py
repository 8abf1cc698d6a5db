"""Refusals about algorithms: fields of a configuration, and words of the line that refuses them."""

from __future__ import annotations

from typing import Any

ROWS: list[tuple[dict[str, Any], str]] = [
    # Reduces.
    ({"algorithm": "matched", "soft": 1, "match_to": "many"}, "many"),
    ({"algorithm": "sync_sgd", "reduce": "regmean"}, "sends none; give local steps"),
    ({"reduce": "regmean", "stacked": 2}, "stacked = 2 is for plain SGD"),
    ({"reduce": "regmean", "ranks": 2, "executor": "ranks"}, "ranks = 2 is for maps"),
    # Reasons to stop that no round could have.
    ({"patience": 1, "held_out": 0}, "patience needs scores, and no examples are held out"),
    ({"target_accuracy": 0.5, "held_out": 0}, "target_accuracy needs scores, and no examples are held out"),
    ({"best": "loss", "held_out": 0}, "best needs scores, and no examples are held out"),
    ({"best": "max:acuracy"}, "no score 'acuracy' is computed; did you mean accuracy?"),
    # Rounds that no process could make again.
    ({"keep": "recompute:4", "mixed_hardware": True}, "recompute"),
    ({"keep": "recompute:4", "data": ("digits", "digits"), "sites": "a,b", "scheduler": "tcp://x:1"}, "recompute"),
    # Options that an algorithm does not hold for.
    (
        {"algorithm": "scaffold", "optimizer": "Adam", "init": "shared"},
        "scaffold takes no init, optimizer; it takes ",
    ),
    ({"algorithm": "fed_nova", "momentum": 0.5}, "algorithm fed_nova takes no momentum"),
    ({"algorithm": "mime_lite", "optimizer": "Adam"}, "algorithm mime_lite takes no optimizer"),
    ({"algorithm": "afl", "q": 0.5}, "algorithm afl takes no q"),
    ({"algorithm": "fed_prox", "mu": -1}, "mu = -1: Input should be greater than or equal to 0"),
    ({"algorithm": "sync_sgd", "accumulate": 2}, "algorithm sync_sgd takes no accumulate"),
    (
        {"algorithm": "sync_sgd", "outer_lr": 1.0, "clip_norm": 1.0},
        "takes no clip_norm, outer_lr; it takes batch_",
    ),
    (
        {"algorithm": "fed_buff", "lr_schedule_by": "step"},
        "lr_schedule_by = step needs rounds in which all partitions",
    ),
    ({"algorithm": "fed_buff", "init": "per-partition"}, "leave it out"),
    ({"algorithm": "easgd", "init": "per-partition"}, "leave init out"),
    ({"algorithm": "afl", "dtype": "bfloat16"}, "bfloat16 rounds; give dtype = float32"),
    ({"algorithm": "diloco", "local_epochs": 2, "local_steps": 3}, "give local_steps or local_epochs, not both"),
    ({"algorithm": "fed_avg", "lr_schedule": "cosin"}, "unknown schedule 'cosin'"),
    ({"batch_size": None, "accumulate": 2}, "accumulate = 2 needs batches of a size; give batch_size"),
    ({"accumulate": 2, "stacked": 8}, "plain SGD from a shared start, not for map "),
    ({"lr_schedule_by": "step", "stacked": 8}, "plain SGD from a shared start, not for map "),
    # Optimizers.
    ({"optimizer": "Sgdd"}, "torch.optim has no optimizer 'Sgdd'; there is SGD"),
    ({"optimizer": "lr_scheduler"}, "torch.optim has no optimizer 'lr_scheduler'"),
    ({"optimizer": "_functional"}, "torch.optim has no optimizer '_functional'"),
    ({"optimizer": "lbfgs"}, "LBFGS computes the loss several times in a step"),
    ({"optimizer_options": {"momentun": 0.9}}, "unexpected keyword argument 'momentun'"),
    ({"optimizer_options": {"nesterov": True}}, "Nesterov momentum requires a momentum"),
    ({"optimizer_options": {"momentum": -1.0}}, "Invalid momentum value: -1.0"),
    ({"optimizer": "Muon"}, "2D"),
    ({"optimizer": "SparseAdam"}, "dense gradients"),
    ({"no_decay_on": ["biases"]}, "optimizer SGD decays no weights here: give it a weight_decay, or "),
    ({"optimizer": "AdamW", "no_decay_on": ["weights"]}, "'biases' or 'norms'"),
    (
        {"optimizer": "Adafactor", "optimizer_state": "carried"},
        "as (256, 1), where the parameter is (256, 64); only optimizer_state = fresh",
    ),
    (
        {"optimizer": "AdamW", "optimizer_state": "carried", "dtype": "bfloat16"},
        "optimizer AdamW keeps step of fc1.weight as a number of type float32, which bfloat16 rounds",
    ),
    (
        {"algorithm": "matched", "optimizer": "Adam", "optimizer_state": "carried"},
        "map LocalSteps goes by step, exp_avg, exp_avg_sq in the order of units, which reduce Matched changes",
    ),
    ({"algorithm": "scaffold", "reduce": "matched"}, "goes by control, control in the order of units"),
    ({"algorithm": "fed_dyn", "reduce": "matched"}, "goes by drift in the order of units"),
    ({"algorithm": "mime_lite", "reduce": "matched"}, "goes by momentum in the order of units"),
    ({"algorithm": "easgd", "reduce": "matched"}, "goes by own in the order of units"),
    ({"algorithm": "d_psgd", "reduce": "matched"}, "goes by own in the order of units"),
    # Optimizers of the user's own.
    ({"optimizer": "mine.py:no_optimizer"}, "must return a torch.optim.Optimizer, not NoneType"),
    ({"optimizer": "mine.py:failing_optimizer"}, "no attribute 'nothing'"),
    ({"optimizer": "mine.py:optimizer_of_others"}, "has parameters of another network than it was called with"),
    (
        {"optimizer": "mine.py:optimizer_of_some"},
        "leaves out fc1.weight; give all to groups, or let the model freeze",
    ),
    ({"optimizer": "mine.py:broken_optimizer"}, "optimizer Broken cannot train this network: "),
    ({"optimizer": "mine.py:searching_optimizer"}, "optimizer LBFGS computes the loss several times in a step"),
    ({"optimizer": "mine.py:no_such_optimizer"}, "no such function"),
    (
        {"optimizer": "mine.py:own_optimizer", "momentum": 0.9},
        "mine.py:own_optimizer decides about momentum itself",
    ),
    ({"optimizer": "mine.py:own_optimizer", "lr": 0.1}, "sets its learning rates itself; leave lr = 0.1 out"),
    ({"optimizer": "mine.py:own_optimizer", "stacked": 8}, "stacked = 8 is for plain SGD"),
    ({"optimizer": "mine.py:own_optimizer", "ranks": 2, "executor": "ranks"}, "ranks = 2 is for maps"),
    # Parts and algorithms of the user's own.
    ({"reduce": "mine.py:Typo"}, "mine.py:Typo must define center"),
    (
        {"reduce": "mine.py:Wants"},
        "is made without arguments (missing a required argument: 'f'); give what it takes a",
    ),
    ({"reduce": "mine.py:Wanted"}, "the file has no such function or class; it has "),
    ({"reduce": "mine.py:returns_three"}, "mine.py:returns_three must give a roundweave.Reduce, not int"),
    ({"reduce": "mine.py:middle", "q": 1}, "with a reduce of your own, whose fields are no options, takes no q"),
    ({"algorithm": "mine.py:returns_three"}, "must return an Algorithm, not int"),
    ({"algorithm": "mine.py:stepping", "momentum": 0.5}, "takes no momentum; it takes rate, steps"),
    ({"algorithm": "mine.py:stepping", "rate": -1.0}, "rate = -1.0: Input should be greater than 0"),
    ({"algorithm": "mine.py:stepping", "steps": "abc"}, "steps = 'abc': Input should be a valid integer"),
    ({"algorithm": "mine.py:stepping", "steps": 4}, "mine.py:stepping failed with ZeroDivisionError"),
    ({"map": "scafold"}, "unknown map 'scafold'; did you mean scaffold"),
    ({"apply": "adam", "outer_momentum": 0.9}, "algorithm fed_avg takes no outer_momentum"),
]
