"""InternVL's config with the VidCom² settings. What the configs of all families share is in `family_config.py`."""

from typing import Any, ClassVar

from transformers import InternVLConfig

from .family_config import FamilyConfig
from .frame_marks_config import FrameMarksConfig

# What a processor writes before the first and the second frame of a video, and before a first frame behind a space.
# The tokenizer never joins the second with what stands around it, since special tokens do.
FRAME_TEXTS = ("Frame1: ", "\nFrame2: ", " Frame1: ")
# The ids of these texts in the vocabulary of Qwen2, Qwen2.5 and Qwen3 (qwen.tiktoken).
OF_QWEN = ((4369, 16, 25, 220), (198, 4369, 17, 25, 220), (16321, 16, 25, 220))
# The id of `<IMG_CONTEXT>` tells which vocabulary a released checkpoint has: InternVL3 follows Qwen2.5's special tokens
# and InternVL3.5 those of Qwen3.
KNOWN_FRAME_MARKS = {151667: OF_QWEN, 151671: OF_QWEN}


class VidCom2InternVLConfig(FrameMarksConfig, FamilyConfig, InternVLConfig):
    """Config of `VidCom2InternVLForConditionalGeneration`: `InternVLConfig`, the fields of `CompressionSettings`, and
    the one below.

    The `model_type` stays the native one. So a stock `config.json` loads here, with the default settings, and one saved
    here loads in the stock class.

    Args:
        frame_marks: the token ids of `FRAME_TEXTS`, which tell a video's frames from images. With None they are
            those of Qwen's vocabulary, in checkpoints that have it. `vidcom2.load` reads them from the tokenizer.

    Raises:
        ValueError: if a VidCom² setting is outside its accepted set.
    """

    model_type = "internvl"
    frame_texts: ClassVar = FRAME_TEXTS
    released_marks: ClassVar = KNOWN_FRAME_MARKS

    frame_marks: list[Any] | None = None

    @property
    def tokens_per_tile(self) -> int:
        vision = self.vision_config
        rows, columns = (size // patch for size, patch in zip(vision.image_size, vision.patch_size, strict=True))
        return int(rows * self.downsample_ratio) * int(columns * self.downsample_ratio)

    @staticmethod
    def marks_of(tokenizer: Any) -> list[list[int]]:
        # Between special tokens, as in a prompt: Llama's tokenizers put a space before the start of a text.
        texts = [f"{tokenizer.end_image_token}{text}{tokenizer.start_image_token}" for text in FRAME_TEXTS]
        return [ids[1:-1] for ids in tokenizer(texts, add_special_tokens=False).input_ids]

    def opens_a_frame(self, text: list[int]) -> bool:
        before = text[:-1]  # One token opens an image.
        return any(before[-len(mark) :] == mark for mark in self.known_frame_marks or ())
