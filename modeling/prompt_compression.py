"""What the VidCom² model classes share: leaving the dropped video tokens out of the prompt.

A video LLM's prompt holds one placeholder per video token. The mixin drops the placeholders of dropped tokens,
together with their labels, mask and positions, and hands the shorter prompt and the kept features to the parent
class, which never learns that the prompt was longer:

    forward   compresses, calls the parent's `forward`, and says in `prompt_positions` which rows are left;
    generate  compresses, calls the parent's `generate`, and puts the caller's full prompt back in front.
"""

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin
from transformers.generation import utils as generation_utils
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .compression import VideoCompression, compress_with
from .compression_settings import checked_setting
from .full_prompt_view import FullPromptView
from .prompt_positions import CachedPrompt, ShortPrompt, positions_by_order, remaining_positions, take

IGNORED_LABEL = -100
TOKEN_TYPES = {"token_type_ids", "mm_token_type_ids"}  # (B, L) what kind of token each is
CHUNKS_FEATURES = hasattr(generation_utils, "_slice_mm_encoder_output")  # not in Transformers 5.19
GENERATE_ARGUMENTS = tuple(inspect.signature(GenerationMixin.generate).parameters)[1:]


@dataclass
class VidCom2VideoFeatures(BaseModelOutputWithPooling):
    """What `get_video_features` returns.

    Attributes:
        pooler_output: one (K_i, dim) tensor per video: the tokens that enter the language model.
        video_compressions: one `VideoCompression` per video.
    """

    video_compressions: tuple[VideoCompression, ...] | None = None


def with_signature_of(parent_method: Callable) -> Callable:
    """Show the parent's arguments, and `retention_ratio`, as the signature of a method that takes `*args, **kwargs`.

    `generate`, `Trainer` and the pipelines look at the names of `forward`'s arguments to decide what to pass it.
    """

    def decorate(method: Callable) -> Callable:
        @functools.wraps(method)
        def wrapper(self, *args, **kwargs):
            return method(self, **dict(zip(names, args)), **kwargs)

        parameters = list(inspect.signature(parent_method).parameters.values())
        names = [parameter.name for parameter in parameters[1:]]
        ours = inspect.Parameter("retention_ratio", inspect.Parameter.KEYWORD_ONLY, default=None)
        wrapper.__signature__ = inspect.Signature([*parameters[:-1], ours, parameters[-1]])  # the last is **kwargs
        return wrapper

    return decorate


