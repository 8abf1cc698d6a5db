"""The configuration with the options of all plugins; the stub beside this file lists them for editors and mypy."""

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.forking import fork

__all__ = ["TrainConfig", "fork"]
