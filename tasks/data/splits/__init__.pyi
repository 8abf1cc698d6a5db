from .base import Deal as Deal
from .base import Pool as Pool
from .base import Rows as Rows
from .held_out import hold_out as hold_out
from .split import Split as Split
from .table import SPLITS as SPLITS
