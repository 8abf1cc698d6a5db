"""Small models of torchvision, timm and transformers, built from configurations, with the inputs of one pass."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

Inputs = torch.Tensor | Mapping[str, torch.Tensor]
"""Images (examples, 3, height, width), or keyword arguments."""

CLASSES = {"num_classes": 5}

Made = tuple[int, dict[str, Any]]
"""The side of a model's images, and what else it is made with."""


def of(size: int = 64, **more: Any) -> Made:
    return size, more


def sized(size: int = 64, **more: Any) -> Made:
    """Of a model that is told the side of its images."""
    return size, {"img_size": size, **more}


ONES, TWOS = (1, 1, 1, 1), (2, 2, 2, 2)
SEVERAL: dict[str, Any] = {"depths": ONES, "embed_dims": (8, 16, 24, 32), "num_heads": (1, 2, 3, 4)}
"""Four stages of one block each."""
SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 4}
"""Two blocks of four heads."""
TORCHVISION_PLAIN = """
    alexnet resnext50_32x4d wide_resnet50_2 mobilenet_v3_small mobilenet_v3_large shufflenet_v2_x0_5
    squeezenet1_0 efficientnet_b0 efficientnet_v2_s regnet_x_400mf regnet_y_400mf mnasnet0_5
"""

SEGMENTING = "lraspp_mobilenet_v3_large fcn_resnet50 deeplabv3_mobilenet_v3_large"
BARE = {"aux_logits": False, "init_weights": False}
TORCHVISION: dict[str, Made] = {
    **dict.fromkeys(TORCHVISION_PLAIN.split(), of()),
    **dict.fromkeys(("vgg11", "vgg11_bn"), of(32)),
    "resnet18": of(width_per_group=64),
    "resnet50": of(width_per_group=16),
    "googlenet": of(**BARE),
    "inception_v3": of(96, **BARE),
    "mobilenet_v2": of(width_mult=0.25),
    **dict.fromkeys(SEGMENTING.split(), of(weights_backbone=None)),
}
"""By the name of the builder."""
TIMM_PLAIN = """
    nfnet_f0 eca_nfnet_l0 hrnet_w18_small dla46_c dpn68 ghostnet_050 edgenext_xx_small mobilevit_xxs
    res2net50_14w_8s resnest14d skresnet18 selecsls42 ese_vovnet19b_slim_dw xception41 repvit_m0_9 fastvit_t8
    rexnet_100 cspresnet50 repvgg_a0 legacy_seresnet18
"""
TIMM_SIZED = "efficientformerv2_s0 test_maxvit test_coatnet botnet26t_256 lambda_resnet26t mvitv2_tiny "
TIMM_SIZED += "efficientvit_m0"
TIMM_SMALL = "deit_tiny_distilled_patch16_224 cait_xxs24_224 beit_base_patch16_224 xcit_nano_12_p16_224"

STAGES = (16, 24, 32, 48)
TIMM: dict[str, Made] = {
    **dict.fromkeys(TIMM_PLAIN.split(), of()),
    **dict.fromkeys(TIMM_SIZED.split(), sized()),
    **dict.fromkeys(TIMM_SMALL.split(), sized(**SMALL)),
    "eva02_tiny_patch14_224": sized(56, **SMALL),
    "pvt_v2_b0": of(**SEVERAL),
    "coat_tiny": sized(
        embed_dims=(16, 24, 24, 24), serial_depths=ONES, parallel_depth=1, num_heads=8, mlp_ratios=(2, 2, 2, 2)
    ),
    "efficientformer_l1": of(224, depths=(1, 1, 1, 2), embed_dims=STAGES),
    "levit_128s": sized(embed_dim=(32, 48, 64), key_dim=8, depth=(1, 1, 1)),
    "crossvit_tiny_240": of(240, embed_dim=(16, 32), num_heads=(2, 2)),
    "twins_svt_small": sized(**SEVERAL),
    "tnt_s_legacy_patch16_224": sized(embed_dim=32, inner_dim=8, depth=2, num_heads_inner=2, num_heads_outer=4),
    "pit_ti_224": sized(base_dims=(8, 8, 8), depth=(1, 1, 1)),
    "visformer_tiny": sized(init_channels=8, embed_dim=48, depth=(1, 1, 1), num_heads=3),
    "convit_tiny": sized(embed_dim=32, depth=3, local_up_to_layer=2, num_heads=4),
    "hiera_tiny_224": sized(embed_dim=16, stages=ONES),
    "davit_tiny": of(**SEVERAL),
    "sequencer2d_s": of(embed_dims=(16, 24, 24, 24), hidden_sizes=(4, 6, 6, 6), layers=ONES),
    "tiny_vit_5m_224": of(embed_dims=(16, 32, 32, 64), depths=ONES, num_heads=(1, 2, 2, 4), window_sizes=TWOS),
    **dict.fromkeys(("mambaout_femto", "inception_next_tiny", "convnextv2_atto"), of(dims=STAGES, depths=ONES)),
    "swinv2_cr_tiny_224": sized(window_size=2, embed_dim=16, depths=(1, 1, 2, 1), num_heads=(1, 2, 2, 4)),
}
"""By the name of the model."""


