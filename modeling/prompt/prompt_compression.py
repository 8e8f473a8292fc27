"""What the inner models of all families share: video LLMs without a head, on prompts for the tokens that stay.

THE PROCESSOR SAYS HOW MANY, THE MODEL SAYS WHICH, and the stock class does the rest. A call comes with a prompt that
has a placeholder for each video token that stays (`processing_short_prompts.py`), or for every token, from a stock
processor. Either way, `prepared` encodes the videos, chooses, lays the prompt out and finds its positions. What it
returns is a call of the stock class.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.utils import logging
from transformers.utils.generic import ModelOutput, can_return_tuple

from ...configuration.compression_settings import NUM_KEPT, CompressionSettings, with_settings
from ..encoding.packed_attention import pack_attention
from ..encoding.video_features import VidCom2VideoFeatures, VideoFeaturesMixin
from ..hosting.in_transformers import (
    CACHE,
    check_not_exported,
    check_tensors,
    engine_of,
    is_2d,
    pop_settings,
    register_like,
    renamed_by_type,
    take_parents_signatures,
    with_prompt_extent,
    without,
    without_token_types,
)
from ..methods.compression import VideoCompression, on_device
from .calls import (
    DESCRIBING,
    IMAGE,
    MARK,
    MARKS,
    OF_STOCK_PROMPTS,
    PER_TOKEN,
    SOUND,
    TEXT,
    VIDEO,
    Call,
    Encode,
    Prepared,
    Prompt,
    Turn,
    has_media,
    is_prepared,
    is_step,
    name_of_tokens,
    refuse,
)
from .conversation_cache import Conversation, positions_by_order, using
from .prompt_layout import Layout, with_budgets, without_dropped

logger = logging.get_logger(__name__)
# In an engine, tokens stand at the positions that it counts, and the layers of the tower are not the parent's.
SERVED_BY_ENGINES = {"compression_positions": "consecutive", "vision_method": "full"}


class VidCom2ModelMixin(VideoFeaturesMixin):
    """Makes an inner model run on prompts for the tokens that stay. It comes before the parent's among a model's bases.

    docs/hooks.md lists all hooks.
    """

    uses_mrope = False  # Whether tokens have positions (t, h, w), beside their order.
    frames_stand_apart = False  # Whether each frame has its own group of placeholders in the prompt, behind its time.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        take_parents_signatures(cls, VidCom2ModelMixin, "forward")
        register_like(cls)

    def __init__(self, config: Any, *args: Any, **kwargs: Any):
        engine = engine_of(config)
        if engine is not None and (self.uses_mrope or self.frames_stand_apart):
            raise ValueError(
                f"{type(self).__name__} cannot run in the Transformers backend of {engine}, which asks the processor "
                "where each token stands: in this family that follows from the tokens that the model keeps. In vLLM, "
                "install `vidcom2` with its plugin, and leave `model_impl` out. docs/serving.md of that project says "
                "which families it serves."
            )
        for name, served in SERVED_BY_ENGINES.items() if engine is not None else ():
            if (value := getattr(config, name, served)) != served:
                raise ValueError(
                    f"`{name}` is {value!r}, but the Transformers backend of {engine} has positions and layers of its "
                    f"own, and serves only {served!r}. " + f"""Pass `--hf-overrides '{{"{name}": "{served}"}}'`."""
                )
        super().__init__(with_settings(config, self.config_class, {}), *args, **kwargs)
        pack_attention(self)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load the model without its head, as the parent does."""
        with renamed_by_type(cls):
            return super().from_pretrained(*args, **kwargs)

    # -----------------------------------------------------------------------------------------------------------------
    # What a family decides
    # -----------------------------------------------------------------------------------------------------------------

    def kinds(self, tokens: Tensor, inputs: dict[str, Any] | None = None) -> Tensor:
        """Return what each token stands for: `MARK`, `TEXT`, `IMAGE`, `VIDEO` or `SOUND`, (B, n) int32. Where a config
        has marks of videos, the placeholders of images between these stand for a video.

        In the ids that `distinct_ids` returns, each token must be found without those before it.

        Args:
            tokens: (B, n) ids or (B, n, dim) embeddings.
            inputs: the arguments of the call whose new tokens they are; None if they are others.
        """
        ids, sound = self.ids_of(tokens), getattr(self.config, "audio_token_id", None)
        kinds = torch.full_like(ids, TEXT, dtype=torch.int32)
        for kind, token in ((IMAGE, self.config.image_token_id), (VIDEO, video_id_of(self.config)), (SOUND, sound)):
            kinds = kinds if token is None else kinds.masked_fill(ids == token, kind)
        marks = [getattr(self.config, f"video_{name}_token_id", None) for name in ("start", "end")]
        if marks[0] is None:
            return kinds
        places, marked = torch.arange(ids.shape[-1], device=ids.device), [ids == mark for mark in marks]
        # where the last mark was, since a text may have an end without a beginning
        begun, ended = (places.where(mark, -1).cummax(dim=-1).values for mark in marked)
        return kinds.masked_fill((kinds == IMAGE) & (begun > ended), VIDEO).masked_fill(marked[0] | marked[1], MARK)

    def group_sizes(self, compressions: Sequence[VideoCompression], inputs: dict[str, Any]) -> Sequence[Sequence[int]]:
        """Return how many placeholders each group of each video has in the full prompt.

        Args:
            inputs: the arguments of the call.
        """
        if not self.frames_stand_apart:
            return [[each.num_placeholders] for each in compressions]
        return [each.placeholders_per_frame for each in compressions]

    def with_videos(self, inputs: dict[str, Any], settings: CompressionSettings) -> dict[str, Any]:
        """Return the arguments of `forward` or `generate`, with new tokens alone, with the pixels of videos in
        `pixel_values_videos`, where the family's stock processor passes them otherwise.

        Raises:
            ValueError: if it cannot be told which pixels are a video's.
        """
        return inputs

    def with_token_types(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of `forward` with the types that attention reads, where tokens of an image or a frame
        attend to each other."""
        return inputs

    def check_mask(self, mask: Tensor, num_cached: int) -> None:
        """Check a mask (B, P + n) over P cached and n new tokens, in families whose attention cannot hide any token."""

    def positions_of(self, turn: Turn) -> tuple[Tensor | None, Tensor]:
        """Return `position_ids` of the tokens that run, None if the parent's own are right, and the position of a text
        token after them (B, 1)."""
        attended, layout = turn.run, turn.layout
        if layout is not None and turn.prompt is not None and turn.spreads:
            full = on_device(layout.in_full(turn.prompt.attended, 1), attended.device)
            positions = positions_by_order(full).gather(1, layout.places.to(attended.device))
            return turn.start + positions, turn.start + full.sum(dim=1, keepdim=True)
        positions = turn.start + positions_by_order(attended) if turn.needs_positions else None
        return positions, turn.start + attended.sum(dim=1, keepdim=True)

    # -----------------------------------------------------------------------------------------------------------------
    # forward
    # -----------------------------------------------------------------------------------------------------------------

    @can_return_tuple
    def forward(self, only_features: str | None = None, **inputs: Any) -> ModelOutput:
        """Run the parent's `forward` on the tokens that stay.

        Hidden states have a row for each token of the caller's. In a prompt of a stock processor, a dropped token gets
        the row of the last token kept before it, from which the model predicts what follows. `attentions` cover the
        tokens that ran. `router_logits` of a mixture of experts have a row for each token of the caller's, too, since
        TRL's heads balance experts by them and the caller's mask.

        Args:
            **inputs: the parent's arguments, and the settings of `CompressionSettings` for this call.
            only_features: only encode the prompt's videos, and return the features of `"kept"` or `"all"` tokens, or
                those of its images (`"images"`). This goes through `forward` because accelerate and FSDP have a
                module's weights in place only there.

        Raises:
            ValueError: if settings, placeholders or other inputs do not fit.
        """
        if only_features is not None:
            return self._only_features(only_features, inputs)
        if is_step(inputs):
            with using(inputs.get(CACHE)):
                return super().forward(**inputs, return_dict=True)
        call, mask = self.prepared(inputs), inputs.get("attention_mask")
        with using(call.inputs.get(CACHE)):
            inputs = with_prompt_extent(self._with_features_for_parent(call.inputs), self.config.get_text_config())
            outputs: Any = super().forward(**inputs, return_dict=True)
        call.after.note_on(outputs.get(CACHE))
        if call.layout is not None:
            outputs.last_hidden_state = call.layout.of_caller(outputs.last_hidden_state)
            outputs.hidden_states = rows_of_layers(outputs.hidden_states, call.layout)
            if outputs.get("router_logits") is not None:
                outputs.router_logits = tuple(call.layout.spread(each, mask) for each in outputs.router_logits)
        return outputs

    def _only_features(self, which: str, inputs: dict[str, Any]) -> Any:
        overrides = pop_settings(inputs, self.of_parent)
        if which == "images":
            return self._encode(self.get_image_features, inputs)
        if which == "kept":
            return self._encode(self.get_video_features, inputs, **overrides).without_tower_states()
        return _ready(self._encode_whole(inputs, self.config.compression_settings(**overrides)))

    def _with_features_for_parent(self, inputs: dict[str, Any]) -> dict[str, Any]:
        encoded = inputs.get("mm_encoder_outputs") or {}
        if not isinstance(encoded.get("video"), VidCom2VideoFeatures):
            return inputs
        return inputs | {"mm_encoder_outputs": encoded | {"video": self._for_parent(encoded["video"])}}

    # -----------------------------------------------------------------------------------------------------------------
    # A call of the stock class
    # -----------------------------------------------------------------------------------------------------------------

    def prepared(
        self, inputs: dict[str, Any], encode: Encode | None = None, has_whole_conversation: bool = False
    ) -> Prepared:
        """Encode the videos of a call, choose the tokens that stay, lay the prompt out and find its positions.

        Args:
            inputs: the arguments of `forward` or `generate`.
            encode: encodes videos or images, with the arguments of `_only_features`, which is the default.
            has_whole_conversation: whether `input_ids` also cover the tokens in the KV cache, as in `generate`.

        Raises:
            ValueError: on a setting outside its accepted set, and if videos, placeholders, mask or cache do not fit.
        """
        if not has_whole_conversation and is_prepared(inputs):
            return self._already_prepared(inputs)
        call = self._call_of(inputs, encode or self._only_features, has_whole_conversation)
        features, layout = self._chosen(call), None
        if features is not None:
            _check_2d(call.caller_mask)
        else:  # All tokens stay.
            call = replace(call, inputs=self._with_all_features(call))
            if call.inputs.get("position_ids") is not None:
                return self._at_given_positions(call)
        may_spread = call.settings.may_drop or features is not None
        spreads = may_spread and not self.uses_mrope and call.settings.compression_positions == "original"
        self._check_known(call, spreads)
        if call.tokens.shape[1] > 1:  # For a single one, a step of a custom loop, nothing is read from the device.
            self._check_videos_given(call)
        if has_media(call.inputs) or spreads:
            call = replace(call, before=replace(call.before, is_known=True))
        if features is None and not self.uses_mrope and call.before.is_stock:
            return self._at_stock_positions(call)
        if features is not None:
            call, layout = self._laid_out(call, features)
        return self._at_own_positions(call, layout, spreads)

    def _call_of(self, inputs: dict[str, Any], encode: Encode, has_whole_conversation: bool) -> Call:
        """Return the call that these arguments make, and copy to the host what must be known there, before the tower
        runs. Raises what `prepared` does."""
        inputs = dict(inputs)
        if has_media(inputs):
            check_tensors(inputs)
        overrides = pop_settings(inputs, self.of_parent)
        settings = self.config.compression_settings(**overrides)
        name = name_of_tokens(inputs)
        before, past = Conversation.of(inputs.get(CACHE), len(inputs[name])), None
        if has_whole_conversation:
            past, inputs[name] = inputs[name].tensor_split([before.caller_length], dim=1)
        inputs = self.with_videos(inputs, settings)
        tokens, prompt = inputs[name], None
        if inputs.get("pixel_values_videos") is not None and (settings.may_drop or inputs.get(NUM_KEPT) is not None):
            check_not_exported()
        has_positions_to_find = self.uses_mrope and tokens.shape[1] > 1 and inputs.get("position_ids") is None
        if has_media(inputs) or has_positions_to_find:
            prompt = self.prompt_of(tokens, inputs, before)
        if has_whole_conversation and self.uses_mrope and name == "input_ids":
            self._check_ends_in_text(tokens, prompt)
        return Call(inputs, tokens, inputs.get("attention_mask"), settings, overrides, before, past, prompt, encode)

    def prompt_of(self, tokens: Tensor, inputs: dict[str, Any], before: Conversation | None = None) -> Prompt:
        """Return what the host must know of the new tokens of a call.

        Args:
            tokens: (B, n) ids or (B, n, dim) embeddings.
            before: what the KV cache holds; None if that does not matter.
        """
        given = {name: inputs.get(name) for name in (*DESCRIBING, *PER_TOKEN)}
        described = {name: each.cpu() if isinstance(each, Tensor) else each for name, each in given.items()}
        ids, mask = self.ids_of(tokens).cpu(), inputs.get("attention_mask")
        attended, past, start = torch.ones_like(ids, dtype=torch.bool), None, 0
        if is_2d(mask) and mask.shape[1] >= ids.shape[1]:  # Another one is refused later.
            attended = mask[:, mask.shape[1] - ids.shape[1] :].cpu().bool()
        covers = not is_2d(mask) or (before is not None and mask.shape[1] == before.caller_length + ids.shape[1])
        if before is not None and covers and inputs.get("position_ids") is None:
            past = attended[:, :0]
            if before.length:
                past, _ = before.masks(mask if is_2d(mask) else None, tokens)
                past, start = past.cpu(), int(before.start(past).max())
        return Prompt(ids, self.kinds(ids, inputs | described), attended, described, past, start)

    # --- Which tokens stay

    def _check_ends_in_text(self, tokens: Tensor, prompt: Prompt | None) -> None:
        """Check that no prompt ends in a placeholder, behind which Transformers would count the answer's positions.

        Raises:
            ValueError: if one does.
        """
        if prompt is None:
            ends = self.kinds(tokens[:, -1:]) if tokens.ndim == 2 else None
        else:
            ends = prompt.kinds.gather(1, prompt.attended.cumsum(dim=1).argmax(dim=1, keepdim=True))
        if ends is not None and (ends > TEXT).any():
            raise ValueError(
                "A prompt ends in a placeholder of an image or a video, and Transformers would count the positions of "
                "the answer from it. End the prompt with text, as chat templates do."
            )

    def _check_videos_given(self, call: Call) -> None:
        """Check that new placeholders of videos come with a video. The parents would read them as text. Embeddings
        beside ids, and those that an engine passes, hold the features already.

        Raises:
            ValueError: if no video is given for them.
        """
        inputs, prompt = call.inputs, call.prompt
        encoded = (inputs.get("mm_encoder_outputs") or {}).get("video")
        has_both = inputs.get("input_ids") is not None and inputs.get("inputs_embeds") is not None
        if inputs.get("pixel_values_videos") is not None or encoded is not None or has_both:
            return
        if engine_of(self.config) is not None:
            return
        # Token types may be those of an earlier turn, so they count only at placeholders.
        tokens = call.tokens
        kinds, ids = (self.kinds(tokens, inputs), tokens) if prompt is None else (prompt.kinds, prompt.ids)
        is_video = (kinds == VIDEO) & (self.kinds(ids) > TEXT)
        if is_video.any():
            raise ValueError(
                f"The prompts have {is_video.sum(dim=1).tolist()} placeholders of videos, but no video is passed. Pass "
                "all that the processor returned, such as `pixel_values_videos`, the output of `get_video_features` in "
                "`mm_encoder_outputs`, or the KV cache that holds the videos of earlier turns."
            )

    def _chosen(self, call: Call) -> VidCom2VideoFeatures | None:
        """Return the features of a call's videos if the prompt must be laid out for them; None if all tokens stay."""
        inputs, settings = call.inputs, call.settings
        given, asked = (inputs.get("mm_encoder_outputs") or {}).get("video"), inputs.get(NUM_KEPT)
        if inputs.get("pixel_values_videos") is None:
            return None if given is None else _checked(given, asked, settings, call.overrides)
        if given is not None:
            raise ValueError(
                "`pixel_values_videos` and `mm_encoder_outputs['video']` both hold the prompt's videos. Pass one."
            )
        if asked is None and not self._drops_tokens(inputs, settings):
            return None
        return call.encode("kept", inputs | call.overrides)

    def _drops_tokens(self, inputs: dict[str, Any], settings: CompressionSettings) -> bool:
        """Return whether the videos of a prompt with a placeholder for every token lose any."""
        if settings.retention_ratio < 1.0 or not settings.may_drop:
            return settings.may_drop
        return any(map(settings.drops_of, self.video_sizes(**inputs)))

    def _with_all_features(self, call: Call) -> dict[str, Any]:
        """Return a call's arguments with features of all tokens in place of pixels. Given pixels, the parent would call
        our `get_video_features`, which drops tokens."""
        inputs, prompt = call.inputs, call.prompt
        features: Any = (inputs.get("mm_encoder_outputs") or {}).get("video")
        if inputs.get("pixel_values_videos") is not None:
            inputs = self.with_features(inputs, call.encode("all", inputs | call.overrides))
        elif features is None:
            return inputs
        elif not isinstance(features, VidCom2VideoFeatures) or features.video_compressions is not None:
            # They are the stock class's, or of a budget that dropped nothing.
            ready = _ready(features)
            whole = self.with_placeholders(ready.pooler_output, inputs)
            inputs = self.with_features(inputs, replace(ready, pooler_output=whole))
        ids = inputs.get("input_ids")
        if ids is None or prompt is None:
            return inputs
        return inputs | {"input_ids": on_device(self.distinct_ids(prompt.ids, prompt.kinds), ids.device)}

    def with_features(self, inputs: dict[str, Any], features: VidCom2VideoFeatures) -> dict[str, Any]:
        """Return a call's arguments with features that fit the prompt in place of videos."""
        encoded = (inputs.get("mm_encoder_outputs") or {}) | {"video": features}
        return without(inputs, ("pixel_values_videos", NUM_KEPT, *self.video_arguments)) | {
            "mm_encoder_outputs": encoded
        }

    def _with_images_encoded(self, inputs: dict[str, Any], call: Call) -> dict[str, Any]:
        """Return a call's arguments with features of images in place of their pixels, if there are videos beside, and
        if it is one of `forward`: `generate` encodes images by itself."""
        encoded = inputs.get("mm_encoder_outputs") or {}
        if call.is_of_generate or inputs.get("pixel_values") is None or encoded.get("video") is None:
            return inputs
        return inputs | {"pixel_values": None, "mm_encoder_outputs": encoded | {"image": call.encode("images", inputs)}}

    # --- Where they stand

    def _laid_out(self, call: Call, features: VidCom2VideoFeatures) -> tuple[Call, Layout]:
        """Lay out the new tokens of a call, and put the features of its videos in their place.

        Raises:
            ValueError: if the placeholders do not fit the videos, or the mask hides some.
        """
        inputs, prompt, tokens = call.inputs, call.prompt, call.tokens
        assert prompt is not None  # A call with features has media.
        name, compressions, attended = name_of_tokens(inputs), features.video_compressions, prompt.attended
        num_new, is_video = tokens.shape[1], prompt.kinds == VIDEO
        _check_attended(prompt.kinds, attended)
        kept = [each.placeholders.to(tokens.device) for each in compressions]
        padding: Any = 0
        if inputs.get(NUM_KEPT) is not None:
            sizes = self.group_sizes(compressions, inputs | prompt.described)
            layout = with_budgets(attended, is_video, list(zip(sizes, kept, strict=True)))
        else:
            refuse(OF_STOCK_PROMPTS, inputs.get)
            stays = [(each.num_placeholders, places) for each, places in zip(compressions, kept)]
            layout = without_dropped(attended, is_video, stays)
            if name == "input_ids":
                # A pad token would be new to the prompt, and `repetition_penalty` would see it. A mark would change
                # what other tokens stand for.
                is_text = attended & (prompt.kinds == TEXT)
                padding = prompt.ids.gather(1, is_text.int().argmax(dim=1, keepdim=True))
                padding = on_device(padding, tokens.device)
        if name == "input_ids":
            tokens = on_device(self.distinct_ids(prompt.ids, prompt.kinds), tokens.device)
        moved = {}
        for each in PER_TOKEN:
            if inputs.get(each) is None:
                continue
            values = torch.as_tensor(inputs[each], device=tokens.device)
            missing = num_new - values.shape[1]
            if missing > 0 and not call.before.length:
                raise ValueError(
                    f"`{each}` is {tuple(values.shape)}, but there are {num_new} new tokens. Pass what the processor "
                    "returns."
                )
            # Earlier turns are left out. The tokens before those of this turn are the end of the last answer.
            moved[each] = layout.laid_out(nn.functional.pad(values, (missing, 0)))
        inputs = self.with_features(inputs, _ready(features)) | {name: layout.laid_out(tokens, padding)} | moved
        return replace(call, inputs=inputs), layout

    def distinct_ids(self, input_ids: Tensor, kinds: Tensor) -> Tensor:
        """Return ids in which the placeholders of images and videos differ by their id alone. Transformers finds them
        by `config.image_token_id` and `config.video_token_id` when it repeats features, or splits them into chunks."""
        return input_ids.masked_fill(kinds == VIDEO, video_id_of(self.config))

    def stock_ids(self, input_ids: Tensor) -> Tensor:
        """Return the ids of the stock class's prompts, from those that `distinct_ids` returned. Logits processors,
        stopping criteria and custom loops of `generate` see these."""
        return input_ids

    def ids_of(self, tokens: Tensor) -> Tensor:
        """Return ids (B, n); those of embeddings (B, n, dim) only tell images and videos from text."""
        if tokens.ndim == 2:
            return tokens
        ids = tokens.new_zeros(tokens.shape[:2], dtype=torch.int64)
        named = (getattr(self.config, name, None) for name in MARKS)
        for mark in (each for each in named if each is not None):
            embedding: Tensor = cast(Any, self.get_input_embeddings())(ids.new_tensor(mark))
            ids = ids.masked_fill((tokens == embedding).all(dim=-1), mark)
        return ids

    # --- At which positions

    def _at_given_positions(self, call: Call) -> Prepared:
        """Return a call whose positions are given: by `generate`, or by the caller."""
        inputs, before, num_new = call.inputs, call.before, call.tokens.shape[1]
        if call.is_of_generate:
            self._check_videos_given(call)
        if call.caller_mask is None and before.order is not None:
            inputs = inputs | {"attention_mask": torch.cat(before.masks(None, call.tokens), dim=1)}
        elif is_2d(call.caller_mask) and num_new > 1:  # For a step, nothing is read from the device.
            self.check_mask(call.caller_mask, before.length)
        return Prepared(self.with_token_types(inputs), None, before.later(num_new))

    def _at_stock_positions(self, call: Call) -> Prepared:
        """Return a call whose tokens all stay, where the stock class finds their positions by itself."""
        if is_2d(call.caller_mask):
            self.check_mask(call.caller_mask, call.before.length)
        self.warn_of_length(call.before.length + call.tokens.shape[1] - 1)
        inputs = self._with_images_encoded(call.inputs, call)
        return Prepared(self.with_token_types(inputs), None, call.before.later(call.tokens.shape[1]))

    def _at_own_positions(self, call: Call, layout: Layout | None, spreads: bool) -> Prepared:
        """Return a call with positions, and with what the KV cache must know of them. `layout` and `spreads` are as in
        `Turn`."""
        before, given, prompt = call.before, call.caller_mask, call.prompt
        past, attended = before.masks(given if is_2d(given) else None, call.tokens)
        run = attended if layout is None else layout.laid_out(attended)
        mask, start = torch.cat([past, run], dim=1), before.start(past)
        turn = Turn(**vars(call), layout=layout, attended=attended, mask=mask, start=start, spreads=spreads)
        if prompt is None or prompt.past is None:
            self.check_mask(turn.mask, before.length)
        else:  # The host knows what may be hidden.
            of_new = prompt.attended if layout is None or layout.mask is None else layout.mask
            self.check_mask(torch.cat([prompt.past, of_new], dim=1), before.length)
        if not self.uses_mrope:  # In the others, positions are computed on the host.
            self.warn_of_length(turn.last_position)
        positions, following = self.positions_of(turn)
        inputs = self.with_token_types(turn.inputs) if positions is None else self._positioned(positions, turn)
        if is_2d(given) or (layout is not None and layout.pads) or (given is None and before.order is not None):
            inputs = inputs | {"attention_mask": turn.mask}
        return Prepared(self._with_images_encoded(inputs, call), layout, self._after(turn, following))

    def _after(self, turn: Turn, following: Tensor) -> Conversation:
        """Return what the KV cache will hold after a call. Text after it is at the position `following` (B, 1)."""
        before, layout = turn.before, turn.layout
        after = before.later(turn.tokens.shape[1], layout if turn.differs else None)
        if self.uses_mrope or before.offset is not None or (turn.spreads and layout is not None):
            after = replace(after, is_known=True, offset=following - turn.mask.sum(dim=1, keepdim=True))
        if after.offset is None and (layout is None or not layout.moves):
            return after
        kinds = self.kinds(turn.tokens, turn.inputs) if turn.prompt is None else turn.prompt.kinds
        # The last placeholder keeps its place, since a video has as many, however they are shared among frames.
        for last in (kinds > TEXT).any(dim=0).nonzero().flatten()[-1:].tolist():
            after = replace(after, least=after.length if turn.differs else before.length + last + 1, previous=before)
        return after

    def _already_prepared(self, inputs: dict[str, Any]) -> Prepared:
        """Return a call that the head has prepared already, in `generate` or in `forward`. Nothing is read from the
        device. The tokens may be in stock ids, which logits processors and the like were shown."""
        inputs = dict(inputs)
        check_tensors(inputs)
        self.config.compression_settings(**pop_settings(inputs, self.of_parent))
        ids, tokens = inputs.get("input_ids"), inputs[name_of_tokens(inputs)]
        if ids is not None and type(self).stock_ids is not VidCom2ModelMixin.stock_ids:
            inputs["input_ids"] = self.distinct_ids(ids, self.kinds(ids))
        before = Conversation.of(inputs.get(CACHE), len(tokens))
        if inputs.get("attention_mask") is None and before.order is not None:
            inputs["attention_mask"] = torch.cat(before.masks(None, tokens), dim=1)
        return Prepared(self.with_token_types(inputs), None, before.later(tokens.shape[1]))

    def _positioned(self, positions: Tensor, turn: Turn) -> dict[str, Any]:
        """Return a call's arguments with positions, and with token types only where attention reads them."""
        inputs, layout = turn.inputs, turn.layout
        given = inputs.get("position_ids")
        if given is not None and layout is not None:  # the caller's, of the caller's tokens
            # The order of the tokens, alone or before (t, h, w), stays; (t, h, w) are those of the tokens.
            num_of_order = {2: 1, 3: given.shape[0] - 3}[given.ndim]
            of_axes = given.view(-1, *given.shape[-2:])
            moved = [layout.laid_out(each) for each in of_axes[num_of_order:]]
            positions = torch.stack([*of_axes[:num_of_order], *moved]).view(given.shape)
        typed = self.with_token_types(inputs)
        return (without_token_types(inputs) if typed is inputs else typed) | {"position_ids": positions}

    def _check_known(self, call: Call, spreads: bool) -> None:
        """Check that it is known what the KV cache holds, if the call depends on that, as it does if it `spreads` its
        tokens.

        Raises:
            ValueError: if it is not.
        """
        before, past, settings = call.before, call.past_tokens, call.settings
        if before.is_known or not before.length:
            return
        if past is None:
            matters = self.uses_mrope or spreads
        else:
            kinds = self.kinds(past)
            may_be_videos = kinds > TEXT if video_id_of(self.config) < 0 else kinds == VIDEO
            matters = bool((kinds > TEXT if self.uses_mrope else may_be_videos & settings.may_drop).any())
        if matters:
            raise ValueError(
                f"The KV cache holds {before.length} tokens, and it is not known where their positions end, or whether "
                "the model shortened their prompt: another model filled it, this one did before `vidcom2.apply`, or it "
                "was rebuilt from keys and values. Pass the cache that this model's `generate` or `forward` filled, "
                "or start over without it. To continue without knowing, pass `retention_ratio=1.0` to `generate` where "
                "positions are the order of the tokens, or `position_ids` to `forward`."
            )

    def warn_of_length(self, last: int) -> None:
        """Warn if the last position of a prompt is one that the language model was not made for."""
        limit = positions_made_for(self.config.get_text_config())
        if limit is not None and last >= limit:
            logger.warning_once(
                f"The prompt reaches position {last}, but the language model was made for {limit} positions "
                "(`max_position_embeddings` and its scaling), so its answer may be poor. Pass fewer frames or a "
                "smaller `retention_ratio`."
            )


def _check_2d(mask: Any) -> None:
    if mask is not None and not is_2d(mask):
        shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"`attention_mask` is {shape}, but videos are among the tokens. Pass a 2-D mask.")


