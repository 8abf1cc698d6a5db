"""Networks of convolutions over images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.tasks.matching.zoo.registry import Member, Residual, conv_norm, member


@member
def cnn() -> Member:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.Dropout2d(0.3)]

    head = [nn.AdaptiveAvgPool2d((4, 3)), nn.Flatten(), nn.Linear(12 * 12, 20), nn.ReLU(), nn.Dropout(0.5)]
    layers = [*block(3, 8), nn.MaxPool2d(2), *block(8, 12), *head, nn.Linear(20, 5)]
    return nn.Sequential(*layers), (torch.randn(2, 3, 16, 16),)


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
def resnet() -> Member:
    """One shortcut is a convolution, and one that of the CIFAR ResNets, which adds channels of zeros."""
    stages = [BasicBlock(8, 8, 1), BasicBlock(8, 12, 2), BasicBlock(12, 16, 2, padded=True), BasicBlock(16, 16, 1)]
    stem = [*conv_norm(3, 8, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)]
    return nn.Sequential(*stem, *stages, *head), (torch.randn(2, 3, 32, 32),)


class Dense(Residual):
    """What is computed of the channels stands beside them."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.branch(x)], dim=1)


@member
def densenet() -> Member:
    def layer(inputs: int) -> nn.Module:
        bottleneck = [nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 16, 1, bias=False)]
        return Dense(*bottleneck, nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 3, 1, 1, bias=False))

    transition = [nn.BatchNorm2d(20), nn.ReLU(), nn.Conv2d(20, 10, 1, bias=False), nn.AvgPool2d(2)]
    head = [nn.BatchNorm2d(18), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(18, 5)]
    blocks = [layer(8), layer(12), layer(16), *transition, layer(10), layer(14)]
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

    def convolution(inputs: int, outputs: int, kernel: int, norms: int, groups: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, groups=groups, bias=False)
        return [layer, nn.GroupNorm(norms, outputs)]

    def bottleneck() -> nn.Module:
        inner = [*convolution(24, 16, 1, 4), nn.ReLU(), *convolution(16, 16, 3, 8, groups=4), nn.ReLU()]
        return Residual(*inner, *convolution(16, 24, 1, 4))

    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5)]
    layers = [*convolution(3, 24, 3, 4), nn.ReLU(), bottleneck(), nn.ReLU(), bottleneck(), *head]
    return nn.Sequential(*layers), (torch.randn(2, 3, 10, 10),)


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
def instance_norm() -> Member:
    layers = [nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.PReLU(8), nn.Conv2d(8, 12, 3)]
    layers += [nn.InstanceNorm2d(12, affine=True, track_running_stats=True), nn.PReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(12 * 16, 10), nn.PReLU(10), nn.Linear(10, 5)), (
        torch.randn(2, 3, 8, 8),
    )