class VidCom2PromptMixin:
    """Comes before the parent class in a model's bases. A family adds what is its own:

    - `get_video_features`, which encodes videos and ends with `keep_distinctive_tokens`;
    - `placeholders`, the placeholders of a video, by kept tokens and structure;
    - `features_for_parent`, the form in which the parent's `forward` takes the features;
    - `rotary_positions`, if positions are more than the order of the tokens;
    - `output_class`, the parent's output with a `prompt_positions` field.
    """

    output_class: type[ModelOutput]

    # -----------------------------------------------------------------------------------------------------------------
    # What a family decides
    # -----------------------------------------------------------------------------------------------------------------

    def placeholders(self, compression: VideoCompression) -> tuple[Tensor, int]:
        """Which of a video's placeholders stay, (K,) int64 ascending, and how many it has in the full prompt."""
        return compression.indices, compression.token_uniqueness.numel()

    def features_for_parent(self, features: Sequence[Tensor]) -> Sequence[Tensor] | Tensor:
        """The kept tokens of all videos as the parent's `forward` takes them."""
        return features

    def rotary_positions(self, new: dict[str, Any], start: Tensor) -> Tensor | None:
        """(3, B, n) M-RoPE positions of n new tokens in the full prompt, or None where positions are mere order.

        Args:
            new: the arguments of `forward`, for the new tokens.
            start: (B, 1) the first position after those in the KV cache.
        """
        return None

    def position_offset(self, cached: CachedPrompt) -> Tensor | int:
        """(B, 1) next position minus number of tokens, for what is in the KV cache; 0 where positions are order."""
        return 0

    def forget_positions(self) -> None:
        """Before a prompt begins: drop what the model remembers of the positions of an earlier one."""

    # -----------------------------------------------------------------------------------------------------------------
    # Video features
    # -----------------------------------------------------------------------------------------------------------------

    def keep_distinctive_tokens(
        self, outputs: BaseModelOutputWithPooling, frames: Sequence[Tensor], retention_ratio: float | None
    ) -> VidCom2VideoFeatures:
        """The parent's features without the tokens that VidCom² drops.

        Args:
            outputs: of the parent's `get_video_features`; one (placeholders, dim) entry of `pooler_output` per video.
            frames: the tokens to score, (num_frames, tokens_per_frame, dim) per video.
            retention_ratio: overrides the config's.
        """
        settings = self.config.compression_settings(retention_ratio)
        compressions = tuple(compress_with(settings, video) for video in frames)
        kept = tuple(
            video[self.placeholders(compression)[0]]
            for video, compression in zip(outputs.pooler_output, compressions, strict=True)
        )
        fields = {**outputs, "pooler_output": kept}
        return VidCom2VideoFeatures(**fields, video_compressions=compressions)

    def _encode(self, modality: str, inputs: dict[str, Any], **overrides: Any) -> BaseModelOutputWithPooling:
        """Features of the prompt's images or videos, from whichever arguments their encoder names."""
        encoder = getattr(self, f"get_{modality}_features")
        names = inspect.signature(encoder).parameters
        return encoder(**{name: inputs[name] for name in names if name in inputs} | overrides, return_dict=True)

    def _video_features(self, inputs: dict[str, Any], retention_ratio: float) -> VidCom2VideoFeatures | None:
        """The compressed features of the prompt's videos; None if it has none or they all stay."""
        given = (inputs.get("mm_encoder_outputs") or {}).get("video")
        if inputs.get("pixel_values_videos") is None:
            if given is None or retention_ratio == 1.0 or isinstance(given, VidCom2VideoFeatures):
                return given if isinstance(given, VidCom2VideoFeatures) else None
            raise ValueError(
                f"`mm_encoder_outputs['video']` is a {type(given).__name__} of uncompressed features, but "
                f"`retention_ratio` is {retention_ratio}. Pass `pixel_values_videos`, the output of this model's "
                "`get_video_features`, or `retention_ratio=1.0`."
            )
        if given is not None:
            raise ValueError(
                "`pixel_values_videos` and `mm_encoder_outputs['video']` both hold the prompt's videos. Pass one."
            )
        if retention_ratio == 1.0:
            return None
        return self._encode("video", inputs, retention_ratio=retention_ratio)

    def _retention_ratio(self, override: float | None) -> float:
        return self.config.retention_ratio if override is None else checked_setting("retention_ratio", override)

    # -----------------------------------------------------------------------------------------------------------------
    # The prompt
    # -----------------------------------------------------------------------------------------------------------------

    def _is_short(self, inputs: dict[str, Any], features: VidCom2VideoFeatures) -> bool:
        """Whether the prompt was shortened before: features are given, and each has its placeholder."""
        if inputs.get("pixel_values_videos") is not None:
            return False
        if features.video_compressions is None or inputs.get("input_ids") is None:  # a chunk of a chunked prefill
            return features.video_compressions is None
        return sum(map(len, features.pooler_output)) == self._video_placeholders(inputs["input_ids"]).sum()

    def _video_placeholders(self, input_ids: Tensor) -> Tensor:
        return input_ids == self.config.video_token_id

    def _kept(self, input_ids: Tensor, features: VidCom2VideoFeatures | None) -> Tensor:
        """(B, L) bool: False at the placeholders of dropped tokens.

        Raises:
            ValueError: if the placeholders of each prompt do not belong to whole videos.
        """
        kept = torch.ones_like(input_ids, dtype=torch.bool)
        if features is None:
            return kept
        is_video = self._video_placeholders(input_ids)
        indices, sizes = zip(*map(self.placeholders, features.video_compressions), strict=True)
        counts = is_video.sum(dim=1).tolist()
        if not _whole_videos(counts, sizes):
            raise ValueError(
                f"The prompts hold {counts} video placeholders (token {self.config.video_token_id}), but "
                f"`pixel_values_videos` holds videos of {list(sizes)}. Build both with the checkpoint's processor, "
                "and don't truncate the prompt."
            )
        stays = [
            torch.zeros(size, dtype=torch.bool, device=index.device).index_fill_(0, index, True)
            for index, size in zip(indices, sizes, strict=True)
        ]
        return kept.masked_scatter(is_video, torch.cat(stays).to(input_ids.device))

    def _padding_token(self, input_ids: Tensor, kept: Tensor) -> Tensor:
        """(B, 1): a text token of the same prompt. A pad token would be new to it, and `repetition_penalty` sees it."""
        special = torch.tensor([self.config.image_token_id, self.config.video_token_id], device=input_ids.device)
        is_text = kept & ~torch.isin(input_ids, special)
        first = is_text.to(torch.uint8).argmax(dim=1, keepdim=True)
        return input_ids.gather(1, first) * is_text.any(dim=1, keepdim=True)

    # -----------------------------------------------------------------------------------------------------------------
    # forward
    # -----------------------------------------------------------------------------------------------------------------

    @can_return_tuple
    def forward(self, retention_ratio: float | None = None, **inputs: Any) -> ModelOutput:
        """The parent's `forward` on the compressed prompt.

        Args:
            retention_ratio: fraction of the video tokens kept, in (0, 1]; the config's if None.
            **inputs: the parent's arguments.

        Returns:
            The parent's output over the L' remaining tokens, and `prompt_positions` (B, L') int64: the position in
            `input_ids` of each, -1 at padding; None if nothing was compressed. `labels` follow the tokens.

        Raises:
            ValueError: on settings, placeholders or inputs that cannot be compressed.
        """
        CachedPrompt.forget_if_empty(inputs)
        features = self._video_features(inputs, self._retention_ratio(retention_ratio))
        if features is None:
            inputs = self._continued(inputs)
        elif self._is_short(inputs, features):  # `generate` compressed the prompt before
            inputs["mm_encoder_outputs"] = inputs["mm_encoder_outputs"] | {"video": self._for_parent(features)}
        else:
            return self._forward_short(inputs, features)
        return self.output_class(**super().forward(**inputs, return_dict=True))

    def _continued(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """A step of a hand-written loop: mask and positions that fit the compressed prompt in its cache."""
        cache, mask = inputs.get("past_key_values"), inputs.get("attention_mask")
        cached = CachedPrompt.attached_to(cache)
        if inputs.get("position_ids") is None and (cache is None or (cached is None and cache.get_seq_length() == 0)):
            self.forget_positions()
        if cached is None or inputs.get("position_ids") is not None or (mask is not None and not is_2d(mask)):
            return inputs
        new = inputs["input_ids"] if inputs.get("input_ids") is not None else inputs["inputs_embeds"]
        length = cache.get_seq_length() + new.shape[1]
        if mask is None:
            mask = (cached.positions >= 0).long()
            mask = torch.cat([mask, mask.new_ones(len(mask), length - cached.length)], dim=1)
        elif mask.shape[1] != length:
            raise ValueError(
                f"`attention_mask` covers {mask.shape[1]} tokens, but the compressed prompt in `past_key_values` and "
                f"the new tokens are {length}. Leave it out, or begin it with `outputs.prompt_positions >= 0`."
            )
        position_ids = positions_by_order(mask)[:, -new.shape[1] :]
        if cached.position_offset is not None:
            position_ids = torch.stack([position_ids, *[position_ids + cached.position_offset] * 3])
        return inputs | {"attention_mask": mask, "position_ids": position_ids}

    def _forward_short(self, inputs: dict[str, Any], features: VidCom2VideoFeatures) -> ModelOutput:
        _check_compressible(inputs)
        input_ids = inputs["input_ids"]
        cached = CachedPrompt.of(inputs.get("past_key_values"), input_ids)
        mask = inputs.get("attention_mask")
        mask = input_ids.new_ones(len(input_ids), cached.length + input_ids.shape[1]) if mask is None else mask
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        if shape != (len(input_ids), cached.length + input_ids.shape[1]):
            raise ValueError(
                f"`attention_mask` is {shape}, but a compressed prompt needs ({len(input_ids)} prompts, "
                f"{cached.length} cached + {input_ids.shape[1]} new tokens). Pass a 2-D mask over these."
            )
        prompt = self._short_prompt(
            inputs | {"attention_mask": mask[:, cached.length :]}, cached, mask[:, : cached.length], features
        )
        encoded = {"video": self._for_parent(features)}
        if inputs.get("pixel_values") is not None:
            encoded["image"] = self._encode("image", inputs)
        short = without_token_types(inputs) | prompt.inputs | {"pixel_values": None, "pixel_values_videos": None}
        short["mm_encoder_outputs"] = (inputs.get("mm_encoder_outputs") or {}) | encoded
        if inputs.get("labels") is not None:
            # The first token follows nothing. With padding before it, the shifted loss would predict it from that.
            is_first = (prompt.positions >= 0).cumsum(dim=1) == 1
            labels = take(inputs["labels"], prompt.positions, IGNORED_LABEL)
            short["labels"] = labels.masked_fill(is_first, IGNORED_LABEL)

        outputs = super().forward(**short, return_dict=True)
        prompt.cached.attach_to(outputs.past_key_values)
        return self.output_class(**outputs, prompt_positions=prompt.positions)

    def _short_prompt(
        self,
        new: dict[str, Any],
        cached: CachedPrompt,
        cached_mask: Tensor,
        features: VidCom2VideoFeatures | None,
    ) -> ShortPrompt:
        """The new tokens of a prompt without the dropped ones.

        Args:
            new: the arguments of `forward` for the n new tokens, among them `input_ids` and a mask (B, n).
            cached: what is in the KV cache before them.
            cached_mask: (B, P) over the cached tokens.
        """
        input_ids = new["input_ids"]
        kept = new["attention_mask"].bool() & self._kept(input_ids, features)
        positions = remaining_positions(kept)
        mask = torch.cat([cached_mask, (positions >= 0).to(cached_mask.dtype)], dim=1)
        num_tokens = mask.sum(dim=1, keepdim=True)
        position_ids = positions_by_order(mask)[:, cached.length :]
        inputs = {"input_ids": take(input_ids, positions, self._padding_token(input_ids, kept)), "attention_mask": mask}
        extended = cached.extended(positions, input_ids.shape[1])
        start = cached_mask.sum(dim=1, keepdim=True) + self.position_offset(cached)
        rotary = self.rotary_positions(new, start)
        if rotary is not None:  # survivors keep their own (t, h, w), beside the order that attention masks look at
            extended.position_offset = rotary.amax(dim=(0, 2))[:, None] + 1 - num_tokens
            position_ids = torch.stack([position_ids, *(take(row, positions, 0) for row in rotary)])
        inputs["position_ids"] = position_ids
        return ShortPrompt(positions, inputs, extended)

    def _for_parent(self, features: VidCom2VideoFeatures) -> BaseModelOutputWithPooling:
        return BaseModelOutputWithPooling(pooler_output=self.features_for_parent(features.pooler_output))

    # -----------------------------------------------------------------------------------------------------------------
    # generate
    # -----------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(self, *args: Any, retention_ratio: float | None = None, **kwargs: Any) -> ModelOutput | Tensor:
        """The parent's `generate` on the compressed prompt.

        Takes the parent's arguments, and `retention_ratio` for this call. Sequences begin with the caller's full
        `input_ids`; streamers, logits processors, stopping criteria and length limits see the full prompt too. The
        KV cache holds the compressed one and remembers it, so that a returned `past_key_values` goes into the next
        turn together with the whole conversation as `input_ids`.

        Raises:
            ValueError: on settings, placeholders or inputs that cannot be compressed.
        """
        kwargs |= dict(zip(GENERATE_ARGUMENTS, args))
        inputs = kwargs.pop("inputs", None)
        if inputs is not None:
            kwargs.setdefault("input_ids", inputs)
        ratio = self._retention_ratio(retention_ratio)
        features = self._video_features(kwargs, ratio)
        cache = kwargs.get("past_key_values")
        has_short_cache = CachedPrompt.attached_to(cache) is not None
        if features is not None and self._is_short(kwargs, features):
            features = None  # the prompt of an outer `generate`, as in custom generation loops
        if features is None and not has_short_cache:
            if retention_ratio is not None:
                kwargs["retention_ratio"] = ratio
            return super().generate(**kwargs)
        if features is None and kwargs.get("pixel_values_videos") is not None:  # retention_ratio=1.0 after a short turn
            features = self._encode("video", kwargs, retention_ratio=ratio)
        return self._generate_short(kwargs, features)

    def _generate_short(self, kwargs: dict[str, Any], features: VidCom2VideoFeatures | None) -> ModelOutput | Tensor:
        _check_compressible(kwargs)
        input_ids = kwargs["input_ids"]
        mask = kwargs.get("attention_mask")
        mask = self._mask_of_padding(kwargs) if mask is None else mask
        cached = CachedPrompt.of(kwargs.get("past_key_values"), input_ids)
        if mask.shape != input_ids.shape or input_ids.shape[1] <= cached.prompt_length:
            raise ValueError(
                f"`input_ids` {tuple(input_ids.shape)} and `attention_mask` {tuple(mask.shape)} must both cover the "
                f"whole conversation, the {cached.prompt_length} tokens of `past_key_values` and at least one more."
            )
        new = kwargs | {
            name: value[:, cached.prompt_length :]
            for name, value in {**kwargs, "attention_mask": mask}.items()
            if name in {"input_ids", "attention_mask"} | TOKEN_TYPES and value is not None
        }
        prompt = self._short_prompt(new, cached, take(mask, cached.positions, 0), features)
        if self._generation_setting(kwargs, "prefill_chunk_size") is not None and not CHUNKS_FEATURES:
            raise ValueError(
                "`prefill_chunk_size` with videos needs a newer Transformers, which splits video features into the "
                "chunks. Leave it out or upgrade."
            )
        if prompt.inputs["position_ids"].ndim == 3 and kwargs.get("assistant_model") is not None:
            raise ValueError(
                "`assistant_model` cannot follow the M-RoPE positions of a compressed prompt. Leave it out, or use "
                "`prompt_lookup_num_tokens`."
            )
        # `generate` takes the whole conversation and itself skips what is in the cache.
        short = without_token_types(kwargs) | {
            name: _after_cached(value, cached) for name, value in prompt.inputs.items()
        }
        padding = self._padding_token(new["input_ids"], new["attention_mask"].bool())
        short_ids = take(input_ids, prompt.cached.positions, padding)
        short |= {"input_ids": short_ids, "attention_mask": prompt.inputs["attention_mask"]}
        if features is not None:
            # A copy, since `generate` repeats the features in place for beams.
            short["mm_encoder_outputs"] = (kwargs.get("mm_encoder_outputs") or {}) | {"video": copy.copy(features)}
            short.pop("pixel_values_videos", None)
        self._count_lengths_from(short, input_ids.shape[1] - short_ids.shape[1], input_ids.shape[1])
        if self._generation_setting(short, "prompt_lookup_num_tokens") is not None:
            # Lookup proposes copies of the prompt. A placeholder among them would ask for a feature that is not there.
            suppressed = self._generation_setting(short, "suppress_tokens") or []
            short["suppress_tokens"] = [*suppressed, self.config.image_token_id, self.config.video_token_id]

        view = FullPromptView(input_ids, short_ids.shape[1])
        result = super().generate(**view.of_arguments(short))
        sequences = result if isinstance(result, Tensor) else result.sequences
        repeats = len(sequences) // len(input_ids)
        for cache in (kwargs.get("past_key_values"), getattr(result, "past_key_values", None)):
            prompt.cached.repeated(repeats).attach_to(cache)
        if isinstance(result, Tensor):
            return view.restore(result)
        result.sequences = view.restore(result.sequences)
        return result

    def _mask_of_padding(self, kwargs: dict[str, Any]) -> Tensor:
        """(B, L) 0 at pad tokens, as `generate` infers it when the caller passes no mask."""
        input_ids = kwargs["input_ids"]
        pad, eos = (self._generation_setting(kwargs, name) for name in ("pad_token_id", "eos_token_id"))
        if pad is None or pad in (eos if isinstance(eos, list) else [eos]):
            return torch.ones_like(input_ids)
        return (input_ids != pad).long()

    def _generation_setting(self, kwargs: dict[str, Any], name: str) -> Any:
        for source in (kwargs.get(name), kwargs.get("generation_config"), self.generation_config):
            value = getattr(source, name, None) if hasattr(source, "to_diff_dict") else source
            if value is not None:
                return value
        return None

    def _count_lengths_from(self, short: dict[str, Any], num_dropped: int, prompt_length: int) -> None:
        """Turn `max_length` and `min_length`, which count the caller's prompt, into lengths of the short sequence."""
        for name, new_tokens in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
            length = self._generation_setting(short, name)
            if length is None or self._generation_setting(short, new_tokens) is not None:
                continue
            if name == "max_length" and length <= prompt_length:
                raise ValueError(
                    f"`max_length` is {length}, but the prompt alone has {prompt_length} tokens. Increase it, or set "
                    "`max_new_tokens`."
                )
            if short.get(name) is None and short.get("generation_config") is not None:
                short["generation_config"] = copy.deepcopy(short["generation_config"])
                setattr(short["generation_config"], name, max(0, length - num_dropped))
            else:
                short[name] = max(0, length - num_dropped)


def without_token_types(inputs: dict[str, Any]) -> dict[str, Any]:
    """Token types serve to find positions, and those of a short prompt are known."""
    return {name: value for name, value in inputs.items() if name not in TOKEN_TYPES}


def _after_cached(value: Tensor, cached: CachedPrompt) -> Tensor:
    """(..., n) -> (..., P + n): zeros for the cached tokens, which nobody reads."""
    return torch.cat([value.new_zeros(*value.shape[:-1], cached.length), value], dim=-1)


# ---------------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------------


def _whole_videos(placeholders: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether consecutive videos of these sizes fill the prompts' placeholders, prompt by prompt."""
    remaining = list(sizes)
    for count in placeholders:
        while count > 0 and remaining:
            count -= remaining.pop(0)
        if count != 0:
            return False
    return not remaining


def is_2d(mask: Any) -> bool:
    """Whether it is a padding mask. `generate` prepares 4-D masks for static caches, one per kind of attention."""
    return isinstance(mask, Tensor) and mask.ndim == 2


def _check_compressible(inputs: dict[str, Any]) -> None:
    if inputs.get("inputs_embeds") is not None or inputs.get("input_ids") is None:
        raise ValueError(
            "`inputs_embeds` cannot be compressed: dropped tokens are found by their placeholders. Pass `input_ids` "
            "with the videos, or `retention_ratio=1.0`."
        )
    if inputs.get("position_ids") is not None:
        raise ValueError(
            "`position_ids` cannot be given for a prompt that is compressed: positions follow from the kept tokens. "
            "Leave it out, or pass `retention_ratio=1.0`."
        )
    if inputs.get("cache_implementation") == "paged":
        raise ValueError(
            '`cache_implementation="paged"` generates from token ids alone, without the videos. Leave it out.'
        )