def declare_operations() -> None:
    """Declare torchvision's compiled operations, which no classifier calls, where they do not fit this torch."""
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None and spec.origin is not None, "pip install torchvision"
    text = Path(spec.origin).with_name("_meta_registrations.py").read_text("utf-8")
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in sorted(set(re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"\)', text))):
        library.define(f"{name}(Tensor given) -> Tensor")
    DECLARED.append(library)


DECLARED: list[torch.library.Library] = []
"""Libraries of operations, which exist as long as they are kept."""


def of_torchvision(name: str) -> tuple[nn.Module, Inputs]:
    """A model by the name of its builder."""
    from torchvision import models

    size, more = TORCHVISION[name]
    return models.get_model(name, weights=None, **CLASSES, **more), torch.randn(2, 3, size, size)


def of_class(package: str, build: Callable[[Any], nn.Module], size: int) -> tuple[nn.Module, Inputs]:
    """A model that is made by its class, which `build` takes from the package's models."""
    return build(importlib.import_module(f"{package}.models")), torch.randn(2, 3, size, size)


def convnext(models: Any) -> nn.Module:
    """Three stages."""
    blocks = [models.convnext.CNBlockConfig(a, b, 1) for a, b in ((16, 24), (24, 32), (32, None))]
    return models.ConvNeXt(blocks, **CLASSES)


def swin(models: Any, version: str = "") -> nn.Module:
    """Two stages, of which the second has shifted windows."""
    shape = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4], "patch_size": [4, 4]}
    parts = models.swin_transformer
    if version:
        shape |= {"block": parts.SwinTransformerBlockV2, "downsample_layer": parts.PatchMergingV2}
    return models.SwinTransformer(**shape, **CLASSES)


def maxvit(models: Any) -> nn.Module:
    """Two blocks of windows and grids."""
    shape = {"stem_channels": 16, "partition_size": 4, "block_channels": [16, 32], "block_layers": [1, 1]}
    return models.MaxVit((64, 64), head_dim=8, stochastic_depth_prob=0.0, **shape, **CLASSES)


def vision_transformer(models: Any) -> nn.Module:
    """Two layers of four heads."""
    shape = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 48}
    return models.VisionTransformer(**shape, **CLASSES)


def mixer(models: Any, kind: str) -> nn.Module:
    """Two blocks that mix patches, then channels; `kind` is one of those of timm's builders."""
    m = models.mlp_mixer
    kinds = {
        "mixer": {},
        "resmlp": {"block_layer": m.ResBlock, "norm_layer": m.Affine, "mlp_ratio": 4},
        "gmlp": {"block_layer": m.SpatialGatingBlock, "mlp_layer": m.GatedMlp, "mlp_ratio": 6},
    }
    return m.MlpMixer(img_size=64, num_blocks=2, embed_dim=32, **kinds[kind], **CLASSES)


def poolformer(models: Any) -> nn.Module:
    """Four stages of one block of pooling each."""
    m = models.metaformer
    kind = {"mlp_act": nn.GELU, "mlp_bias": True, "downsample_norm": None, "norm_layers": m.GroupNorm1}
    scales = {"layer_scale_init_values": 1e-5, "res_scale_init_values": None, "use_mlp_head": False}
    return m.MetaFormer(depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), **kind, **scales, **CLASSES)


def volo(m: Any) -> nn.Module:
    """A stage that looks outwards, and three of attention."""
    return m.volo.VOLO(layers=ONES, img_size=64, embed_dims=(16, 32, 32, 32), num_heads=(2, 4, 4, 4), **CLASSES)


def gcvit(models: Any) -> nn.Module:
    """Four stages of windows."""
    shape = {"img_size": 64, "window_size": (2, 2, 2, 2), "embed_dim": 16, "depths": (1, 1, 2, 1)}
    return models.gcvit.GlobalContextVit(num_heads=(2, 2, 4, 4), **shape, **CLASSES)


