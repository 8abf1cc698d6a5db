"""Networks of the transformers package, built from the configuration that `save_pretrained` writes beside tensors.

Only classes of the installed package are used, and never code that comes with a folder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from roundweave.storage.checkpoints.folders import CONFIG, folder_config
from roundweave.storage.errors import CheckpointError, ModelError, UsageError, failing_as, one_line
from roundweave.storage.values.lazy import picked
from roundweave.tasks.own_code.code import Code, find_code

PREFIX = "transformers:"
"""What stands before the folder of a configuration where a model is named."""

CODE = {
    "auto_map": "names code of its own",
    "quantization_config": "is of numbers of few bits, which have no average",
}
"""Members of a configuration that are refused, and why."""

SIZES = ("vocab_size", "n_words", "decoder_vocab_size", "vocab_size_per_layer_input")
"""Members that say how many tokens there are; of one vocabulary they say the same."""

NO_MATTER = (
    *("_name_or_path", "architectures", "transformers_version", "dtype", "torch_dtype", "use_cache"),
    *("finetuning_task", "problem_type", "task_specific_params", "gradient_checkpointing", "id2label", "label2id"),
    *SIZES,
)
"""Members in which configurations of networks to merge may differ; tokens and labels are compared as such."""

TEXT, SOUND = 7, 3200
"""The tokens, and the samples of sound, of an example input."""


def find_pretrained(given: str, options: Mapping[str, Any]) -> tuple[Code, dict[str, Any]]:
    """The code and the options of the network of ``transformers:FOLDER``: all of the folder's ``config.json``.

    Members among `options` replace those of the file. Raises `CheckpointError`.
    """
    config = checked_config(Path(given.removeprefix(PREFIX)))
    return find_code(f"{__name__}:{network.__name__}"), {**config, **options}


def checked_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a folder's network. Raises `CheckpointError` for one that is refused."""
    config = folder_config(folder)
    if refused := _refused(config):
        raise CheckpointError(f"{folder / CONFIG} {refused}")
    return config


def _refused(config: Mapping[str, Any]) -> str:
    """Return why a configuration is not followed, as the end of a sentence; empty if it is."""
    named = next((name for name in CODE if name in config), None)
    if named:
        return f"{CODE[named]} ({named}); take a network of the transformers package itself, in plain floats"
    foreign = [value for key, value in config.items() if key.endswith("attn_implementation") and "/" in str(value)]
    return f"names code of others, {foreign[0]}; leave that out" if foreign else ""


def check_same_function(folders: Sequence[Path], but: Sequence[str] = ()) -> None:
    """Raise `CheckpointError` if configurations differ in what a network computes, as in the number of heads.

    Members `but` may differ. One that a file leaves out has its default, which transformers knows.
    """
    configs = [(folder, _of_function(whole_config(folder))) for folder in folders]
    for folder, config in configs[1:]:
        for name in sorted(configs[0][1].keys() | config.keys(), key=lambda name: (name != "model_type", name)):
            value, wanted = (each.get(name, LEFT_OUT) for each in (config, configs[0][1]))
            if value != wanted and name not in but:
                wanted = f"{wanted} in {folders[0] / CONFIG}"
                raise CheckpointError(f"{folder / CONFIG}: {name} is {value}, but {wanted}; do they belong?")


LEFT_OUT = "left out"
"""What is said of a member that a configuration lacks."""


def _of_function(config: Mapping[str, Any]) -> dict[str, Any]:
    """The members that decide what a network computes, also of configurations within, as `text_config.name`."""
    inner = configs_within(config)
    own = {name: value for name, value in config.items() if name not in (*NO_MATTER, *inner)}
    found = {name: value for name, value in own.items() if not (name.endswith("_token_id") or "drop" in name)}
    for name, each in inner.items():
        found |= {f"{name}.{member}": value for member, value in _of_function(each).items()}
    return found


