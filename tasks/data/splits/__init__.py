"""How examples are split: which are held out, and which partition gets which of the others.

Its names, and where each is defined, stand in `__init__.pyi`, once for the loader, types and completion.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
