"""Networks of convolutions over images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.tasks.matching.zoo.registry import Member, Residual, conv_norm, member


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
