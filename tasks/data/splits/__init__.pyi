from .base import Deal as Deal
from .base import Pool as Pool
from .base import Rows as Rows
from .split import Split as Split
from .split import hold_out as hold_out
from .table import SPLITS as SPLITS
