"""Small but faithful networks of many architectures, each with the inputs of one forward pass."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Member = tuple[nn.Module, tuple[Tensor, ...]]

ZOO: dict[str, Callable[[], Member]] = {}


def member(build: Callable[[], Member]) -> Callable[[], Member]:
    """Enter a builder into the zoo under its name, seeded by that name and in eval mode."""

    @functools.wraps(build)
    def seeded() -> Member:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(build.__name__.encode()))
            model, inputs = build()
            _leave_initial_values(model)
        return model.eval(), inputs

    ZOO[build.__name__] = seeded
    return seeded


def _leave_initial_values(model: nn.Module) -> None:
    # Scales of one and shifts of zero would hide a unit that was moved without them.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(std=0.2)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.branch = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def conv_norm(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


# Plain networks


@member
def mlp() -> Member:
    layers = [nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 5)]
    return nn.Sequential(*layers), (torch.randn(3, 10),)


@member
def dropout() -> Member:
    layers = [nn.Conv2d(1, 8, 4), nn.ReLU(), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(8 * 25, 12), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(12, 5)), (torch.randn(3, 1, 8, 8),)


@member
def tied_autoencoder() -> Member:
    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 14) / 4)
            self.hidden_bias = nn.Parameter(torch.zeros(8))
            self.output_bias = nn.Parameter(torch.zeros(14))

        def forward(self, x: Tensor) -> Tensor:
            code = torch.sigmoid(functional.linear(x, self.weight, self.hidden_bias))
            return functional.linear(code, self.weight.t(), self.output_bias)

    return Autoencoder(), (torch.randn(3, 14),)


@member
def cosine_classifier() -> Member:
    class Cosine(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 12))
            self.prototypes = nn.Parameter(torch.randn(5, 12))
            self.scale = nn.Parameter(torch.tensor(8.0))

        def forward(self, x: Tensor) -> Tensor:
            features = functional.normalize(self.body(x), dim=-1)
            return self.scale * functional.linear(features, functional.normalize(self.prototypes, dim=-1))

    return Cosine(), (torch.randn(3, 10),)


@member
def zero_head() -> Member:
    model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 12), nn.GELU(), nn.Linear(12, 5, bias=False))
    nn.init.zeros_(model[-1].weight)
    return model, (torch.randn(3, 10),)


@member
def gated_linear() -> Member:
    model = nn.Sequential(nn.Linear(10, 32), nn.GLU(), nn.Linear(16, 24), nn.GLU(), nn.Linear(12, 5))
    return model, (torch.randn(3, 10),)


@member
def input_statistics() -> Member:
    class Standardised(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.randn(10))
            self.register_buffer("deviation", torch.rand(10) + 0.5)
            self.body = nn.Sequential(nn.Linear(10, 16), nn.SiLU(), nn.Linear(16, 5))

        def forward(self, x: Tensor) -> Tensor:
            return self.body((x - self.mean) / self.deviation)

    return Standardised(), (torch.randn(3, 10),)


@member
def siamese() -> Member:
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 12))
            self.head = nn.Linear(24, 1)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            one, other = self.encoder(left), self.encoder(right)
            return self.head(torch.cat([(one - other).abs(), one * other], dim=1))

    return Siamese(), (torch.randn(3, 10), torch.randn(3, 10))


class TwoHeads(nn.Module):
    def __init__(self, named: bool):
        super().__init__()
        self.named = named
        self.body = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
        self.classes = nn.Linear(16, 5)
        self.value = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor] | dict[str, Tensor]:
        hidden = self.body(x)
        classes, value = self.classes(hidden), self.value(hidden)
        return {"classes": classes, "value": value.squeeze(-1)} if self.named else (classes, value)


@member
def dict_output() -> Member:
    return TwoHeads(named=True), (torch.randn(3, 10),)


@member
def tuple_output() -> Member:
    return TwoHeads(named=False), (torch.randn(3, 10),)


# Operations that fix the order of the units they see


class BetweenLinears(nn.Module):
    def __init__(self, operation: Callable[[Tensor], Tensor], outgoing: int = 16):
        super().__init__()
        self.operation = operation
        self.free = nn.Linear(10, 12)
        self.fixed = nn.Linear(12, 16)
        self.head = nn.Linear(outgoing, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.operation(self.fixed(torch.relu(self.free(x)))))


@member
def fourier_units() -> Member:
    return BetweenLinears(lambda x: torch.fft.rfft(x, dim=-1).abs(), 9), (torch.randn(3, 10),)


@member
def sorted_units() -> Member:
    return BetweenLinears(lambda x: torch.sort(x, dim=-1).values), (torch.randn(3, 10),)


@member
def cumulative_units() -> Member:
    return BetweenLinears(lambda x: torch.cumsum(x, dim=-1)), (torch.randn(3, 10),)


@member
def rolled_units() -> Member:
    return BetweenLinears(lambda x: x + torch.roll(x, 1, dims=-1)), (torch.randn(3, 10),)


# Convolutions


@member
def cnn() -> Member:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    head = [nn.Flatten(), nn.Linear(12 * 16, 20), nn.ReLU(), nn.Linear(20, 5)]
    return nn.Sequential(*block(3, 8), *block(8, 12), *head), (torch.randn(2, 3, 16, 16),)


@member
def adaptive_pool_flatten() -> Member:
    convolutions = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d((4, 3)), nn.Flatten(), nn.Linear(12 * 12, 20), nn.ReLU(), nn.Linear(20, 5)]
    return nn.Sequential(*convolutions, *head), (torch.randn(2, 3, 20, 20),)


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, padded: bool = False):
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3, stride)
        self.second = conv_norm(outputs, outputs)
        changes = stride != 1 or inputs != outputs
        self.downsample = conv_norm(inputs, outputs, 1, stride) if changes and not padded else None
        self.extra = (outputs - inputs) // 2 if changes and padded else 0

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        if self.extra:
            shortcut = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra, self.extra))
        return torch.relu(self.second(torch.relu(self.first(x))) + shortcut)


@member
def resnet18() -> Member:
    stages = []
    for inputs, outputs, stride in [(8, 8, 1), (8, 16, 2), (16, 32, 2), (32, 64, 2)]:
        stages += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
    stem = [*conv_norm(3, 8, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5)]
    return nn.Sequential(*stem, *stages, *head), (torch.randn(2, 3, 96, 96),)


@member
def resnet_padded_shortcut() -> Member:
    """The shortcut of the CIFAR ResNets, which adds channels of zeros instead of a convolution."""
    blocks = [BasicBlock(8, 8, 1), BasicBlock(8, 16, 2, padded=True), BasicBlock(16, 16, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)]
    return nn.Sequential(*conv_norm(3, 8), nn.ReLU(), *blocks, *head), (torch.randn(2, 3, 12, 12),)


@member
def mobilenet() -> Member:
    def inverted(inputs: int, outputs: int, stride: int, expand: int) -> nn.Module:
        hidden = inputs * expand
        layers = [*conv_norm(inputs, hidden, 1), nn.ReLU6(inplace=True)] if expand > 1 else []
        layers += [*conv_norm(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6(inplace=True)]
        layers += conv_norm(hidden, outputs, 1)
        return Residual(*layers) if stride == 1 and inputs == outputs else nn.Sequential(*layers)

    blocks = [inverted(8, 6, 1, 1), inverted(6, 12, 2, 6), inverted(12, 12, 1, 6), inverted(12, 16, 2, 6)]
    stem = [*conv_norm(3, 8, 3, 2), nn.ReLU6(inplace=True)]
    head = [
        *conv_norm(16, 24, 1),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(24, 5),
    ]
    return nn.Sequential(*stem, *blocks, *head), (torch.randn(2, 3, 32, 32),)


@member
def densenet() -> Member:
    class DenseLayer(nn.Module):
        def __init__(self, inputs: int, growth: int):
            super().__init__()
            bottleneck = [nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1, bias=False)]
            convolution = [
                nn.BatchNorm2d(4 * growth),
                nn.ReLU(),
                nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False),
            ]
            self.layers = nn.Sequential(*bottleneck, *convolution)

        def forward(self, features: list[Tensor]) -> Tensor:
            return self.layers(torch.cat(features, dim=1))

    class DenseBlock(nn.Module):
        def __init__(self, inputs: int, growth: int, layers: int):
            super().__init__()
            self.layers = nn.ModuleList(DenseLayer(inputs + index * growth, growth) for index in range(layers))

        def forward(self, x: Tensor) -> Tensor:
            features = [x]
            for layer in self.layers:
                features.append(layer(features))
            return torch.cat(features, dim=1)

    transition = [nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, 10, 1, bias=False), nn.AvgPool2d(2)]
    head = [nn.BatchNorm2d(22), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(22, 5)]
    blocks = [DenseBlock(8, 4, 3), *transition, DenseBlock(10, 4, 3)]
    return nn.Sequential(*conv_norm(3, 8), nn.ReLU(), *blocks, *head), (torch.randn(2, 3, 12, 12),)


@member
def unet() -> Member:
    def double(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(*conv_norm(inputs, outputs), nn.ReLU(), *conv_norm(outputs, outputs), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList([double(3, 8), double(8, 12), double(12, 20)])
            self.rise = nn.ModuleList([nn.ConvTranspose2d(20, 12, 2, 2), nn.ConvTranspose2d(12, 8, 2, 2)])
            self.up = nn.ModuleList([double(24, 12), double(16, 8)])
            self.head = nn.Conv2d(8, 5, 1)

        def forward(self, x: Tensor) -> Tensor:
            fine = self.down[0](x)
            middle = self.down[1](functional.max_pool2d(fine, 2))
            x = self.down[2](functional.max_pool2d(middle, 2))
            x = self.up[0](torch.cat([middle, self.rise[0](x)], dim=1))
            return self.head(self.up[1](torch.cat([fine, self.rise[1](x)], dim=1)))

    return UNet(), (torch.randn(2, 3, 16, 16),)


@member
def resnext() -> Member:
    """Grouped convolutions and group norms whose groups cut the channels differently."""

    def bottleneck(width: int, hidden: int) -> nn.Module:
        reduce = [nn.Conv2d(width, hidden, 1, bias=False), nn.GroupNorm(4, hidden), nn.ReLU()]
        grouped = [
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=4, bias=False),
            nn.GroupNorm(8, hidden),
            nn.ReLU(),
        ]
        return Residual(*reduce, *grouped, nn.Conv2d(hidden, width, 1, bias=False), nn.GroupNorm(4, width))

    stem = [nn.Conv2d(3, 24, 3, padding=1, bias=False), nn.GroupNorm(4, 24), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5)]
    return nn.Sequential(*stem, bottleneck(24, 16), nn.ReLU(), bottleneck(24, 16), *head), (
        torch.randn(2, 3, 10, 10),
    )


class ChannelShuffle(nn.Module):
    def __init__(self, groups: int):
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        x = x.view(batch, self.groups, channels // self.groups, height, width)
        return x.transpose(1, 2).contiguous().view(batch, channels, height, width)


@member
def shufflenet() -> Member:
    def unit() -> nn.Module:
        shuffled = [*conv_norm(20, 12, 1, groups=4), nn.ReLU(), ChannelShuffle(4)]
        return Residual(*shuffled, *conv_norm(12, 12, groups=12), *conv_norm(12, 20, 1, groups=4))

    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 5)]
    layers = [*conv_norm(3, 20), nn.ReLU(), unit(), nn.ReLU(), unit(), nn.ReLU(), *head]
    return nn.Sequential(*layers), (torch.randn(2, 3, 10, 10),)


@member
def shufflenet_split() -> Member:
    """The second ShuffleNet: half of the channels pass, the other half is transformed."""

    class Unit(nn.Module):
        def __init__(self, channels: int):
            super().__init__()
            point, depth = conv_norm(channels, channels, 1), conv_norm(channels, channels, groups=channels)
            self.branch = nn.Sequential(*point, nn.ReLU(), *depth, *conv_norm(channels, channels, 1), nn.ReLU())
            self.shuffle = ChannelShuffle(2)

        def forward(self, x: Tensor) -> Tensor:
            passed, changed = x.chunk(2, dim=1)
            return self.shuffle(torch.cat([passed, self.branch(changed)], dim=1))

    head = [*conv_norm(16, 24, 1), nn.ReLU()]
    body = nn.Sequential(*conv_norm(4, 16), nn.ReLU(), Unit(8), Unit(8), *head)

    class ShuffleNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = body
            self.head = nn.Linear(24, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).mean([2, 3]))

    return ShuffleNet(), (torch.randn(3, 4, 10, 10),)


@member
def squeeze_excitation() -> Member:
    class Squeeze(nn.Module):
        def __init__(self, channels: int, hidden: int):
            super().__init__()
            self.reduce = nn.Conv2d(channels, hidden, 1)
            self.expand = nn.Conv2d(hidden, channels, 1)

        def forward(self, x: Tensor) -> Tensor:
            scale = torch.relu(self.reduce(functional.adaptive_avg_pool2d(x, 1)))
            return x * torch.sigmoid(self.expand(scale))

    block = [*conv_norm(12, 16), nn.SiLU(), Squeeze(16, 4), *conv_norm(16, 12)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5)]
    return nn.Sequential(*conv_norm(3, 12), nn.SiLU(), Residual(*block), *head), (torch.randn(2, 3, 10, 10),)


@member
def instance_norm() -> Member:
    layers = [nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), nn.Conv2d(8, 12, 3)]
    tail = [nn.InstanceNorm2d(12, affine=True, track_running_stats=True), nn.LeakyReLU(0.2), nn.Conv2d(12, 5, 1)]
    return nn.Sequential(*layers, *tail), (torch.randn(2, 3, 10, 10),)


@member
def prelu() -> Member:
    layers = [
        nn.Conv2d(3, 8, 3),
        nn.PReLU(8),
        nn.Conv2d(8, 12, 3),
        nn.PReLU(),
        nn.Flatten(),
        nn.Linear(12 * 16, 10),
    ]
    return nn.Sequential(*layers, nn.PReLU(10), nn.Linear(10, 5)), (torch.randn(2, 3, 8, 8),)


@member
def convnext() -> Member:
    class Block(nn.Module):
        def __init__(self, channels: int):
            super().__init__()
            self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
            self.norm = nn.LayerNorm(channels, eps=1e-6)
            self.expand = nn.Linear(channels, 4 * channels)
            self.reduce = nn.Linear(4 * channels, channels)
            self.scale = nn.Parameter(torch.full((channels,), 0.5))

        def forward(self, x: Tensor) -> Tensor:
            inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
            inner = self.scale * self.reduce(functional.gelu(self.expand(inner)))
            return x + inner.permute(0, 3, 1, 2)

    class ConvNeXt(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 8, 4, 4), Block(8), nn.Conv2d(8, 12, 2, 2), Block(12))
            self.norm = nn.LayerNorm(12)
            self.head = nn.Linear(12, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.body(x).mean([-2, -1])))

    return ConvNeXt(), (torch.randn(2, 3, 32, 32),)


@member
def gated_convolution() -> Member:
    """Causal convolutions over time gated along the channels, as in WaveNet."""

    class Gated(nn.Module):
        def __init__(self, channels: int, dilation: int):
            super().__init__()
            self.reach = 2 * dilation
            self.convolution = nn.Conv1d(channels, 2 * channels, 3, dilation=dilation)
            self.mix = nn.Conv1d(channels, channels, 1)

        def forward(self, x: Tensor) -> Tensor:
            padded = functional.pad(x, (self.reach, 0))
            return x + self.mix(functional.glu(self.convolution(padded), dim=1))

    layers = [nn.Conv1d(6, 12, 1), Gated(12, 1), Gated(12, 2), nn.Conv1d(12, 5, 1)]
    return nn.Sequential(*layers), (torch.randn(3, 6, 11),)


@member
def stack_roll_pad() -> Member:
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs = nn.Linear(6, 12)
            self.near = nn.Linear(12, 12)
            self.far = nn.Linear(12, 12)
            self.early = nn.Linear(12, 12)
            self.weights = nn.Parameter(torch.randn(4, 1))
            self.head = nn.Linear(12, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.inputs(x))
            far = self.far(torch.roll(x, 1, dims=1))
            early = self.early(functional.pad(x, (0, 0, 1, 0))[:, :-1])
            paths = torch.stack([x, self.near(x), far, early], dim=2)
            return self.head((paths * self.weights).sum(dim=2).relu())

    return Mixed(), (torch.randn(3, 7, 6),)


# Recurrent networks


class LastStep(nn.Module):
    def __init__(self, recurrent: nn.RNNBase, head: nn.Linear):
        super().__init__()
        self.recurrent = recurrent
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(x)
        return self.head(states[:, -1])


@member
def lstm() -> Member:
    return LastStep(nn.LSTM(6, 10, 2, batch_first=True), nn.Linear(10, 5)), (torch.randn(3, 7, 6),)


@member
def lstm_final_state() -> Member:
    class FinalState(LastStep):
        def forward(self, x: Tensor) -> Tensor:
            _, (hidden, _) = self.recurrent(x)
            return self.head(hidden[-1])

    return FinalState(nn.LSTM(6, 10, 2, batch_first=True), nn.Linear(10, 5)), (torch.randn(3, 7, 6),)


@member
def gru_both_ways() -> Member:
    recurrent = nn.GRU(6, 10, 2, batch_first=True, bidirectional=True)
    return LastStep(recurrent, nn.Linear(20, 5)), (torch.randn(3, 7, 6),)


@member
def plain_rnn() -> Member:
    return LastStep(nn.RNN(6, 10, batch_first=True), nn.Linear(10, 5)), (torch.randn(3, 7, 6),)


@member
def text_classifier() -> Member:
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 16)
            self.hidden = nn.Linear(16, 12)
            self.head = nn.Linear(12, 5)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(torch.relu(self.hidden(self.embedding(tokens).mean(dim=1))))

    return Text(), (torch.randint(30, (3, 7)),)


# Transformers


def encoder(norm_first: bool, activation: str) -> Member:
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs = nn.Linear(6, 20)
            layer = nn.TransformerEncoderLayer(
                20, 4, 28, activation=activation, batch_first=True, norm_first=norm_first
            )
            norm = nn.LayerNorm(20) if norm_first else None
            self.layers = nn.TransformerEncoder(layer, 2, norm, enable_nested_tensor=False)
            # The encoder deep-copies one layer; equal layers would be a special case.
            for parameter in self.layers.parameters():
                if parameter.ndim > 1:
                    nn.init.xavier_uniform_(parameter)
            self.head = nn.Linear(20, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layers(self.inputs(x)).mean(dim=1))

    return Encoder(), (torch.randn(2, 7, 6),)


@member
def encoder_post_norm() -> Member:
    return encoder(norm_first=False, activation="relu")


@member
def encoder_pre_norm() -> Member:
    return encoder(norm_first=True, activation="gelu")


class Attention(nn.Module):
    """Self-attention with the queries, keys and values in one linear layer, told apart in the way named."""

    def __init__(self, width: int, heads: int, way: str, causal: bool = True):
        super().__init__()
        self.heads, self.way, self.causal = heads, way, causal
        self.packed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, time, width = x.shape
        packed = self.packed(x)
        if self.way == "unbind":
            return packed.reshape(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        pieces = packed.chunk(3, dim=-1) if self.way == "chunk" else packed.split(width, dim=2)
        return tuple(piece.view(batch, time, self.heads, -1).transpose(1, 2) for piece in pieces)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.parts(x)
        if self.way == "unbind":
            scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
            if self.causal:
                future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(future, float("-inf"))
            mixed = scores.softmax(dim=-1) @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


def transformer_block(width: int, heads: int, way: str, causal: bool = True) -> nn.Module:
    attention = Residual(nn.LayerNorm(width), Attention(width, heads, way, causal))
    hidden = [nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width), nn.Dropout(0.1)]
    return nn.Sequential(attention, Residual(nn.LayerNorm(width), *hidden))


class Gpt(nn.Module):
    def __init__(self, way: str, heads: int = 4, width: int = 24):
        super().__init__()
        self.tokens = nn.Embedding(30, width)
        self.positions = nn.Embedding(9, width)
        self.blocks = nn.Sequential(*(transformer_block(width, heads, way) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 30, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(places))))


@member
def gpt() -> Member:
    return Gpt("split"), (torch.randint(30, (2, 7)),)


@member
def gpt_unbind() -> Member:
    return Gpt("unbind"), (torch.randint(30, (2, 7)),)


@member
def gpt_chunk() -> Member:
    return Gpt("chunk"), (torch.randint(30, (2, 7)),)


@member
def vit() -> Member:
    class Vit(nn.Module):
        def __init__(self, width: int = 24):
            super().__init__()
            self.patches = nn.Conv2d(3, width, 4, 4)
            self.token = nn.Parameter(torch.randn(1, 1, width) / 4)
            self.positions = nn.Parameter(torch.randn(1, 10, width) / 4)
            self.blocks = nn.Sequential(*(transformer_block(width, 4, "unbind", causal=False) for _ in range(2)))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, 5)

        def forward(self, images: Tensor) -> Tensor:
            x = self.patches(images).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
            return self.head(self.norm(self.blocks(x))[:, 0])

    return Vit(), (torch.randn(2, 3, 12, 12),)


@member
def mlp_mixer() -> Member:
    class Mixer(nn.Module):
        def __init__(self, places: int, width: int):
            super().__init__()
            self.place_norm, self.channel_norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.across = nn.Sequential(nn.Linear(places, 12), nn.GELU(), nn.Linear(12, places))
            self.within = nn.Sequential(nn.Linear(width, 28), nn.GELU(), nn.Linear(28, width))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.across(self.place_norm(x).transpose(1, 2)).transpose(1, 2)
            return x + self.within(self.channel_norm(x))

    class MlpMixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 16, 4, 4)
            self.blocks = nn.Sequential(Mixer(9, 16), Mixer(9, 16), nn.LayerNorm(16))
            self.head = nn.Linear(16, 5)

        def forward(self, images: Tensor) -> Tensor:
            return self.head(self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(dim=1))

    return MlpMixer(), (torch.randn(2, 3, 12, 12),)


@member
def einsum_attention() -> Member:
    class EinsumAttention(nn.Module):
        def __init__(self, width: int, heads: int, depth: int):
            super().__init__()
            self.query = nn.Parameter(torch.randn(heads, width, depth) / math.sqrt(width))
            self.key = nn.Parameter(torch.randn(heads, width, depth) / math.sqrt(width))
            self.value = nn.Parameter(torch.randn(heads, width, depth) / math.sqrt(width))
            self.out = nn.Parameter(torch.randn(heads, depth, width) / math.sqrt(width))

        def forward(self, x: Tensor) -> Tensor:
            query = torch.einsum("btm,hmd->bhtd", x, self.query)
            key = torch.einsum("btm,hmd->bhtd", x, self.key)
            value = torch.einsum("btm,hmd->bhtd", x, self.value)
            weights = torch.einsum("bhqd,bhkd->bhqk", query, key).div(math.sqrt(query.shape[-1])).softmax(dim=-1)
            return torch.einsum("bhqk,bhkd,hdm->bqm", weights, value, self.out)

    blocks = [Residual(nn.LayerNorm(20), EinsumAttention(20, 4, 5)) for _ in range(2)]
    return nn.Sequential(nn.Linear(6, 20), *blocks, nn.Linear(20, 8)), (torch.randn(3, 7, 6),)


class RmsNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class GroupedQueries(nn.Module):
    def __init__(self, width: int, heads: int, shared: int, repeats: bool):
        super().__init__()
        self.heads, self.shared, self.depth, self.repeats = heads, shared, width // heads, repeats
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, shared * self.depth, bias=False)
        self.value = nn.Linear(width, shared * self.depth, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def spread(self, x: Tensor) -> Tensor:
        times = self.heads // self.shared
        if self.repeats:
            return x.repeat_interleave(times, dim=1)
        batch, shared, time, depth = x.shape
        return x[:, :, None].expand(batch, shared, times, time, depth).reshape(batch, shared * times, time, depth)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        def split(part: nn.Linear) -> Tensor:
            return part(x).view(x.shape[0], x.shape[1], -1, self.depth).transpose(1, 2)

        def rotated(part: Tensor) -> Tensor:
            low, high = part[..., : self.depth // 2], part[..., self.depth // 2 :]
            return part * cosine + torch.cat([-high, low], dim=-1) * sine

        key, value = self.spread(rotated(split(self.key))), self.spread(split(self.value))
        mixed = functional.scaled_dot_product_attention(rotated(split(self.query)), key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Decoder(nn.Module):
    def __init__(self, width: int, heads: int, shared: int, repeats: bool):
        super().__init__()
        self.attention_norm, self.hidden_norm = RmsNorm(width), RmsNorm(width)
        self.attention = GroupedQueries(width, heads, shared, repeats)
        self.gate = nn.Linear(width, 40, bias=False)
        self.up = nn.Linear(width, 40, bias=False)
        self.down = nn.Linear(40, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        hidden = self.hidden_norm(x)
        return x + self.down(functional.silu(self.gate(hidden)) * self.up(hidden))


class Llama(nn.Module):
    def __init__(self, repeats: bool, width: int = 32, heads: int = 4):
        super().__init__()
        self.tokens = nn.Embedding(30, width)
        self.blocks = nn.ModuleList(Decoder(width, heads, 2, repeats) for _ in range(2))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, 30, bias=False)
        depth = width // heads
        speeds = 10000.0 ** (-torch.arange(0, depth, 2) / depth)
        angles = torch.outer(torch.arange(9), speeds).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cosine[: tokens.shape[1]], self.sine[: tokens.shape[1]])
        return self.head(self.norm(x))


@member
def llama_repeat() -> Member:
    return Llama(repeats=True), (torch.randint(30, (3, 7)),)


@member
def llama_expand() -> Member:
    return Llama(repeats=False), (torch.randint(30, (3, 7)),)
