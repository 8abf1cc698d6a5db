"""Merging of separately trained networks: finds interchangeable hidden units and matches them.

The public names and their modules are listed in `__init__.pyi`, which the lazy loader, type checkers and editors
read.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