def configs_within(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the configurations within one, such as `text_config`, which say of what kind they are."""
    return {n: value for n, value in config.items() if isinstance(value, dict) and "model_type" in value}


def whole_config(folder: Path) -> dict[str, Any]:
    """A folder's configuration with defaults for what it leaves out, in the spelling of the transformers package.

    Without that package, or for a kind of network that it does not know, it is the configuration itself.
    """
    config = checked_config(folder)
    with suppress(UsageError):
        kinds: Any = transformers_package().CONFIG_MAPPING
        if config.get("model_type") in kinds:
            with _quiet(transformers_package()):
                whole: dict[str, Any] = kinds[config["model_type"]].from_dict(config).to_dict()
                return whole
    return config


def network(**config: Any) -> nn.Module:
    """Return the network of a configuration's first architecture, with weights drawn at random.

    Raises `ModelError`.
    """
    if refused := _refused(config):
        raise ModelError(f"the configuration {refused}")
    library, named = transformers_package(), config.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise ModelError(f"the {CONFIG} names no architecture; add architectures, such as BertForMaskedLM")
    found = getattr(library, named[0], None)
    if not inspect.isclass(found) or not issubclass(found, library.PreTrainedModel):
        version = f"transformers {library.__version__}"
        raise ModelError(f"{version} has no architecture {named[0]!r}; install one that has it, or give --model")
    kind: Any = found
    if config.get("use_pretrained_backbone"):  # its weights are in the folder, too
        config = {**config, "use_pretrained_backbone": False}
    failing = failing_as(lambda e: ModelError(f"{named[0]} cannot be built from its {CONFIG}: {one_line(e)}"))
    with failing, _quiet(library):
        made: nn.Module = kind(kind.config_class.from_dict(config))
    return made


def transformers_package() -> Any:
    try:
        return import_module("transformers")
    except ImportError as error:
        raise UsageError("transformers is not installed; `pip install 'roundweave[huggingface]'`") from error


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """A context in which the package does not write at length about values of a configuration."""
    with ExitStack() as stack:
        stack.callback(library.logging.set_verbosity, library.logging.get_verbosity())
        library.logging.set_verbosity_error()
        yield


def names_in_network(made: nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the names that a network gives to the tensors of a checkpoint, if they are others.

    Version 5 of the package writes some networks under the names that they had in earlier ones. Raises
    `CheckpointError` if it stores what a network computes with in other parts, as it does for experts.
    """
    own = made.state_dict(keep_vars=True)
    if own.keys() >= set(tensors) or not type(made).__module__.startswith("transformers."):
        return {}
    loading = import_module("transformers.core_model_loading")  # its names are not documented: 5.23 has them
    names = {id(tensor): name for name, tensor in reversed(own.items())}
    written = {name: names.get(id(tensor)) for name, tensor in loading.revert_weight_conversion(made, own).items()}
    if apart := next((name for name in tensors if name in written and written[name] is None), None):
        raise CheckpointError(
            f"{type(made).__name__} computes with other tensors than its files have, such as {apart!r}; "
            "only merge --match none takes them"
        )
    return {name: mine for name, mine in written.items() if mine is not None and mine != name and name in tensors}


def never_saved(made: nn.Module) -> list[str]:
    """Return the names of tensors that files leave out, as the network computes them from its configuration."""
    return sorted(getattr(made, "_keys_to_ignore_on_save", None) or ())


def renamed(tensors: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> Mapping[str, torch.Tensor]:
    """Return tensors under other names, where `names` has them."""
    if not names:
        return tensors
    return picked({names.get(name, name): (tensors, name) for name in tensors})


def inputs_by_kind(made: nn.Module, examples: int = 2) -> dict[str, torch.Tensor] | None:
    """Random example inputs (examples, …) by name for a network of the transformers package; None for another."""
    config: Any = getattr(made, "config", None)
    main = str(getattr(made, "main_input_name", None))
    if config is None or main not in KINDS:
        return None
    taken = inspect.signature(made.forward).parameters
    names = [main, *(["decoder_input_ids"] if getattr(config, "is_encoder_decoder", False) else [])]
    names += [name for name in ("input_ids", "pixel_values") if hasattr(config, "vision_config") and name in taken]
    generator = torch.Generator().manual_seed(0)
    return {name: KINDS[name](config, examples, generator) for name in dict.fromkeys(names)}


def _tokens(config: Any, examples: int, generator: torch.Generator) -> torch.Tensor:
    """Token ids (examples, time) of the vocabulary."""
    config = config.get_text_config(decoder=True)
    places = max(getattr(config, "max_position_embeddings", None) or 0, 0) or TEXT  # XLNet has -1, any number
    return torch.randint(0, config.vocab_size, (examples, min(TEXT, places)), generator=generator)


def _pixels(config: Any, examples: int, generator: torch.Generator) -> torch.Tensor:
    """Pictures (examples, channels, height, width)."""
    config = getattr(config, "vision_config", config)
    size = getattr(config, "image_size", None) or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return torch.randn((examples, getattr(config, "num_channels", 3), height, width), generator=generator)


def _features(config: Any, examples: int, generator: torch.Generator) -> torch.Tensor:
    """Spectra (examples, frequencies, time), of the length that Whisper's encoder takes, two steps a place."""
    size = (examples, config.num_mel_bins, 2 * getattr(config, "max_source_positions", 50))
    return torch.randn(size, generator=generator)


def _waves(config: Any, examples: int, generator: torch.Generator) -> torch.Tensor:
    """Sound (examples, samples)."""
    return torch.randn((examples, SOUND), generator=generator)


KINDS: Mapping[str, Callable[[Any, int, torch.Generator], torch.Tensor]] = {
    "input_ids": _tokens,
    "decoder_input_ids": _tokens,
    "pixel_values": _pixels,
    "input_features": _features,
    "input_values": _waves,
}
"""How example inputs are drawn, by the name that the package gives to the argument."""
