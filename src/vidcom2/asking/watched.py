"""A video that a model has watched: it is read, encoded and compressed once, and asked about many times."""

import copy
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor
from transformers import GenerationConfig

from ..checks import check_watched_target, whole_number
from ..configuration.compression_settings import CompressionSettings
from ..errors import OptionError
from ..families.table import FAMILIES
from ..loading.checkpoints import Checkpoint
from ..modeling.encoding.video_features import VidCom2VideoFeatures
from ..modeling.hosting.in_transformers import pop_settings
from ..video.reading import Video
from .answer import Answer
from .arguments import check_generate_arguments, pop_call_settings, with_tokenizer
from .candidates import changed_settings, in_words
from .chats import Chat, Message, Prompt, is_single, prompts_of
from .frame_device import device_of_frames
from .generation import generate_answers, keep_tokens, run_tower
from .kept_cache import KINDS, check_room, continuing, empty_cache, has_room
from .model_identity import encoder_state, model_state
from .prepared_video import PreparedVideo, common_length, num_video_tokens, prepare_video
from .prompting import check_template_arguments, texts_of
from .watched_file import read_watched, write_watched

# Questions that begin alike only by chance, from which the part of a prompt before the question is found.
PROBES = ("?", "What is it", "Aaa bbb")
# Arguments of `generate` that never begin with a KV cache that is given. With these, the features are used.
WITHOUT_A_CACHE = (
    *("num_beams", "num_beam_groups", "penalty_alpha", "dola_layers", "custom_generate", "assistant_model"),
    *("prompt_lookup_num_tokens", "assistant_early_exit", "guidance_scale", "cache_config", "use_cache"),
    *("prefill_chunk_size", "past_key_values", "negative_prompt_ids"),
)
PLAIN = {("num_beams", 1), ("use_cache", True), ("num_beam_groups", 1)}  # values of these that change nothing


