"""The ladder's declarations: one module per stage, imported here so that a new file is all it takes."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