def _ready(features: Any) -> VidCom2VideoFeatures:
    """Return features that fit a prompt, one (tokens, dim) entry for each video. Some parents keep frames apart."""
    videos = tuple(video.flatten(0, -2) for video in features.pooler_output)
    return VidCom2VideoFeatures(pooler_output=videos, deepstack_features=getattr(features, "deepstack_features", None))


def video_id_of(config: Any) -> int:
    """Return the id of a video's placeholders; -1, which no token of a prompt has, if it is that of images, too."""
    return -1 if config.video_token_id in (None, config.image_token_id) else config.video_token_id


def positions_made_for(text_config: Any) -> int | None:
    """Return how many positions a language model was made for; None if its config does not say.

    Rotary positions that are scaled by a factor, as in LLaVA-NeXT-Video-7B, reach that many times further than
    `max_position_embeddings`.
    """
    limit = getattr(text_config, "max_position_embeddings", None)
    rope = getattr(text_config, "rope_parameters", None) or {}
    if limit is not None and rope.get("rope_type") in ("linear", "dynamic"):
        return int(limit * rope["factor"])
    return limit


def rows_of_layers(layers: Sequence[Tensor | None] | None, layout: Layout) -> tuple[Tensor | None, ...] | None:
    """Return rows of each layer for the caller's tokens; a layer that was not asked for is None and stays so."""
    return None if layers is None else tuple(None if each is None else layout.of_caller(each) for each in layers)


