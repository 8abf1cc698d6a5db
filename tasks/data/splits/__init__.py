"""Splits: which examples are held out, and which partition gets which of the others.

The public names and their modules are listed in `__init__.pyi`, which the lazy loader and type checkers read.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
