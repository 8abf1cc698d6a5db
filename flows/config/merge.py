"""The configuration of a merge, which defines the flow's parameter and the command's options."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from roundweave.flows.config.base import Config, NamedOrOwn, Numbers
from roundweave.flows.config.experiment import DataConfig
from roundweave.flows.config.train import Placement
from roundweave.storage.checkpoints.folders import ADAPTER_CONFIG, CONFIG
from roundweave.storage.checkpoints.opening import is_folder_of_tensors
from roundweave.tasks.networks.scores import LOSS_NAMES


class Architecture(DataConfig):
    """A network and examples to run it on; missing fields are taken from the run of a stored round."""

    model: NamedOrOwn | None = Field(
        default=None, description="linear, logistic, mlp, cnn, gpt, FILE.py:fn; default: of the run that is merged"
    )
    model_options: dict[str, Any] | None = Field(
        default=None, description="keyword arguments of the model, such as hidden", examples=[{"hidden": 256}]
    )
    loss: NamedOrOwn | None = Field(
        default=None, description=f"{', '.join(LOSS_NAMES)}, FILE.py:fn; default: by the targets"
    )
    input: str | None = Field(
        default=None, description="without data: shape of example inputs, 2x3x32x32 or int64:2x16, or FILE.py:fn"
    )
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = Field(
        default="float32", description="type of the parameters; default: that of the networks, or float32"
    )
    seed: int = Field(default=0, ge=0, description="decides which examples are held out")


class Merging(Config):
    """How networks are matched, averaged and repaired."""

    match: Literal["weights", "activations", "mixed", "none"] | None = Field(
        default=None, description="by what hidden units are compared; default: mixed with data, else weights"
    )
    metric: Literal["l2", "cosine", "correlation"] | None = Field(
        default=None, description="how; default: l2 by weights, correlation by activations, else cosine"
    )
    together: Literal["first", "many"] = Field(
        default="many", description="of three or more: match all to the first, or to one another"
    )
    soft: int | None = Field(
        default=None, ge=0, description="mix the k most similar units, 0 all, instead of a permutation"
    )
    temperature: float = Field(default=0.1, gt=0, description="of the soft mixture")
    average: Literal["mean", "best"] = Field(
        default="mean", description="the mean, or of two networks the best point of the path between them"
    )
    coefficients: Numbers | None = Field(
        default=None, description="a weight a network, such as its number of examples: 1000,3000; default: equal"
    )
    vocabulary: Literal["union", "first"] | None = Field(
        default=None, description="of folders whose tokenizers differ: all tokens, or those of the first"
    )
    repair: bool | None = Field(
        default=None,
        description="recompute BatchNorm statistics or rescale units; default: with data and BatchNorm",
    )
    examples: int = Field(default=2000, ge=1, description="training examples for activations and repair")
    points: int = Field(default=11, ge=2, description="points of the path between two networks that are scored")
    blocks: int = Field(default=4, ge=1, description="parts in which examples are observed at once")

    @model_validator(mode="after")
    def _fits(self) -> Merging:
        if self.average == "best" and self.coefficients:
            raise ValueError("average best finds the coefficients; give none, or average = mean")
        if self.soft is not None and self.match == "none":
            raise ValueError("soft needs a match: weights, activations or mixed")
        if self.soft is not None and self.metric == "l2":
            raise ValueError("soft needs metric = cosine or correlation: a temperature has no meaning for l2")
        if self.soft is None and "temperature" in self.model_fields_set:
            raise ValueError("temperature is that of a soft mixture: give soft, too, such as soft = 0")
        if self.match == "mixed" and self.metric == "l2":
            raise ValueError(
                "a mixed match needs cosine or correlation: weights and activations have other scales"
            )
        return self


class MergeConfig(Architecture, Merging, Placement):
    """The whole configuration of a merge.

    Raises:
        UsageError: A value is wrong, or there is no such field; the line names the nearest.

    Example:
        >>> config = rw.MergeConfig(networks=("first@-1", "second@-1"), out="merged.safetensors")
    """

    networks: tuple[str, ...] = Field(
        description="two or more torch or safetensors files, folders of transformers, or stored rounds as RUN@12"
    )
    trust: bool = Field(default=False, description="run the code kept in a store outside the root")
    out: str | None = Field(
        default=None, description="where to write the merged network: .safetensors, .pt, or a folder"
    )
    force: bool = Field(default=False, description="replace the file that is there")
    plot: str | None = Field(
        default=None, description="where to draw the path of two networks: .png; default: by out"
    )

    @property
    def persisted(self) -> bool:
        """Whether the merge is stored as a run, with the networks and their permutations, not only as a file."""
        return self.out is None or self.name is not None

    @property
    def by_name(self) -> bool:
        """Whether tensors are averaged by their names alone, one after the other, and nothing else is computed."""
        return self.match == "none" and self.data is None and not self.persisted

    @property
    def adapters(self) -> tuple[str, ...]:
        """The networks that are folders of adapters, as peft writes them."""
        return tuple(place for place in self.networks if (Path(place) / ADAPTER_CONFIG).exists())

    @property
    def folders(self) -> tuple[str, ...]:
        """The networks that are folders, if one of them has a configuration, as transformers writes it."""
        folders = tuple(place for place in self.networks if is_folder_of_tensors(Path(place)))
        return folders if any((Path(place) / CONFIG).exists() for place in folders) else ()

    @model_validator(mode="after")
    def _complete(self) -> MergeConfig:
        count = len(self.networks)
        if count < 2:
            raise ValueError(f"a merge takes two networks or more, not {count}")
        given = self.coefficients
        if given is not None and (len(given) != count or min(given) < 0 or sum(given) <= 0):
            wanted = f"{count} networks need {count} coefficients, none negative and not all zero"
            raise ValueError(f"{wanted}, not {list(given)}")
        if self.average == "best" and count > 2:
            raise ValueError(
                "average = best looks along the path between two networks; of more, give coefficients"
            )
        if self.plot and count > 2:
            raise ValueError("a plot shows the path between two networks; of more there is none")
        return self