class Watched:
    """A video with the features of its kept tokens, ready for questions. `vidcom2.watch` and `load_watched` make it.

    Attributes:
        checkpoint: the model with its processor.
        prepared: how the video stands in a prompt.
        features: the features of the kept tokens, on the model's device.
        settings: the settings that the video was compressed with.
        video: the frames; None if the video was loaded by `load_watched`.
        source: the file or the pictures that it was read from, and their size and time of change then; None for other
            videos.
        lost_frames: how many frames of the file could not be decoded.
        prefix, cache: the ids (P,) of the prompt before the question, and the KV cache that `prefill` filled from it;
            None before.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        prepared: PreparedVideo,
        features: VidCom2VideoFeatures,
        settings: CompressionSettings,
        video: Video | None = None,
        source: tuple[str | list[str], str] | None = None,
        lost_frames: int = 0,
    ) -> None:
        self.checkpoint, self.prepared, self.features, self.settings = checkpoint, prepared, features, settings
        self.video, self.source, self.lost_frames = video, source, lost_frames
        self.prefix: Tensor | None = None
        self.cache: Any = None
        self._encoder_then, self._filled_by = encoder_state(checkpoint.model), None

    @property
    def summary(self) -> str:
        """What was kept of how many frames, how, and by which model, in one line."""
        compression, frames = self.features.video_compressions[0], len(self.prepared.video.frames)
        kept, whole = len(compression.placeholders), compression.num_placeholders
        way = in_words(changed_settings(self.checkpoint.model.config, self.settings))
        return f"{kept:,} of {whole:,} video tokens of {frames} frames, {way}, by {self.checkpoint.name}"

    def __deepcopy__(self, memo: dict[int, Any]) -> "Watched":
        """Return a copy with a KV cache of its own, about the same model."""
        copied = copy.copy(self)
        copied.cache = copy.deepcopy(self.cache, memo)
        return copied

    def __repr__(self) -> str:
        return f"<Watched: {self.summary}>"

    @overload
    def ask(  # pyright: ignore[reportOverlappingOverload]  (a text is a sequence of texts, too)
        self, question: str | Sequence[Message], **arguments: Any
    ) -> Answer: ...
    @overload
    def ask(self, question: Sequence[str] | Sequence[Chat], **arguments: Any) -> list[Answer]: ...
    def ask(
        self,
        question: Prompt | Sequence[Prompt],
        *,
        max_new_tokens: int = 64,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> Answer | list[Answer]:
        """Ask one or several questions about the video. Each is asked by itself, as if it were the first.

        Args:
            question, max_new_tokens, chat_template_kwargs: as in `ask`.
            **arguments: arguments of `generate`. It decodes greedily unless told `do_sample=True`.

        Returns:
            The answer; to a list of questions, the list of their answers.

        Raises:
            ValueError: on an argument that is unknown or outside its accepted set, on settings, since the video was
                compressed when it was watched, and if the model's encoder has changed since.
        """
        prompts = prompts_of(question)
        max_new_tokens = whole_number("max_new_tokens", max_new_tokens)
        check_kept(self.settings, pop_settings(pop_call_settings(arguments)))
        check_generate_arguments("ask", arguments)
        FAMILIES[self.checkpoint.model.config.model_type].check_cache(arguments.get("cache_implementation"))
        check_template_arguments(self.checkpoint.processor, chat_template_kwargs)
        answers = self.answers(prompts, {"max_new_tokens": max_new_tokens, **arguments}, chat_template_kwargs)
        return answers[0] if is_single(question) else answers

    def answers(
        self,
        prompts: Sequence[Prompt],
        arguments: dict[str, Any],
        template_arguments: Mapping[str, Any] | None = None,
    ) -> list[Answer]:
        """Answer questions that are checked already, with these arguments of `generate`."""
        arguments = with_tokenizer(arguments, self.checkpoint)
        return [self._answer(prompt, arguments, template_arguments) for prompt in prompts]

    @torch.no_grad()
    def prefill(self) -> "Watched":
        """Run the language model over the prompt up to the question, and keep its KV cache for all further questions.

        A chat that begins otherwise, for instance with words of the system, is answered from the features as before. So
        are calls with arguments that rule out a cache, such as `num_beams`, or that ask for another kind of cache, for
        which a static one has no room, and all calls once the language model has changed.

        Returns:
            This object.

        Raises:
            OptionError: if the chat template writes the question before the video, if the encoder has changed, and on
                a `cache_implementation` of the generation config other than dynamic and static.
        """
        model: Any = self.checkpoint.model
        self._check_encoder()
        if self._filled_by == model_state(model):
            return self
        inputs, *others = (self.inputs(probe) for probe in PROBES)
        ids = inputs["input_ids"]
        length = min(common_length(ids[0, :-1].tolist(), each["input_ids"][0, :-1].tolist()) for each in others)
        prefix = ids[:, :length]
        if not bool(texts_of(model, ids[:, length:]).all()):
            raise OptionError("the model's chat template writes the question before the video. Ask without `prefill`.")
        cut = {name: each[:, :length] if each.shape == ids.shape else each for name, each in inputs.items()}
        cache = empty_cache(model, length)
        check_room(cache, length)
        model(
            **cut,
            mm_encoder_outputs={"video": self.features},
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
            compression_positions=self.settings.compression_positions,
        )
        self.prefix, self.cache, self._filled_by = prefix[0], cache, model_state(model)
        return self

    def save(self, path: str | PathLike[str]) -> None:
        """Write the video as the model watched it, without pixels and without a KV cache, to one safetensors file.

        Args:
            path: where to write it, a name that ends in `.watched`. An existing file is replaced, once the new one is
                whole.

        Raises:
            OptionError: on a file that cannot be written, and a model whose encoder has changed since.
        """
        check_watched_target(Path(path))
        self._check_encoder()
        of = self.prepared, self.features, self.settings, self.source, self.lost_frames
        write_watched(Path(path), self.checkpoint, *of)

    # -----------------------------------------------------------------------------------------------------------------

    def begin(
        self, prompt: Prompt, template_arguments: Mapping[str, Any] | None, arguments: Mapping[str, Any]
    ) -> tuple[dict[str, Any], VidCom2VideoFeatures | None, dict[str, Any]]:
        """Return what `generate_answers` takes for a question: inputs, the features of the video, and arguments.

        Where the prompt and the arguments can continue the KV cache, a copy of it is among the arguments, and the
        features are None.
        """
        self._check_encoder()
        inputs = self.inputs(prompt, template_arguments)
        if self.can_continue(inputs["input_ids"], arguments):
            return inputs, None, {**arguments, **continuing(copy.deepcopy(self.cache))}
        return inputs, self.features, dict(arguments)

    def inputs(self, prompt: Prompt, template_arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the model's inputs for a question, without pixels."""
        of = self.checkpoint
        return self.prepared.prompt(of.processor, prompt, template_arguments).inputs(
            of.processor, of.model, self.features
        )

    def _answer(self, prompt: Prompt, arguments: dict[str, Any], template_arguments: Mapping | None) -> Answer:
        model, processor = self.checkpoint.model, self.checkpoint.processor
        inputs, features, arguments = self.begin(prompt, template_arguments, arguments)
        new = generate_answers(model, inputs, features, self.settings.compression_positions, **arguments)[0]
        text_tokens, video_tokens = int(texts_of(model, inputs["input_ids"]).sum()), len(self.features.pooler_output[0])
        full_video_tokens = num_video_tokens(self.features)
        return Answer(
            processor.decode(new, skip_special_tokens=True),
            model=self.checkpoint.name,
            question=prompt,
            prompt_tokens=text_tokens + video_tokens,
            video_tokens=video_tokens,
            full_prompt_tokens=text_tokens + full_video_tokens,
            full_video_tokens=full_video_tokens,
            new_tokens=len(new),
            video=self.video,
            compression=self.features.video_compressions[0],
        )

    def can_continue(self, ids: Tensor, arguments: Mapping[str, Any]) -> bool:
        """Tell whether a call can continue the KV cache of the prompt before the question."""
        if self.prefix is None or len(self.prefix) >= ids.shape[1]:
            return False
        if self._filled_by != model_state(self.checkpoint.model):
            return False
        if not torch.equal(ids[0, : len(self.prefix)], self.prefix):
            return False
        usual, own = GenerationConfig(), self.checkpoint.model.generation_config
        for name in WITHOUT_A_CACHE:
            value = arguments.get(name, getattr(own, name, None))
            if value is not None and value != getattr(usual, name, None) and (name, value) not in PLAIN:
                return False
        kind = arguments.get("cache_implementation") or own.cache_implementation
        most = arguments.get("max_new_tokens") or 0
        is_kind = kind in KINDS and isinstance(self.cache, KINDS[kind])
        return is_kind and has_room(self.cache, ids.shape[1] + most - 1)

    def _check_encoder(self) -> None:
        if not hasattr(self.checkpoint.model.model, "encode_videos"):
            raise OptionError(
                "the model that watched the video no longer compresses videos, because `vidcom2.remove` restored its "
                "stock class. Call `vidcom2.apply(model)` again."
            )
        if self._encoder_then != encoder_state(self.checkpoint.model):
            raise OptionError(
                "the model's encoder has changed since it watched the video: its weights, their dtype or its adapters. "
                "Watch the video again."
            )