CLASSED: dict[str, tuple[str, Callable[[Any], nn.Module], int]] = {
    "torchvision ConvNeXt": ("torchvision", convnext, 64),
    "torchvision SwinTransformer": ("torchvision", swin, 64),
    "torchvision SwinTransformer V2": ("torchvision", partial(swin, version="V2"), 64),
    "torchvision DenseNet": ("torchvision", lambda m: m.DenseNet(8, (2, 3, 4, 3), 16, 2, **CLASSES), 64),
    "torchvision MaxVit": ("torchvision", maxvit, 64),
    "torchvision VisionTransformer": ("torchvision", vision_transformer, 32),
    "timm mixer": ("timm", partial(mixer, kind="mixer"), 64),
    "timm resmlp": ("timm", partial(mixer, kind="resmlp"), 64),
    "timm gmlp": ("timm", partial(mixer, kind="gmlp"), 64),
    "timm poolformer": ("timm", poolformer, 64),
    "timm volo": ("timm", volo, 64),
    "timm nest": ("timm", lambda m: m.nest.Nest(64, 3, 4, 3, (16, 24, 32), (2, 2, 4), (1, 1, 1), **CLASSES), 64),
    "timm gcvit": ("timm", gcvit, 64),
    "timm focalnet": ("timm", lambda m: m.focalnet.FocalNet(embed_dim=16, depths=(1, 1, 1, 1), **CLASSES), 64),
    "timm convmixer": ("timm", lambda models: models.convmixer.ConvMixer(32, 3, **CLASSES), 64),
}
"""Models whose builders have no widths: their package, and how they are made by their class."""


def of_timm(name: str) -> tuple[nn.Module, Inputs]:
    """A model by its name."""
    import timm

    size, more = TIMM[name]
    return timm.create_model(name, **CLASSES, **more), torch.randn(2, 3, size, size)


class Logits(nn.Module):
    """A model that gives its logits alone: the units of what else it gives have to keep their order."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """(examples, classes), or (examples, places, words)."""
        return self.model(**inputs).logits  # type: ignore[no-any-return]


WORDY = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "type_vocab_size": 0}
SIZES = {"layers": 1, "attention_heads": 4, "ffn_dim": 40}
HEARS = {f"{part}_{what}": size for part in ("encoder", "decoder") for what, size in SIZES.items()}
HEARS |= {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 24, "d_model": 32}
HEARS |= {"suppress_tokens": None, "begin_suppress_tokens": None, "decoder_start_token_id": 1}
LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
TEXT: dict[str, Any] = {"vocab_size": 30, "max_position_embeddings": 24, "num_labels": 5}
TEXT |= {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
CLASSIFIES, GENERATES = "ForSequenceClassification", "ForConditionalGeneration"
WORDS = "input_ids"


def read(head: str, shape: Mapping[str, Any] = TEXT, **more: Any) -> tuple[str, dict[str, Any]]:
    """A model of words: its head, and its configuration."""
    return head, {**TEXT, **shape, **more}


TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": read(CLASSIFIES, LAYERS),
    "Roberta": read(CLASSIFIES, LAYERS),
    "DistilBert": read(CLASSIFIES, dim=32, n_layers=2, n_heads=4, hidden_dim=40),
    "Electra": read(CLASSIFIES, LAYERS, embedding_size=16),
    "DebertaV2": read(CLASSIFIES, LAYERS, **WORDY),
    "Longformer": read(CLASSIFIES, LAYERS, attention_window=[4, 4]),
    "ModernBert": read(CLASSIFIES, LAYERS, local_attention=4, cls_token_id=1, sep_token_id=2),
    "GPT2": read("LMHeadModel", n_positions=24, n_embd=32, n_layer=2, n_head=4),
    "Llama": read("ForCausalLM", LAYERS, num_key_value_heads=2, tie_word_embeddings=False),
    "Qwen2": read("ForCausalLM", LAYERS, num_key_value_heads=2),
    "Mixtral": read("ForCausalLM", LAYERS, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
    "Mamba": read("ForCausalLM", hidden_size=32, num_hidden_layers=2, state_size=4, time_step_rank=4),
    "T5": read(GENERATES, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, decoder_start_token_id=0),
    "Whisper": read(GENERATES, HEARS),
    "ViT": ("ForImageClassification", LAYERS | {"image_size": 16, "patch_size": 4, "num_labels": 5}),
}
"""By the name of the model."""


def of_transformers(name: str) -> tuple[nn.Module, Inputs]:
    """A model by its name, with its configuration of the same one."""
    import transformers

    head, shape = TRANSFORMERS[name]
    config = getattr(transformers, f"{name}Config")(**shape)
    model: nn.Module = getattr(transformers, f"{name}{head}")(config)
    words = torch.randint(2, 30, (3, 8))
    inputs: dict[str, torch.Tensor] = {WORDS: words}
    if name == "ViT":
        inputs = {"pixel_values": torch.randn(2, 3, 16, 16)}
    elif name == "Whisper":
        inputs = {"input_features": torch.randn(3, 8, 32), "decoder_input_ids": words}
    elif name == "T5":
        inputs["decoder_input_ids"] = words[:, :5]
    return Logits(model), inputs


MODELS: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    **{f"torchvision {name}": lambda name=name: of_torchvision(name) for name in TORCHVISION},
    **{name: lambda args=args: of_class(*args) for name, args in CLASSED.items()},
    **{f"timm {name}": lambda name=name: of_timm(name) for name in TIMM},
    **{f"transformers {name}": lambda name=name: of_transformers(name) for name in TRANSFORMERS},
}
"""What builds each."""
