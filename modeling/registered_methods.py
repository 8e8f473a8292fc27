"""The methods that are here. Importing their files enters their functions into the tables (`compression_settings.py`).

A Hub repo's version of this file names the methods that its config names.
"""

from .encoding import vision_skip_repeated
from .methods import (
    method_coverage,
    method_dycoke,
    method_evs,
    method_random,
    method_uniform_frames,
    method_vcast,
    method_vidcom2,
)

METHODS = (
    method_coverage,
    method_dycoke,
    method_evs,
    method_random,
    method_uniform_frames,
    method_vcast,
    method_vidcom2,
    vision_skip_repeated,
)
