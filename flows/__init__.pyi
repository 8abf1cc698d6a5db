from .config.merging.merge import MergeConfig as MergeConfig
from .config.train import TrainConfig as TrainConfig
from .merging.flow import merge_flow as merge_flow
from .training.flow import train_flow as train_flow
