"""SmolVLM's config with the VidCom² settings. What the configs of all families share is in `family_config.py`."""

from itertools import takewhile
from typing import Any, ClassVar

from transformers import SmolVLMConfig

from .family_config import FamilyConfig
from .frame_marks_config import FrameMarksConfig

AROUND, OPENING = "<fake_token_around_image>", "<global-img>"  # the names in all released tokenizers
INTRODUCTION = " video.\n"  # the end of what the processor writes before the first frame
FRAME_TEXTS = ("\nFrame from 00:00:", f"{INTRODUCTION}\nFrame from 00:00:", "00:00: to 99:59:")
# The ids of these texts, and of all that times are made of, in the vocabulary of SmolLM2. Its tokenizer takes digits
# one by one. SmolVLM2's special tokens begin at 49152; 49190 is `<image>`.
OF_SMOLLM2 = (
    (198, 9967, 429, 216, 32, 32, 42, 32, 32, 42, 49189, 49152),
    (3341, 30, 198, 198, 9967, 429, 216, 32, 32, 42, 32, 32, 42, 49189, 49152),
    (32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42),
)
KNOWN_FRAME_MARKS = {49190: OF_SMOLLM2}


class VidCom2SmolVLMConfig(FrameMarksConfig, FamilyConfig, SmolVLMConfig):
    """Config of `VidCom2SmolVLMForConditionalGeneration`: `SmolVLMConfig`, the fields of `CompressionSettings`, and the
    one below.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Args:
        frame_marks: the token ids of the text before a video's later frames, and before its first, with the two tokens
            that open an image; and of all tokens that times are made of. They tell a video's frames from images. With
            None they are those of SmolLM2's vocabulary, in checkpoints that have it. `vidcom2.load` reads them from the
            tokenizer.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "smolvlm"
    frame_texts: ClassVar = FRAME_TEXTS
    released_marks: ClassVar = KNOWN_FRAME_MARKS

    frame_marks: list[Any] | None = None

    @property
    def tokens_per_tile(self) -> int:
        side = self.vision_config.image_size // self.vision_config.patch_size
        return int(side**2 / self.scale_factor**2)  # as the parent's `image_seq_len`

    @staticmethod
    def marks_of(tokenizer: Any) -> list[list[int]]:
        times = [f"\nFrame from {minute:02}:{minute % 60:02}:" for minute in range(100)]
        texts = [f"{AROUND}{text}{AROUND}{OPENING}" for text in (*times, f"{INTRODUCTION}{times[0]}")]
        *later, first = (ids[1:] for ids in tokenizer(texts, add_special_tokens=False).input_ids)
        same = [len(set(column)) == 1 for column in zip(*later)]
        opening = len(tokenizer(f"{AROUND}{OPENING}", add_special_tokens=False).input_ids)
        of_times = {token for ids in later for token in ids[same.index(False) : -opening]}
        return [later[0], first, sorted(of_times)]

    def opens_a_frame(self, text: list[int]) -> bool:
        later, first, times = self.known_frame_marks or ([], [], [])
        (opening, _, line), (_, _, begun), (opened, time, before) = (_parts(ids, times) for ids in (later, first, text))
        # A tokenizer may join the line's end with what precedes it. So a frame is known by what is the same.
        same = next((at for at, (a, b) in enumerate(zip(line, begun)) if a != b), len(line))
        return 0 < len(time) <= 8 and opened == opening and before[:same] == line[:same]


def _parts(ids: list[int], times: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Return the tokens behind the last time in a text, those of the time, and those before it, all from their end."""
    behind = list(takewhile(lambda token: token not in times, reversed(ids)))
    time = list(takewhile(lambda token: token in times, reversed(ids[: len(ids) - len(behind)])))
    return behind, time, ids[: len(ids) - len(behind) - len(time)][::-1]
