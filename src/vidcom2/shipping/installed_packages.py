"""Which distribution an importable package belongs to."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info >= (3, 11):
    from importlib.metadata import packages_distributions as packages_distributions
else:  # Python 3.10's own finds no package whose distribution does not list it, as torch's does not.
    from importlib_metadata import packages_distributions as packages_distributions
