"""The distribution of labels over partitions, as a table and as a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from roundweave.storage.errors import DataError
from roundweave.storage.rounds.splits import partition_names
from roundweave.storage.runs.figures import legend_aside, name_rows, plot_axes
from roundweave.tasks.data.description import check_numbered
from roundweave.tasks.data.examples import are_scalar_labels, single
from roundweave.tasks.data.partitions import Partitions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED = 20
"""The most labels that are named in a legend; more labels get a colour scale."""

SCALE = "turbo"


def labels(partitions: Partitions) -> np.ndarray | None:
    """Return the label of each training example, (examples,), as its name if it has one.

    Returns None if targets are no labels, or are unknown without reading all examples.
    """
    targets, names = partitions.known_targets(), partitions.describe(0).class_names
    if targets is None or not are_scalar_labels(targets):
        return None
    return np.array(names)[targets.numpy()] if names else targets.numpy()


def label_counts(partitions: Partitions, number: int = 0) -> pd.DataFrame:
    """Count each partition's training examples by label.

    Args:
        partitions: The source and its split.
        number: The number of the split, from 0. Numbers above 0 exist with `resplit_every`.

    Returns:
        One row for each partition, by its name if it has one. One column for each label, by its name, and the
        column ``size``. If a label is called size, columns have the labels' numbers. If targets are no single
        labels, or unknown without reading all examples, ``size`` is the only column.

    Raises:
        DataError: The examples cannot be loaded or split.

    Example:
        >>> counts = rw.label_counts(rw.Partitions(rw.find_source("digits"), rw.Split(4, "shards:2")))
    """
    sizes = partitions.sizes(number)
    targets = [] if partitions.known_targets() is None else train_targets(partitions, number)
    counts = pd.DataFrame(index=pd.Index(partition_names(partitions.read_names(), len(sizes)), name="partition"))
    if targets and all(map(are_scalar_labels, targets)):
        classes = 1 + max(int(part.max()) for part in targets)
        check_numbered(classes, len(torch.cat(targets).unique()))
        counts = pd.DataFrame([part.bincount(minlength=classes).tolist() for part in targets], counts.index)
        names = partitions.describe(0).class_names
        counts = counts.rename(columns={} if "size" in names else dict(enumerate(names)))
    counts.columns.name = "label"
    return counts.assign(size=sizes)


def train_targets(partitions: Partitions, number: int) -> list[torch.Tensor]:
    """Return the training targets ``(examples, *)`` of each partition under a split.

    Raises `DataError` if unknown.
    """
    every = range(partitions.split.partitions)
    if partitions.source.partitioned:
        loaded = (partitions.load(number, partition) for partition in every)
        return [single(part.first(len(part)).targets, "a table of labels") for part in loaded]
    if (targets := partitions.known_targets()) is None:
        source = partitions.source
        raise DataError(f"{source} shows its labels only when it is read; give the data set all labels as targets")
    return [targets[torch.from_numpy(partitions.train_rows(partition, number)[0])] for partition in every]


def draw_counts(counts: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw the counts of `label_counts`: a bar for each partition, with a piece for each label.

    Args:
        counts: What `label_counts` returned.
        ax: The axes to draw on; by default new ones.

    Returns:
        The axes.

    Example:
        >>> counts = rw.label_counts(rw.Partitions(rw.find_source("digits"), rw.Split(4, "shards:2")))
        >>> axes = rw.draw_counts(counts)
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    ax = ax or plot_axes(len(counts))
    pieces = counts.drop(columns="size") if len(counts.columns) > 1 else counts
    labels: list[Any] = list(pieces)
    few = len(labels) <= NAMED
    colours = colormaps[("tab10" if len(labels) <= 10 else "tab20") if few else SCALE]
    for place, label in enumerate(labels):
        colour = colours(place if few else place / (len(labels) - 1))
        left = pieces.iloc[:, :place].sum(axis=1)
        ax.barh(range(len(counts)), pieces[label], left=left, height=0.85, color=colour, label=str(label))
    ax.set(xlabel="examples", ylabel="partition", ylim=(len(counts) - 0.5, -0.5), xlim=(0, counts["size"].max()))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    name_rows(ax, counts.index, 20)
    if not few:
        scale = ScalarMappable(Normalize(labels[0], labels[-1]), SCALE)
        ax.figure.colorbar(scale, ax=ax, label="label", aspect=40)
    elif labels != ["size"]:
        legend_aside(ax, ax.get_legend_handles_labels()[0], "label")
    return ax
