"""The network that is merged, as its folder's configuration describes it."""

from __future__ import annotations

import os

from torch import nn
from transformers import AutoConfig, LlamaForCausalLM


def model() -> nn.Module:
    return LlamaForCausalLM(AutoConfig.from_pretrained(os.environ["LLAMA"]))
