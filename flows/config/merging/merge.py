"""The configuration of a merge, which defines the flow's parameter and the command's options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from roundweave.flows.config.base import Own
from roundweave.flows.config.experiment import DataConfig, Loss, Model
from roundweave.flows.config.merging.recipes import RecipeConfig
from roundweave.flows.config.train import Location
from roundweave.storage.checkpoints.folders import ADAPTER_CONFIG, CONFIG
from roundweave.storage.parsing import at_commas
from roundweave.storage.runs.names import default_root
from roundweave.storage.runs.opening import is_folder_of_tensors
from roundweave.tasks.matching.solving.solve import SHRINKAGE
from roundweave.tasks.merging.averages.settings import read_setting
from roundweave.tasks.merging.slices import Slice
from roundweave.tasks.own_code.code import is_reference

EXAMPLES = 2000
"""The default number of training examples on which networks are run."""


class Architecture(DataConfig):
    """A network and examples to run it on. Missing fields come from the run of a stored round."""

    model: Model | None = Field(
        default=None,
        description="network: linear, logistic, mlp, cnn, gpt, FILE.py:fn; default: of the merged run",
    )
    model_options: dict[str, Any] | None = Field(
        default=None, description="keyword arguments of the model, such as hidden", examples=[{"hidden": 256}]
    )
    loss: Loss = None
    input: Annotated[str | None, Own(lambda text: not is_reference(text))] = Field(
        default=None, description="shape of inputs without data, such as 2x3x32x32 or int64:2x16, or FILE.py:fn"
    )
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = Field(
        default="float32", description="data type of the parameters; default: that of the networks, or float32"
    )
    seed: int = Field(default=0, ge=0, description="seed of all random numbers, such as the held-out examples")


class Merging(RecipeConfig):
    """How networks are matched, averaged and repaired."""

    match: Literal["weights", "activations", "mixed", "none"] | None = Field(
        default=None, description="comparison of hidden units; default: mixed with data, else weights"
    )
    metric: Literal["l2", "cosine", "correlation"] | None = Field(
        default=None, description="unit similarity; default: l2 (weights), correlation (activations), else cosine"
    )
    together: Literal["first", "many"] = Field(
        default="many", description="match three or more networks to: first (the first one), many (one another)"
    )
    within: bool = Field(
        default=False,
        description="also match units of the same network, for two networks that learned different tasks",
    )
    soft: int | None = Field(
        default=None, ge=0, description="number of most similar units to mix, in place of a permutation; 0: all"
    )
    temperature: float = Field(default=0.1, gt=0, description="temperature of the soft mixture of units")
    shrinkage: float = Field(
        default=SHRINKAGE, ge=0, le=1, description="factor on off-diagonal Gram elements, for regmean and pleas"
    )
    distil: int | None = Field(
        default=None,
        ge=1,
        description="number of steps in which the merged network learns the outputs of the others, on their "
        "examples or on noise",
    )
    distil_lr: float = Field(
        default=1e-3, gt=0, description="initial learning rate of the distillation (Adam), which decreases to 0"
    )
    vocabulary: Literal["union", "first", "base"] | None = Field(
        default=None,
        description="tokens if tokenizers differ: union (all), first (of the first), base (of the base)",
    )
    labels: Literal["union", "first"] | None = Field(
        default=None, description="labels if folders or runs differ: union (all), first (of the first)"
    )
    repair: bool | None = Field(
        default=None,
        description="recompute BatchNorm statistics, or rescale units; default: only with data and BatchNorm",
    )
    examples: int = Field(
        default=EXAMPLES, ge=1, description="training examples to run networks on; for a solve, of each network"
    )
    points: int = Field(default=11, ge=2, description="number of points to score on the path between two networks")
    blocks: int = Field(default=4, ge=1, description="number of blocks of examples that are processed in parallel")

    @model_validator(mode="after")
    def _fits(self) -> Merging:
        if self.average == "best" and self.coefficients:
            raise ValueError("average = best finds the coefficients; give none, or average = mean")
        if self.soft is not None and self.match == "none":
            raise ValueError("soft needs a match: weights, activations or mixed")
        if self.soft is not None and self.metric == "l2":
            raise ValueError("soft needs metric = cosine or correlation: a temperature has no meaning for l2")
        if self.soft is None and "temperature" in self.model_fields_set:
            raise ValueError("temperature needs a soft mixture: give soft, too, such as soft = 0")
        mixed = "soft" if self.soft is not None else "within" if self.within else ""
        if mixed and self.average not in (None, "mean", "best"):
            raise ValueError(f"average {self.average} needs a one-to-one match; leave {mixed} out, or give mean")
        unequal = self.layers or len({*(self.coefficients or ())}) > 1 or self.normalize is False
        if self.within and unequal:
            equal = "within gives both networks equal shares, as it pairs units"
            raise ValueError(f"{equal}; leave coefficients out, and layers and normalize")
        if self.within and self.average == "best":
            raise ValueError("average = best and within exclude each other; leave one of them out")
        if self.within and (self.soft is not None or self.match not in (None, "activations")):
            raise ValueError("within compares activations; give match = activations, and leave soft out")
        if self.distil is None and "distil_lr" in self.model_fields_set:
            raise ValueError("distil_lr needs a distillation; give its steps, too, such as distil = 500")
        if self.match == "mixed" and self.metric == "l2":
            raise ValueError("a mixed match needs cosine or correlation: weights and activations differ in scale")
        return self


class GramConfig(Architecture):
    """The whole configuration of `roundweave gram`, which writes what a merge must know of a network's examples.

    Raises:
        UsageError: A value is wrong, or a field is unknown. The message names the nearest field.
    """

    network: str = Field(
        description="a torch or safetensors file, a transformers folder, or a stored round; RUN@-1 is the last"
    )
    out: str = Field(description="output file (.safetensors)")
    examples: int = Field(default=EXAMPLES, ge=1, description="number of training examples, drawn by the seed")
    force: bool = Field(default=False, description="replace an existing file")
    trust: bool = Field(default=False, description="execute code that is stored with a run outside the root")
    root: str = Field(
        default_factory=default_root, description="folder in which runs are stored, or s3://BUCKET/…"
    )

    @model_validator(mode="after")
    def _safe(self) -> GramConfig:
        if not self.out.endswith(".safetensors"):
            raise ValueError(f"out {self.out!r} must end in .safetensors")
        return self


class MergeConfig(Architecture, Merging, Location):
    """The whole configuration of a merge.

    The fields are the options of ``roundweave merge`` under the same names.

    Raises:
        UsageError: A value is wrong, or a field is unknown. The message names the nearest field.

    Example:
        >>> config = rw.MergeConfig(networks=("first@-1", "second@-1"), out="merged.safetensors")
    """

    networks: tuple[str, ...] = Field(
        description="two or more torch or safetensors files, transformers folders, or stored rounds such as RUN@12"
    )
    slices: Annotated[tuple[Slice, ...], BeforeValidator(read_setting)] = Field(
        default=(),
        description="layers to stack into a new network, as JSON: "
        '[{"network": "a", "layers": [0, 8], "scale": 1}, …] for layers 0 to 7 of a',
    )
    grams: Annotated[tuple[str, ...], BeforeValidator(at_commas)] = Field(
        default=(), description="files of `roundweave gram` for the networks, separated by commas, instead of data"
    )
    trust: bool = Field(default=False, description="execute code that is stored with a run outside the root")
    out: str | None = Field(
        default=None, description="output of the merged network: a .safetensors or .pt file, or a folder"
    )
    force: bool = Field(default=False, description="replace an existing file")
    plot: str | None = Field(
        default=None, description="file for a plot of the path between two networks; default: as out, with .png"
    )

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """The networks, and after them their base if there is one."""
        return (*self.networks, *([self.base] if self.base else []))

    @property
    def persisted(self) -> bool:
        """Whether the merge is stored as a run, with the networks and permutations, and not only as a file."""
        return self.out is None or self.name is not None

    @property
    def by_name(self) -> bool:
        """Whether tensors are only averaged by name, one after the other, and nothing else is computed."""
        more = self.persisted or self.data is not None or self.distil is not None or self.average == "regmean"
        return self.match == "none" and not more

    @property
    def adapters(self) -> tuple[str, ...]:
        """The networks that are folders of adapters in the form of peft."""
        return tuple(place for place in self.networks if (Path(place) / ADAPTER_CONFIG).exists())

    @property
    def folders(self) -> tuple[str, ...]:
        """The networks that are folders, if one of them has a configuration in the form of transformers."""
        folders = tuple(place for place in self.networks if is_folder_of_tensors(Path(place)))
        return folders if any((Path(place) / CONFIG).exists() for place in folders) else ()

    @property
    def every_folder(self) -> tuple[str, ...]:
        """The folders of `folders`, and after them the folder of the base if that has a configuration."""
        return (*self.folders, *([self.base] if self.base and (Path(self.base) / CONFIG).exists() else []))

    def _check_slices(self) -> None:
        """Raise `ValueError` for slices of other networks, and for other requests beside slices."""
        if {*self.networks} != {part.network for part in self.slices}:
            raise ValueError("the slices name the networks; leave networks out")
        placed = Location.model_fields.keys() - {"name"}
        plain = {"networks", "slices", "match", "out", "force", "dtype", "trust", *placed}
        more = sorted(name for name in self.model_fields_set - plain if getattr(self, name) is not None)
        more += ["match"] if self.match not in (None, "none") else []
        if more or self.out is None:
            raise ValueError(f"slices exclude {more[0]}; leave it out" if more else "slices need out")

    @model_validator(mode="before")
    @classmethod
    def _data_of_each(cls, values: Any) -> Any:
        """Split a text of as many data sets as there are networks at its commas, one for each network."""
        data = values.get("data") if isinstance(values, dict) else None
        each = at_commas(data) if isinstance(data, str) else ()
        return {**values, "data": each} if len(each) == len(values.get("networks", ())) else values

    @model_validator(mode="before")
    @classmethod
    def _of_slices(cls, values: Any) -> Any:
        """Take the networks of slices if no others are named."""
        slices = read_setting(values.get("slices")) if isinstance(values, dict) else ()
        given = slices if isinstance(slices, list | tuple) else ()
        parts = [part for part in given if isinstance(part, Slice | dict)]
        each = [part.network if isinstance(part, Slice) else part.get("network") for part in parts]
        return {"networks": tuple(dict.fromkeys(each)), **values} if each else values

    @model_validator(mode="after")
    def _complete(self) -> MergeConfig:
        count = len(self.networks)
        if self.slices:
            self._check_slices()
        elif count < (1 if self.base else 2):
            raise ValueError(f"a merge takes two networks or more, not {count}; or one with a base")
        self.check_recipe(count)
        if self.within and count > 2:
            raise ValueError(f"within needs two networks, not {count}")
        if self.grams and len(self.grams) != count:
            raise ValueError(f"{count} networks need {count} files of Gram matrices, not {len(self.grams)}")
        if self.grams and self.average != "regmean":
            raise ValueError("Gram matrices are for average = regmean; give it, or leave grams out")
        if self.average == "best" and count > 2:
            raise ValueError("average = best needs two networks; for more networks give coefficients")
        if self.plot and count > 2:
            raise ValueError("a plot shows the path between two networks; leave plot out for more")
        return self