def check_kept(settings: CompressionSettings, asked: Mapping[str, Any]) -> None:
    """Check that a call asks for no other settings than those that a video was watched with.

    Raises:
        OptionError: on the first that it does.
    """
    for name, value in asked.items():
        own = getattr(settings, name, value)
        if value != own:
            raise OptionError(
                f"`{name}` is {value!r}, but the video was watched with {own!r}, and only the tokens that were kept "
                "then are left. Watch it again with the other value."
            )


def watch_frames(checkpoint: Checkpoint, video: Video, settings: Mapping[str, Any], source: Any = None) -> Watched:
    """Let a model watch frames: encode and compress them once.

    Args:
        settings: settings of the call, which replace those of the model's config.
        source: as in `Watched`.

    Raises:
        ValueError: on a video or settings that the model refuses.
    """
    model = checkpoint.model
    applied = model.config.compression_settings(**settings)
    prepared, inputs = prepare_video(checkpoint.processor, video, model, device=device_of_frames(checkpoint))
    features = keep_tokens(model, run_tower(model, inputs, applied), applied)
    return Watched(checkpoint, prepared, features, applied, video, source, video.lost)


def load_watched_file(
    path: Path,
    header: Mapping[str, Any],
    checkpoint: Checkpoint,
    asked: Mapping[str, Any],
    encoder: Mapping[str, str] | None = None,
) -> Watched:
    """Return the video that `Watched.save` wrote to a file.

    Args:
        header: what `read_header` returned for the file.
        asked: settings that it must have been watched with.
        encoder: the `encoder_identity` of the checkpoint, if it is known already.

    Raises:
        OptionError: on a file that `read_watched` refuses, and on other settings.
    """
    check_kept(CompressionSettings(**header["settings"]), asked)
    return Watched(checkpoint, **read_watched(path, header, checkpoint, encoder))
