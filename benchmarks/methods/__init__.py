"""FastVID, FlashVID, HoliTom and VisionZip, registered as a user's methods are, for the needle leaderboard; and FastV,
PyramidDrop and SparseVLM (`pruning_*.py`), which drop tokens inside the language model.

The four are published methods that choose by the attention of the vision tower. They are behind this project's own
methods at every ratio on both toys, so they are no part of the package. `attended_tokens.py` reads the attention from
the tower.
"""

from vidcom2 import exact_total, register_compression_method

from .method_fastvid import fastvid
from .method_flashvid import flashvid
from .method_holitom import holitom
from .method_visionzip import visionzip

METHODS = {function.__name__: function for function in (fastvid, flashvid, holitom, visionzip)}


def register() -> None:
    """Make the four selectable as `compression_method`. Importing them alone changes nothing for the rest."""
    for name, function in METHODS.items():
        register_compression_method(name, count=exact_total)(function)
