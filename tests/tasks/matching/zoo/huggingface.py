"""Tiny models of the transformers package, built from configurations without any weights to download.

The package is imported where a model is built: the tests are collected without it too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.tasks.matching.zoo.registry import Member, seeded

TRANSFORMERS: dict[str, Callable[[], Member]] = {}

LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
TEXT = {"vocab_size": 30, "max_position_embeddings": 12, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}


class Logits(nn.Module):
    """A model that gives its logits alone.

    Most models of transformers 5 cannot be configured to: their own inner calls fail under `return_dict=False`.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


def member(*variants: str) -> Callable[[Callable[..., Member]], Callable[..., Member]]:
    """Enter a builder once for each implementation of attention named."""

    def enter(build: Callable[..., Member]) -> Callable[..., Member]:
        for variant in variants or [""]:
            name = "_".join(["transformers", build.__name__, *([variant] if variant else [])])
            made = functools.partial(build, variant) if variant else build
            TRANSFORMERS[name] = seeded(made, build.__name__, 0.05)
        return build

    return enter


@member("sdpa", "eager")
def bert(attention: str) -> Member:
    """With a mask, as its tokenizer gives one: the last places of the second text are padding."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**LAYERS, **TEXT, num_labels=5, return_dict=False, attn_implementation=attention)
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 5:] = 0
    return BertForSequenceClassification(config), (torch.randint(2, 30, (3, 7)), mask)


@member("sdpa", "eager")
def gpt2(attention: str) -> Member:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 30, "n_positions": 12, "n_embd": 32, "n_layer": 2, "n_head": 4}
    tokens = {"bos_token_id": 1, "eos_token_id": 1}
    config = GPT2Config(**sizes, **tokens, use_cache=False, attn_implementation=attention)
    return Logits(GPT2LMHeadModel(config)), (torch.randint(2, 30, (3, 7)),)


@member("sdpa", "eager")
def vit(attention: str) -> Member:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(**LAYERS, num_labels=5, image_size=12, patch_size=4, attn_implementation=attention)
    return Logits(ViTForImageClassification(config)), (torch.randn(2, 3, 12, 12),)


@member("sdpa", "eager")
def llama(attention: str) -> Member:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LAYERS | TEXT | {"num_key_value_heads": 2, "tie_word_embeddings": False}
    config = LlamaConfig(**shape, use_cache=False, attn_implementation=attention)
    return Logits(LlamaForCausalLM(config)), (torch.randint(2, 30, (3, 7)),)


@member()
def mixtral() -> Member:
    """Four experts, two a token, whose products are grouped; with its cache, as it comes."""
    from transformers import MixtralConfig, MixtralForCausalLM

    shape = LAYERS | TEXT | {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    return MixtralForCausalLM(MixtralConfig(**shape)), (torch.randint(2, 30, (3, 7)),)
