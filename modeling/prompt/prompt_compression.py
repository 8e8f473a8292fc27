"""What the inner models of all families share: video LLMs without a head that leave dropped tokens out of the prompt.

A video LLM's prompt holds one placeholder for each video token. The inner model drops the placeholders of the dropped
tokens, with their mask and positions. It hands the shorter prompt and the kept features to the parent class, which
never learns that the prompt was longer. So the language model runs on the compressed prompt whoever calls the inner
model: a class with a head, or another library.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging
from transformers.utils.generic import ModelOutput, can_return_tuple

from ...configuration.compression_settings import CompressionSettings, with_settings
from ..encoding.video_features import VidCom2VideoFeatures, VideoFeaturesMixin
from ..hosting.in_transformers import (
    CACHE,
    check_tensors,
    is_2d,
    pop_settings,
    register_like,
    take_parents_signatures,
    wants_some_rows,
    whole_videos,
    with_prompt_extent,
    without,
    without_token_types,
)
from ..methods.compression import VideoCompression
from .call_description import CallDescription, CallPath, NewVideos, check_compressible, videos_of
from .conversation_cache import (
    CachedPrompt,
    ShortPrompt,
    positions_by_order,
    positions_made_for,
    remaining_positions,
    take,
    using,
)

logger = logging.get_logger(__name__)
MARK, TEXT, IMAGE, VIDEO, SOUND = range(-1, 4)  # What a token stands for. A mark is text that tells what others are.


class PromptRecord:
    """Carries values between a model with a head and its inner model, past the parent's `forward` that lies between.

    Args:
        logits_to_keep: the caller's argument: the positions of the prompt for which hidden states are wanted.

    Attributes:
        attention_mask: the caller's mask, if the parent's `forward` must not see it.
        prompt: the compressed prompt that the inner model ran, if it ran one.
    """

    attention_mask: Tensor | dict[str, Any] | None = None
    prompt: ShortPrompt

    def __init__(self, logits_to_keep: int | Tensor = 0):
        self.logits_to_keep = logits_to_keep


class VidCom2ModelMixin(VideoFeaturesMixin):
    """Makes an inner model run on compressed prompts. It comes before the parent's inner model among a model's bases.

    docs/add_a_family.md lists all hooks in a table.
    """

    uses_mrope = False  # Whether tokens have positions (t, h, w), beside their order.
    parent_knows_videos = True  # Whether the parent has a token for videos, or takes their frames for images.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        take_parents_signatures(cls, VidCom2ModelMixin, "forward")
        register_like(cls)

    def __init__(self, config: Any, *args: Any, **kwargs: Any):
        super().__init__(with_settings(config, self.config_class, {}), *args, **kwargs)

    # -----------------------------------------------------------------------------------------------------------------
    # What a family decides
    # -----------------------------------------------------------------------------------------------------------------

    def kinds(self, input_ids: Tensor) -> Tensor:
        """Return what each token stands for: `MARK`, `TEXT`, `IMAGE`, `VIDEO` or `SOUND`, int32 of the same shape.

        In the ids that `distinct_ids` returns, each token must be found without those before it.
        """
        sound = getattr(self.config, "audio_token_id", None)
        kinds = torch.full_like(input_ids, TEXT, dtype=torch.int32)
        for kind, token in ((IMAGE, self.config.image_token_id), (VIDEO, self.video_id), (SOUND, sound)):
            kinds = kinds if token is None else kinds.masked_fill(input_ids == token, kind)
        return kinds

    def with_videos(
        self, inputs: dict[str, Any], settings: CompressionSettings, has_whole_conversation: bool = False
    ) -> dict[str, Any]:
        """Return the arguments of `forward` or `generate` with the pixels of videos in `pixel_values_videos`, where the
        family's processor passes them otherwise.

        Args:
            has_whole_conversation: whether `input_ids` also cover the tokens in the cache, as in `generate`.

        Raises:
            ValueError: if it cannot be told which pixels are a video's.
        """
        return inputs

    def with_token_types(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of `forward` with the types that attention reads, where tokens of an image or a frame
        attend to each other."""
        return inputs

    def short_token_types(self, new: dict[str, Any], positions: Tensor, num_cached: int) -> dict[str, Tensor]:
        """Return the types of a prompt's tokens at some positions (B, L'), as an argument, if attention reads them."""
        return {}

    def check_mask(self, mask: Tensor, num_cached: int) -> None:
        """Check a mask (B, P + n) over P cached and n new tokens, in families whose attention cannot hide any token."""

    def rotary_positions(self, new: dict[str, Any], start: Tensor) -> tuple[Tensor, Tensor]:
        """Return M-RoPE positions of n new tokens in the full prompt (3, B, n), and of a text token after them (B, 1).

        Args:
            new: the arguments of `forward` for the new tokens, including a mask (B, n).
            start: (B, 1) the first position after those in the KV cache.
        """
        raise NotImplementedError

    def full_rotary_positions(self, inputs: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
        """Return the parent's M-RoPE positions (3, B, L) of an uncompressed prompt, and how far (B, 1) the position of
        a text token after it is from the number of tokens. Both are None for a prompt of text alone.
        """
        raise NotImplementedError

    # -----------------------------------------------------------------------------------------------------------------
    # What a call asks for
    # -----------------------------------------------------------------------------------------------------------------

    def describe(
        self, inputs: dict[str, Any], has_whole_conversation: bool = False
    ) -> tuple[CallDescription, dict[str, Any]]:
        """Describe what a call of `forward` or `generate` with these arguments asks for.

        Args:
            has_whole_conversation: whether `input_ids` also cover the tokens in the cache, as in `generate`, so that
                positions follow from them.

        Returns:
            The description, and the arguments without settings, with the pixels of videos in `pixel_values_videos`.

        Raises:
            ValueError: if a setting is outside its accepted set, if videos are given twice or do not fit the settings,
                or if images or videos follow on a cache whose last position is unknown.
        """
        if inputs.get("pixel_values_videos") is not None:
            check_tensors(inputs)
        inputs = dict(inputs)
        overrides = pop_settings(inputs, self.of_parent)
        settings = self.config.compression_settings(**overrides)
        inputs = self.with_videos(inputs, settings, has_whole_conversation)
        memory = CachedPrompt.attached_to(inputs.get(CACHE))
        path = CallPath.PARENT if memory is None else CallPath.CONTINUE
        videos = videos_of(inputs, settings, overrides)
        call = CallDescription(settings, self._drops_tokens(videos, inputs, settings), memory, videos, path)
        has_media_after_cached = self._has_media_after_cached(inputs)
        if has_media_after_cached and memory is None and not has_whole_conversation:
            raise ValueError(
                f"Images or videos follow the {int(inputs[CACHE].get_seq_length())} tokens of "
                "the KV cache, and it is not known where their positions end: another model filled it, or "
                "`position_ids` were passed. Pass a cache that this model's `generate` or `forward` filled, pass "
                "`position_ids`, or start over without the cache."
            )
        if call.drops_tokens or (has_media_after_cached and memory is not None):
            call = replace(call, path=CallPath.COMPRESS)
        return call, inputs

    def _drops_tokens(self, videos: NewVideos, inputs: dict[str, Any], settings: CompressionSettings) -> bool:
        """Whether tokens of a call's new videos are dropped."""
        if videos is not NewVideos.PIXELS:
            return videos is NewVideos.KEPT_FEATURES
        if settings.retention_ratio < 1.0 or not settings.may_drop:
            return settings.may_drop
        return any(map(settings.drops_of, self.video_sizes(**inputs)))

    def _has_media_after_cached(self, inputs: dict[str, Any]) -> bool:
        """Whether images or videos follow a cached turn, where the parent's `forward` would number them like text."""
        if not self.uses_mrope or inputs.get("position_ids") is not None:
            return False
        pixels = (inputs.get(name) for name in ("pixel_values", "pixel_values_videos"))
        encoded = (inputs.get("mm_encoder_outputs") or {}).values()
        if all(each is None for each in (*pixels, *encoded)):
            return False
        cache = inputs.get(CACHE)
        return cache is not None and cache.get_seq_length() > 0

    # -----------------------------------------------------------------------------------------------------------------
    # forward
    # -----------------------------------------------------------------------------------------------------------------

    @can_return_tuple
    def forward(
        self,
        call: CallDescription | None = None,
        prompt_record: PromptRecord | None = None,
        only_video_features: str | None = None,
        is_compressed: bool = False,
        **inputs: Any,
    ) -> ModelOutput:
        """Run the parent's `forward` on the compressed prompt.

        Hidden states have a row for each position of `input_ids`, as the parent's do. A dropped token gets the row of
        the last token kept before it, from which the compressed prompt predicts what follows. So the head and the loss
        of another library may pair the rows with the caller's own labels. `attentions` cover the compressed prompt. The
        `router_logits` of a mixture of experts also have a row for each position. They repeat each row of the
        compressed prompt as often as any other, or once more, so that a loss under the caller's mask counts all alike.

        Args:
            **inputs: the parent's arguments, and the settings of `CompressionSettings` for this call.
            call: the description of the call, if this project's class with a head has already made it.
            prompt_record: from the same class, which then takes the rows of the compressed prompt itself.
            only_video_features: `"kept"` or `"all"`: only encode the videos and return these features. This goes
                through `forward` because accelerate and FSDP have a module's weights in place only there.
            is_compressed: whether `generate` has already compressed the prompt, so that mask and positions are those of
                the compressed prompt. This also holds for the steps after it.

        Raises:
            ValueError: if settings, placeholders or other inputs cannot be used with a compressed prompt.
        """
        inputs = self.with_token_types(inputs)
        if is_compressed:
            with using(inputs.get(CACHE)):
                return super().forward(**self._for_parent_on_short_prompt(inputs), return_dict=True)
        if call is None:
            call, inputs = self.describe(inputs)
        if only_video_features is not None:
            return self._only_video_features(only_video_features, inputs, call.settings)
        if prompt_record is not None and prompt_record.attention_mask is not None:
            mask = prompt_record.attention_mask
            inputs["attention_mask"] = mask.to(inputs["input_ids"].device) if isinstance(mask, Tensor) else mask
        with using(inputs.get(CACHE)):
            if call.path is CallPath.COMPRESS:
                check_compressible(inputs)
                prompt, inputs = self.compressed(inputs, call, self.new_features(inputs, call))
                inputs.pop("logits_to_keep", None)  # Rows are picked by their place in the full prompt.
                inputs = self._for_parent_on_short_prompt(self._with_images_encoded(inputs))
                outputs = super().forward(**inputs, return_dict=True)
                prompt.cached.attach_to(outputs.get(CACHE))
                return self._with_rows_of_prompt(outputs, prompt, prompt_record)
            inputs = self._with_all_features(inputs, call)
            if call.memory is not None:
                return super().forward(**self._continued(inputs, call.memory), return_dict=True)
            return self._forward_full(inputs)

    def _only_video_features(
        self, which: str, inputs: dict[str, Any], settings: CompressionSettings
    ) -> VidCom2VideoFeatures:
        if which == "kept":
            return self._encode(self.get_video_features, inputs, **settings.as_dict()).without_tower_states()
        outputs = self._encode_whole(inputs, settings)
        videos = tuple(video.flatten(0, -2) for video in outputs.pooler_output)  # Some parents keep frames apart.
        return VidCom2VideoFeatures(**{**outputs, "pooler_output": videos}).without_tower_states()

    def _with_features_for_parent(self, inputs: dict[str, Any]) -> dict[str, Any]:
        encoded = inputs.get("mm_encoder_outputs") or {}
        if not isinstance(encoded.get("video"), VidCom2VideoFeatures):
            return inputs
        return inputs | {"mm_encoder_outputs": encoded | {"video": self._for_parent(encoded["video"])}}

    def _for_parent_on_short_prompt(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return with_prompt_extent(self._with_features_for_parent(inputs), self.config.get_text_config())

    def _with_all_features(self, inputs: dict[str, Any], call: CallDescription) -> dict[str, Any]:
        """Return the inputs with features of all video tokens in place of pixels.

        Given pixels, the parent would call our `get_video_features`, which drops tokens.
        """
        if call.videos is not NewVideos.PIXELS:
            return self._with_features_for_parent(inputs)
        return self._with_features_for_parent(
            self._with_images_encoded(self.with_features(inputs, self._encode_whole(inputs, call.settings)))
        )

    def with_features(self, inputs: dict[str, Any], features: VidCom2VideoFeatures) -> dict[str, Any]:
        """Return a call's arguments with features of its videos in place of their pixels."""
        encoded = (inputs.get("mm_encoder_outputs") or {}) | {"video": features}
        return without(inputs, ("pixel_values_videos", *self.video_arguments)) | {"mm_encoder_outputs": encoded}

    def _with_images_encoded(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return a call's arguments with features of its images in place of their pixels."""
        if inputs.get("pixel_values") is None:
            return inputs
        image = {"image": self._encode(self.get_image_features, inputs)}
        encoded = (inputs.get("mm_encoder_outputs") or {}) | image
        return inputs | {"pixel_values": None, "mm_encoder_outputs": encoded}

    def _forward_full(self, inputs: dict[str, Any]) -> ModelOutput:
        """Run the parent's `forward`, but keep the memory of the prompt with its cache, not on the model."""
        if inputs.get("position_ids") is not None:
            return super().forward(**inputs, return_dict=True)
        cache = inputs.get(CACHE)
        if not self.uses_mrope:
            num_cached = 0 if cache is None else int(cache.get_seq_length())
            is_first = num_cached == 0
            if not is_first and is_2d(inputs.get("attention_mask")):
                self.check_mask(inputs["attention_mask"], num_cached)
            outputs = super().forward(**inputs, return_dict=True)
            if is_first and outputs.get(CACHE) is not None:
                CachedPrompt.of_full_prompt(_mask_of_new(outputs, inputs), None).attach_to(outputs.get(CACHE))
            return outputs
        self._check_known_to_the_stock_class(cache)
        # The parent would keep `rope_deltas` on the model, where other chats would read them.
        position_ids, offset = self.full_rotary_positions(inputs)
        outputs = super().forward(**inputs | {"position_ids": position_ids}, return_dict=True)
        if outputs.get(CACHE) is not None:
            mask = _mask_of_new(outputs, inputs)
            if offset is None:  # In a prompt of text alone, the parent counts the padding.
                offset = mask.shape[1] - mask.long().sum(dim=1, keepdim=True)
            CachedPrompt.of_full_prompt(mask, offset).attach_to(outputs.get(CACHE))
        return outputs

    def _check_known_to_the_stock_class(self, cache: Any) -> None:
        """With M-RoPE, check that the stock class did not fill the cache before this object changed its class. The
        `rope_deltas` that it left on the model belong to its last chat, which may be another one.

        Raises:
            ValueError: if it may have filled the cache.
        """
        if CachedPrompt.is_unknown(cache) and getattr(self, "rope_deltas", None) is not None:
            raise ValueError(
                f"The KV cache holds {int(cache.get_seq_length())} tokens but has no memory of them, like a "
                "cache that the stock class filled before `vidcom2.apply`. So the position of the next token is not "
                "known. Pass the whole conversation to `generate`, pass `position_ids`, or start over without it."
            )

    def _continued(self, inputs: dict[str, Any], memory: CachedPrompt) -> dict[str, Any]:
        """Return the inputs of a step on a cache with a memory, with a mask and positions that fit what it holds.

        Positions that the caller passes stay as they are, and so does a 4-D mask.
        """
        given, has_positions = inputs.get("attention_mask"), inputs.get("position_ids") is not None
        is_own_mask = given is not None and not is_2d(given)  # Such a mask says nothing about positions.
        needs_mask = memory.is_short and not is_own_mask and (given is not None or memory.is_padded)
        if has_positions and not needs_mask:
            return inputs
        new = inputs["input_ids"] if inputs.get("input_ids") is not None else inputs["inputs_embeds"]
        held = CachedPrompt.of(inputs[CACHE], len(new), new.device)
        mask = held.mask_with_new(None if is_own_mask else given, new.shape[1], new.device)
        if new.shape[1] > 1 or not has_positions:
            self.check_mask(mask, held.length)
        inputs = inputs | {"attention_mask": given if is_own_mask else mask}
        if has_positions:
            return inputs
        position_ids = positions_by_order(mask)[:, -new.shape[1] :]
        if memory.position_offset is not None:
            moved = position_ids + memory.position_offset.to(position_ids.device)
            position_ids = torch.stack([position_ids, *[moved] * 3]) if self.uses_mrope else moved
        return inputs | {"position_ids": position_ids}

    def new_features(self, inputs: dict[str, Any], call: CallDescription) -> VidCom2VideoFeatures | None:
        """Return the features of new videos and what is kept of them; None if the prompt is shortened without them."""
        if call.videos is NewVideos.PIXELS:
            return self._only_video_features("kept", inputs, call.settings)
        return inputs["mm_encoder_outputs"]["video"] if call.videos is NewVideos.KEPT_FEATURES else None

    def _with_rows_of_prompt(self, outputs: Any, prompt: ShortPrompt, record: PromptRecord | None) -> ModelOutput:
        """Give each position of the caller's prompt its row, or leave that to the class with a head."""
        if record is not None:
            record.prompt = prompt
            if wants_some_rows(record.logits_to_keep):
                picked = prompt.at_positions(outputs.last_hidden_state, record.logits_to_keep)
                outputs.last_hidden_state = picked.view(-1, *picked.shape[-2:])  # A bool mask picks (N, dim): no batch.
            return outputs
        if outputs.get("router_logits") is not None:
            outputs.router_logits = prompt.spread(outputs.router_logits)
        outputs.last_hidden_state = prompt.at_positions(outputs.last_hidden_state)
        if outputs.hidden_states is not None:
            outputs.hidden_states = prompt.of_layers(outputs.hidden_states)
        return outputs

    # -----------------------------------------------------------------------------------------------------------------
    # The prompt
    # -----------------------------------------------------------------------------------------------------------------

    def compressed(
        self,
        inputs: dict[str, Any],
        call: CallDescription,
        features: VidCom2VideoFeatures | None,
        has_whole_conversation: bool = False,
    ) -> tuple[ShortPrompt, dict[str, Any]]:
        """Return a call's new tokens without the dropped ones, and the call's arguments with these tokens.

        Args:
            inputs: the arguments of `forward`, or those of `generate` with a mask.
            features: the kept features of the new videos; None if nothing is dropped.
            has_whole_conversation: as in `describe`.

        Raises:
            ValueError: if the placeholders do not fit the videos, or the mask or the settings do not fit the model.
        """
        input_ids: Tensor = inputs["input_ids"]
        mask: Any = inputs.get("attention_mask")
        cached = CachedPrompt.of(inputs.get(CACHE), len(input_ids), input_ids.device)
        if has_whole_conversation:
            input_ids, mask = input_ids[:, cached.prompt_length :], cached.mask_of_conversation(mask)
        else:
            mask = cached.mask_with_new(mask, input_ids.shape[1], input_ids.device)
        cached_mask, attended = mask[:, : cached.length], mask[:, cached.length :].bool()
        new = inputs | {"input_ids": input_ids, "attention_mask": mask[:, cached.length :]}
        kinds = self.kinds(input_ids)
        self._check_attended(kinds, attended)
        kept = attended & self._kept(kinds, None if features is None else features.video_compressions)
        positions = remaining_positions(kept)
        is_token = positions >= 0
        mask = torch.cat([cached_mask, is_token.to(cached_mask.dtype)], dim=1)
        self.check_mask(mask, cached.length)
        extended = cached.extended(positions, input_ids.shape[1])
        order = positions_by_order(mask)[:, cached.length :]
        offset = cached.position_offset
        offset = 0 if offset is None else offset.to(input_ids.device)
        start = cached_mask.sum(dim=1, keepdim=True) + offset
        num_tokens = mask.sum(dim=1, keepdim=True)
        if self.uses_mrope:  # Each kept token keeps its own (t, h, w), beside the order that attention masks use.
            rotary, following = self.rotary_positions(new, start)
            position_ids = torch.stack([order, *(take(row, positions, 0) for row in rotary)])
            offset = following - num_tokens
        elif call.settings.compression_positions == "original":
            position_ids = take(start + positions_by_order(attended), positions, 0)
            offset = start + attended.sum(dim=1, keepdim=True) - num_tokens
        else:
            position_ids = order + offset * is_token
        if isinstance(offset, Tensor):
            extended = replace(extended, position_offset=offset)
        self._warn_of_length(position_ids)
        # A pad token would be new to the prompt, and `repetition_penalty` would see it. A mark would change others.
        is_text = attended & (kinds == TEXT)
        padding = input_ids.gather(1, is_text.int().argmax(dim=1, keepdim=True)) * is_text.any(dim=1, keepdim=True)
        short_ids = take(self.distinct_ids(input_ids, kinds), positions, padding)
        short = {"input_ids": short_ids, "attention_mask": mask, "position_ids": position_ids}
        short |= self.short_token_types(new, positions, cached.length)
        extended = replace(extended, is_short=cached.is_short or features is not None)
        if features is not None:
            inputs = self.with_features(inputs, features)
        return ShortPrompt(kept, attended, positions, padding, extended), without_token_types(inputs) | short

    def _warn_of_length(self, position_ids: Tensor) -> None:
        limit = positions_made_for(self.config.get_text_config())
        if limit is None or (not self.uses_mrope and position_ids.shape[-1] <= limit):
            return
        last = int(position_ids[-3:].max()) if self.uses_mrope else position_ids.shape[-1] - 1
        if last >= limit:
            logger.warning_once(
                f"The compressed prompt reaches position {last}, but the language model was made for {limit} positions "
                "(`max_position_embeddings` and its scaling), so its answer may be poor. Pass fewer frames or a "
                "smaller `retention_ratio`."
            )

    def _kept(self, kinds: Tensor, compressions: Sequence[VideoCompression] | None) -> Tensor:
        """Return a bool mask (B, L) that is False at the placeholders of dropped tokens.

        Raises:
            ValueError: if the placeholders of a prompt do not belong to whole videos.
        """
        kept = torch.ones_like(kinds, dtype=torch.bool)
        if compressions is None:
            return kept
        is_video = kinds == VIDEO
        indices, sizes = zip(*((each.placeholders, each.num_placeholders) for each in compressions), strict=True)
        counts = is_video.sum(dim=1).tolist()
        if not any(counts):
            raise ValueError(
                f"There are {len(sizes)} videos, but no placeholders for them among the new tokens. Videos of earlier "
                "turns are in the KV cache: leave their pixels out."
            )
        if not whole_videos(counts, sizes):
            raise ValueError(
                f"The prompts hold {counts} video placeholders (token {self.config.video_token_id}), but "
                f"`pixel_values_videos` holds videos of {list(sizes)}. Build both with the checkpoint's processor, "
                "and don't truncate the prompt."
            )
        stays = [
            torch.zeros(size, dtype=torch.bool, device=index.device).index_fill_(0, index, True)
            for index, size in zip(indices, sizes, strict=True)
        ]
        return kept.masked_scatter(is_video, torch.cat(stays).to(kinds.device))

    def _check_attended(self, kinds: Tensor, attended: Tensor) -> None:
        """Check that the mask hides no placeholder. Those of dropped tokens count too, since positions (t, h, w) are
        computed with them."""
        num_hidden = 0 if attended.all() else int(((kinds > TEXT) & ~attended).sum())
        if num_hidden:
            raise ValueError(
                f"`attention_mask` hides {num_hidden} placeholders of videos, images or sound. Leave what they stand "
                "for out of the prompt; if the mask hides a whole prompt, leave that out of the batch."
            )

    def is_video(self, input_ids: Tensor) -> Tensor:
        """Return which tokens stand for the tokens of a video: bool, of the same shape."""
        return self.kinds(input_ids) == VIDEO

    @property
    def video_id(self) -> int:
        """The id of a video's placeholders. If the parent has none, it is one that no token of a prompt has."""
        return self.config.video_token_id if self.parent_knows_videos else -1

    def distinct_ids(self, input_ids: Tensor, kinds: Tensor) -> Tensor:
        """Return ids in which the placeholders of images and videos differ by their id alone. Transformers finds them
        by `config.image_token_id` and `config.video_token_id` when it repeats features, or splits them into chunks."""
        return input_ids.masked_fill(kinds == VIDEO, self.video_id)


def _num_new(inputs: dict[str, Any]) -> int:
    """Return the number n of new tokens."""
    return (inputs["input_ids"] if inputs.get("input_ids") is not None else inputs["inputs_embeds"]).shape[1]


def _mask_of_new(outputs: Any, inputs: dict[str, Any]) -> Tensor:
    """Return the mask (B, n) of the n new tokens."""
    mask, hidden_states, num_new = inputs.get("attention_mask"), outputs.last_hidden_state, _num_new(inputs)
    if is_2d(mask):
        return mask[:, -num_new:]
    return torch.ones(len(hidden_states), num_new, dtype=torch.long, device=hidden_states.device)
