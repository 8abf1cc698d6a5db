"""Folders of tiny networks of the transformers package, made from configurations without anything to download."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import roundweave as rw
from roundweave.flows.merging.result import MergeResult

transformers = pytest.importorskip("transformers")

LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
TOKENS = {"vocab_size": 30, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
ENCODING = {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4}
SOUND = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40}
SOUND |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 8}
SOUND |= {"max_source_positions": 10, "max_target_positions": 20, "decoder_start_token_id": 1}

TRANSLATING = {**SOUND, "max_position_embeddings": 12, "decoder_start_token_id": 0, "forced_eos_token_id": 2}
CAUSAL = {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 40, "max_position_embeddings": 12}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", LAYERS | TOKENS),
    "gpt2": ("GPT2LMHeadModel", TOKENS | {"n_embd": 32, "n_layer": 2, "n_head": 4}),
    "llama": ("LlamaForCausalLM", LAYERS | TOKENS | {"num_key_value_heads": 2}),
    "qwen2": ("Qwen2ForCausalLM", LAYERS | TOKENS | {"num_key_value_heads": 2}),
    "vit": ("ViTForImageClassification", LAYERS | {"image_size": 8, "patch_size": 4}),
    "t5": ("T5ForConditionalGeneration", TOKENS | ENCODING),
    "marian": ("MarianMTModel", TOKENS | TRANSLATING),
    "xglm": ("XGLMForCausalLM", TOKENS | CAUSAL),
    "whisper": ("WhisperForConditionalGeneration", TOKENS | SOUND),
}
"""The architecture of each kind, and what its configuration says."""


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def made(kind: str, seed: int = 0, **more: Any) -> torch.nn.Module:
    """A network of a kind with weights of which none is as it is initialised."""
    name, values = KINDS[kind]
    architecture = getattr(transformers, name)
    torch.manual_seed(seed)
    network = architecture(architecture.config_class(**values | more)).eval()
    with torch.no_grad():
        for parameter in filter(lambda each: each.requires_grad, network.parameters()):
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


Folder = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Write a network, or one of a kind, to a folder and return the folder."""

    def write(name: str, network: torch.nn.Module | str = "bert", seed: int = 0, **more: Any) -> str:
        network = made(network, seed, **more) if isinstance(network, str) else network
        network.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return write


def merge(*networks: str, **fields: Any) -> MergeResult:
    return rw.merge(rw.MergeConfig(networks=networks, executor="inline", **fields))