def _checked(
    features: Any, asked: Any, settings: CompressionSettings, overrides: dict[str, Any]
) -> VidCom2VideoFeatures | None:
    """Return features that were encoded before the call, if tokens were chosen; None if they fit the prompt as it is.

    Args:
        asked: `num_kept_video_tokens` of the prompt, if its processor returned it.

    Raises:
        ValueError: if features of all tokens are given although some are to be dropped, if settings are passed beside
            features that were compressed before, or if these keep another number than the prompt has room for.
    """
    compressions = getattr(features, "video_compressions", None)
    kept = None if compressions is None else [len(each.indices) for each in compressions]
    if asked is not None and kept != (numbers := torch.as_tensor(asked).flatten().tolist()):
        raise ValueError(
            f"`mm_encoder_outputs['video']` keeps {'all' if kept is None else kept} tokens of the videos, but "
            f"`{NUM_KEPT}` is {numbers}. Pass the output of this model's `get_video_features` with the same number, "
            "or the pixels."
        )
    if compressions is None:
        if not isinstance(features, VidCom2VideoFeatures) and settings.may_drop:
            name = "retention_ratio" if settings.retention_ratio < 1.0 else "max_video_tokens"
            raise ValueError(
                f"`mm_encoder_outputs['video']` is a {type(features).__name__} of uncompressed features, but "
                f"`{name}` is {getattr(settings, name)}. Pass `pixel_values_videos`, the output of this model's "
                "`get_video_features`, or `retention_ratio=1.0` without a budget."
            )
        return None
    for name in overrides:
        if name != "compression_positions":
            raise ValueError(
                f"`{name}` is {overrides[name]!r} for this call, but `mm_encoder_outputs['video']` was encoded before "
                "it. Pass the setting to `get_video_features`, or `pixel_values_videos` in place of the features."
            )
    keeps_all = all(len(each.indices) == each.num_tokens for each in compressions)
    return None if keeps_all and asked is None else features


def _check_attended(kinds: Tensor, attended: Tensor) -> None:
    """Check that the mask hides no placeholder. Those of dropped tokens count too, since positions (t, h, w) are
    computed with them."""
    num_hidden = int(((kinds > TEXT) & ~attended).sum())
    if num_hidden:
        raise ValueError(
            f"`attention_mask` hides {num_hidden} placeholders of videos, images or sound. Leave what they stand "
            "for out of the prompt; if the mask hides a whole prompt, leave that out of the batch."
        )
