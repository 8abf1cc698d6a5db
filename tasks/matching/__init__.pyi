from .averaging import average as average
from .check import check_function as check_function
from .groups import UnitGroups as UnitGroups
from .search.matches import match as match
from .units import find_units as find_units
