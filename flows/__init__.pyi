from .config.merge import MergeConfig as MergeConfig
from .config.train import TrainConfig as TrainConfig
from .evidence.recombine.flow import recombine_flow as recombine_flow
from .evidence.replay.flow import replay_flow as replay_flow
from .merging.flow import merge_flow as merge_flow
from .training.flow import train_flow as train_flow
