"""The models with a head of all families: loss, logits and `generate` on the compressed prompt.

forward   takes the compressed prompt's hidden states from the inner model; labels follow the tokens;
generate  compresses, calls the parent's `generate`, and puts the caller's full prompt back in front.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin
from transformers.generation import utils as generation_utils
from transformers.utils.generic import ModelOutput, can_return_tuple

from ..configuration.compression_settings import SETTING_NAMES, CompressionSettings, with_settings
from ..configuration.saved_with_code import SavedWithCode
from .call_arguments import (
    check_compressible,
    check_features_fit,
    pop_settings,
    take_parents_signatures,
    wants_some_rows,
    without_token_types,
)
from .conversation_cache import CachedPrompt
from .full_prompt_view import FullPromptView, view_of
from .parent_classes import ParentModelWithHead
from .prompt_compression import PromptRecord, VidCom2ModelMixin
from .prompt_positions import IGNORED_LABEL, ShortPrompt, labels_at, positions_by_order, take
from .registration import register_like
from .video_features import VidCom2VideoFeatures

CHUNKS_FEATURES = hasattr(generation_utils, "_slice_mm_encoder_output")  # not in Transformers 5.19
GENERATE_ARGUMENTS = tuple(inspect.signature(vars(GenerationMixin)["generate"]).parameters)[1:]


class VidCom2GenerationMixin(SavedWithCode, ParentModelWithHead):
    """Comes before the parent class in the bases of a model with a head. A family says:

    - `inner_class`, its `VidCom2ModelMixin` around the parent's inner model;
    - `output_class`, the parent's output with a `prompt_positions` field;
    - `config`, its config.
    """

    inner_class: type[VidCom2ModelMixin]
    output_class: type[Any]  # a dataclass
    hides_mask_from_head = False  # the parent's head does not get the mask, which is the caller's, over the full prompt
    model: VidCom2ModelMixin
    get_video_features: Callable[..., VidCom2VideoFeatures]  # the parent's, which asks the inner model

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        take_parents_signatures(cls, VidCom2GenerationMixin, "forward")
        register_like(cls)

    def __init__(self, config: Any, *args: Any, **settings: Any):
        """
        Args:
            config: the family's, or the stock class's, which gets the default settings.
            **settings: replace those of the config; `from_pretrained(..., config=config, ...)` passes them here.

        Raises:
            ValueError: if `config` is another family's, or a setting is outside its accepted set.
        """
        super().__init__(with_settings(config, self.config_class, pop_settings(settings)), *args, **settings)
        # The parent has built its own inner model. Ours has other methods and the same weights.
        self.model.__class__ = self.inner_class

    # -----------------------------------------------------------------------------------------------------------------
    # forward
    # -----------------------------------------------------------------------------------------------------------------

    @can_return_tuple
    def forward(self, labels: Tensor | None = None, logits_to_keep: int | Tensor = 0, **inputs: Any) -> ModelOutput:
        """The parent's `forward` on the compressed prompt.

        Logits have the parent's shape, a row for each position of `input_ids` or of those that `logits_to_keep` names:
        at a dropped token the row is that of the last token kept before it. In training with `labels`, where nobody
        needs these, there are only the L' rows of the compressed prompt, padded on the left. In both cases the loss is
        over the labels of the kept tokens. The KV cache holds the compressed prompt and remembers it.

        Args:
            labels, logits_to_keep: as the parent's, over the caller's prompt.
            **inputs: the parent's arguments, and the settings of `CompressionSettings` for this call.

        Returns:
            The parent's output, and `prompt_positions`, int64 with an entry for each row of the logits: the position in
            `input_ids` of the token that it belongs to, -1 at padding; None if nothing was compressed. `attentions`
            are those of the compressed prompt.

        Raises:
            ValueError: on settings, placeholders, labels or inputs that cannot be compressed.
        """
        self._share_config()
        if not self.model.changes_prompt(inputs):
            return self._output(
                super().forward(**inputs, labels=labels, logits_to_keep=logits_to_keep, return_dict=True)
            )
        loss_arguments = {name: inputs.pop(name, None) for name in ("shift_labels", "num_items_in_batch")}
        check_compressible(inputs)
        if labels is not None:
            _check_labels(labels, inputs["input_ids"], loss_arguments["shift_labels"], logits_to_keep)
        record = PromptRecord(logits_to_keep)
        if self.hides_mask_from_head:
            record.attention_mask = inputs.pop("attention_mask", None)
        outputs = super().forward(**inputs, prompt_record=record, return_dict=True)
        prompt = record.prompt
        if labels is not None:
            outputs.loss = self._loss(outputs.logits, prompt, labels, **loss_arguments)
        self._balance_experts(outputs, prompt)
        if labels is not None and self.training:
            return self._output(outputs, prompt.positions)
        positions = prompt.at_positions(prompt.positions, logits_to_keep, before_first=-1)
        if wants_some_rows(logits_to_keep):  # the inner model has picked them
            outputs.logits = outputs.logits.view(*positions.shape, -1)
        else:
            outputs.logits = prompt.at_positions(outputs.logits)
        if outputs.hidden_states is not None:
            outputs.hidden_states = prompt.of_layers(outputs.hidden_states)
        return self._output(outputs, positions)

    def _balance_experts(self, outputs: Any, prompt: ShortPrompt) -> None:
        """In a mixture of experts: the loss that keeps these equally busy, in the outputs and added to their loss."""

    def _output(self, outputs: ModelOutput, prompt_positions: Tensor | None = None) -> ModelOutput:
        known = self.output_class.__dataclass_fields__.keys()
        output = self.output_class(**{name: outputs[name] for name in outputs if name in known})
        for name in outputs.keys() - known:  # of a parent `forward` that another library replaced
            output[name] = outputs[name]
        if prompt_positions is not None:
            output.prompt_positions = prompt_positions
        return output

    def _loss(
        self,
        logits: Tensor,
        prompt: ShortPrompt,
        labels: Tensor,
        shift_labels: Tensor | None,
        num_items_in_batch: Any,
    ) -> Tensor:
        """The model's own loss over the labels of the compressed prompt's tokens."""
        if shift_labels is not None:  # the label of each position's next token
            labels = torch.cat([torch.full_like(shift_labels[:, :1], IGNORED_LABEL), shift_labels[:, :-1]], dim=1)
        # The first token follows nothing. With padding before it, the shifted loss would predict it from that.
        is_first = (prompt.positions >= 0).cumsum(dim=1) == 1
        short = labels_at(labels, prompt.positions).masked_fill(is_first, IGNORED_LABEL)
        arguments = {}
        if shift_labels is not None:
            arguments["shift_labels"] = torch.cat([short[:, 1:], shift_labels[:, -1:]], dim=1)
        if num_items_in_batch is not None:
            given, left = ((each[:, 1:] != IGNORED_LABEL).sum() for each in (labels, short))
            if given == left:
                arguments["num_items_in_batch"] = num_items_in_batch
            elif (torch.as_tensor(num_items_in_batch).to(given.device) != given).any():
                # With a number of these labels alone the loss is the mean over what is left of them. Of other batches
                # that were counted too, nobody knows here how many are left.
                raise ValueError(
                    f"`num_items_in_batch` counts labels of several batches or devices, among them the {int(given)} "
                    f"labels of this one's full prompts, of which the compressed ones have {int(left)} left. Set the "
                    f"labels of video placeholders and of each prompt's first token to {IGNORED_LABEL} in the data "
                    "collator. Or set `model.accepts_loss_kwargs = False` before the `Trainer` is made: it then takes "
                    "the mean of the batches' losses, whatever their numbers of labels."
                )
        vocab_size = self.config.get_text_config().vocab_size
        return self.loss_function(logits=logits, labels=short, vocab_size=vocab_size, **arguments)

    # -----------------------------------------------------------------------------------------------------------------
    # generate
    # -----------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(self, *args: Any, **kwargs: Any) -> ModelOutput | Tensor:
        """The parent's `generate` on the compressed prompt.

        Takes the parent's arguments, and the settings of `CompressionSettings` for this call. Sequences begin with the
        caller's full `input_ids`; streamers, logits processors, stopping criteria and length limits, the caller's and
        those that `generate` makes, see the full prompt too. The KV cache holds the compressed one and remembers it,
        so that a returned `past_key_values` goes into the next turn together with the whole conversation as
        `input_ids`.

        Raises:
            ValueError: on settings, placeholders or inputs that cannot be compressed.
        """
        kwargs |= dict(zip(GENERATE_ARGUMENTS, args))
        inputs = kwargs.pop("inputs", None)
        if inputs is not None:
            kwargs.setdefault("input_ids", inputs)
        self._share_config()
        overrides = {name: kwargs[name] for name in SETTING_NAMES if kwargs.get(name) is not None}
        settings = self.config.compression_settings(**overrides)
        check_features_fit(kwargs, overrides)
        if kwargs.get("mm_encoder_outputs") is not None:
            # Copies, since `generate` repeats the features in place for beams.
            kwargs["mm_encoder_outputs"] = {key: copy.copy(each) for key, each in kwargs["mm_encoder_outputs"].items()}
        self._check_cache(kwargs)
        features = None
        goes_on = CachedPrompt.attached_to(kwargs.get("past_key_values")) is not None
        if self.model.drops_tokens(kwargs) or (goes_on and kwargs.get("pixel_values_videos") is not None):
            pop_settings(kwargs, self.model.of_parent)
            features = self._video_features(kwargs, settings)
        if features is None:
            kwargs = self._with_whole_features(kwargs, settings)
        if features is None and not goes_on:
            return self._generate_full(kwargs)
        pop_settings(kwargs, self.model.of_parent)
        return self._generate_short(kwargs, features, settings)

    def _share_config(self) -> None:
        """A config that was put in place of the head's is the inner model's as well.

        Raises:
            ValueError: if it asks for tuples of every call, in which the parent misses what the inner model gives it.
        """
        if self.model.config is not self.config:
            self.model.config = self.config
        if not self.config.return_dict:
            raise ValueError(
                "`config.return_dict` is False, with which Transformers' own class fails, since it would get a tuple "
                "of its inner model. Set it to True, and pass `return_dict=False` to the calls that shall give tuples."
            )

    def _video_features(self, kwargs: dict[str, Any], settings: CompressionSettings) -> VidCom2VideoFeatures:
        if kwargs.get("pixel_values_videos") is None:
            return kwargs["mm_encoder_outputs"]["video"]
        return self.model(**kwargs, **settings.as_dict(), only_video_features="kept", return_dict=True)

    def _with_whole_features(self, kwargs: dict[str, Any], settings: CompressionSettings) -> dict[str, Any]:
        """With all features of the prompt's videos, marked as such: `forward` does not hear of a call's own ratio."""
        if settings.retention_ratio < 1.0:
            return kwargs
        encoded = kwargs.get("mm_encoder_outputs") or {}
        if kwargs.get("pixel_values_videos") is not None:
            video = self.model(**kwargs, only_video_features="all", return_dict=True)
            kwargs = {name: value for name, value in kwargs.items() if name != "pixel_values_videos"}
        elif encoded.get("video") is not None and not isinstance(encoded["video"], VidCom2VideoFeatures):
            given = encoded["video"]
            video = VidCom2VideoFeatures(
                pooler_output=given.pooler_output, deepstack_features=getattr(given, "deepstack_features", None)
            )
        else:
            return kwargs
        return kwargs | {"mm_encoder_outputs": encoded | {"video": video}}

    def _generate_full(self, kwargs: dict[str, Any]) -> ModelOutput | Tensor:
        """The parent's path, but the positions of a conversation are kept with its cache, not with the model."""
        cache, input_ids = kwargs.get("past_key_values"), kwargs.get("input_ids")
        if not self.model.uses_mrope or input_ids is None or kwargs.get("position_ids") is not None:
            return super().generate(**kwargs)
        mask = self._mask_of_padding(kwargs)
        rotary, rope_deltas = self.model.full_rotary_positions(kwargs | {"attention_mask": mask})
        order = positions_by_order(mask)
        kwargs["position_ids"] = torch.stack([order, *(order.expand(3, -1, -1) if rotary is None else rotary)])
        result = super().generate(**kwargs)
        offset = mask.new_zeros(len(mask), 1).long() if rope_deltas is None else rope_deltas
        prompt = CachedPrompt.of_full_prompt(mask, offset, rotary)
        self._remember(prompt, kwargs, cache, getattr(result, "past_key_values", None))
        return result

    def _remember(self, prompt: CachedPrompt, kwargs: dict[str, Any], *caches: Any) -> None:
        """Attach what is to be known of a prompt to the caches that `generate` filled from it."""
        beams = self._generation_setting(kwargs, "num_beams") or 1
        prompt = prompt.repeated(max(beams, self._generation_setting(kwargs, "num_return_sequences") or 1))
        if beams > 1 and prompt.is_short:
            prompt = replace(prompt, lost="it was filled by beam search, and holds other beams than those returned")
        for cache in caches:
            prompt.attach_to(cache)

    def _generate_short(
        self, kwargs: dict[str, Any], features: VidCom2VideoFeatures | None, settings: CompressionSettings
    ) -> ModelOutput | Tensor:
        """The parent's `generate` on the compressed prompt, or on what a compressed prompt's cache goes on with."""
        check_compressible(kwargs)
        # 1. The conversation: what is in the cache, and what is new.
        kwargs = kwargs | {"attention_mask": self._mask_of_padding(kwargs)}
        input_ids, mask, cache = kwargs["input_ids"], kwargs["attention_mask"], kwargs.get("past_key_values")
        cached = CachedPrompt.of(cache, len(input_ids), input_ids.device)
        _check_whole_conversation(input_ids, mask, cached)
        self._check_generation(kwargs, cached, settings)

        # 2. The short prompt: the new tokens without the dropped ones.
        new = kwargs | {name: kwargs[name][:, cached.prompt_length :] for name in ("input_ids", "attention_mask")}
        prompt = self.model.short_prompt(new, cached, take(mask, cached.positions, 0), features, settings)
        self._check_last_token(prompt)

        # 3. The parent generates. It is given the whole conversation, short, and itself skips what is in the cache.
        padding = self.model.padding_token(new["input_ids"], new["attention_mask"].bool())
        short_ids = take(input_ids, prompt.cached.positions, padding)
        short = without_token_types(kwargs) | {
            "input_ids": short_ids,
            "attention_mask": prompt.inputs["attention_mask"],
            "position_ids": _after_cached(prompt.inputs["position_ids"], cached),
        }
        if features is not None:
            short["mm_encoder_outputs"] = (kwargs.get("mm_encoder_outputs") or {}) | {"video": features}
            short.pop("pixel_values_videos", None)
        self._count_lengths_from(short, input_ids.shape[1] - short_ids.shape[1], input_ids.shape[1])
        self._keep_lookup_from_placeholders(short)
        view = FullPromptView(input_ids, mask, short_ids.shape[1])
        result = super().generate(**view.of_arguments(short))

        # 4. The full prompt in front of what was generated, and what the cache stands for with the cache.
        self._remember(prompt.cached, kwargs, cache, getattr(result, "past_key_values", None))
        if isinstance(result, Tensor):
            return view.restore(result)
        result.sequences = view.restore(result.sequences)
        return result

    def _keep_lookup_from_placeholders(self, short: dict[str, Any]) -> None:
        """Prompt lookup proposes copies of the prompt. A placeholder among them would ask for a feature that is not
        there."""
        if self._generation_setting(short, "prompt_lookup_num_tokens") is not None:
            suppressed = self._generation_setting(short, "suppress_tokens") or []
            short["suppress_tokens"] = [*suppressed, self.config.image_token_id, self.config.video_token_id]

    def _get_logits_processor(self, *args: Any, **kwargs: Any) -> Any:
        """What `generate` makes of its settings and the caller's processors, shown the full prompt."""
        arguments = inspect.signature(super()._get_logits_processor).bind(*args, **kwargs).arguments
        view = view_of(arguments.get("logits_processor"))
        if view is None:
            return super()._get_logits_processor(**arguments)
        return view.of_logits_processors(super()._get_logits_processor(**view.of_processor_arguments(arguments)))

    def _get_stopping_criteria(self, *args: Any, **kwargs: Any) -> Any:
        """What `generate` makes of its settings and the caller's criteria, shown the full prompt."""
        arguments = inspect.signature(super()._get_stopping_criteria).bind(*args, **kwargs).arguments
        view = view_of(arguments.get("stopping_criteria"))
        if view is None:
            return super()._get_stopping_criteria(**arguments)
        return view.of_stopping_criteria(super()._get_stopping_criteria(**view.of_criteria_arguments(arguments)))

    def _mask_of_padding(self, kwargs: dict[str, Any]) -> Tensor:
        """(B, L) the caller's mask; without one, 0 at pad tokens, as `generate` infers it."""
        if kwargs.get("attention_mask") is not None:
            return kwargs["attention_mask"]
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

    # -----------------------------------------------------------------------------------------------------------------
    # Bad input
    # -----------------------------------------------------------------------------------------------------------------

    def _check_generation(self, kwargs: dict[str, Any], cached: CachedPrompt, settings: CompressionSettings) -> None:
        if self._generation_setting(kwargs, "prefill_chunk_size") is not None and not CHUNKS_FEATURES:
            raise ValueError(
                "`prefill_chunk_size` with videos needs a newer Transformers, which splits video features into the "
                "chunks. Leave it out or upgrade."
            )
        # Of a model with recurrent states the parent refuses prompt lookup too, and says so.
        if self.model.uses_mrope and not self._is_stateful and kwargs.get("assistant_model") is not None:
            raise ValueError(
                "`assistant_model` cannot follow the M-RoPE positions of a compressed prompt. Leave it out, or use "
                "`prompt_lookup_num_tokens`."
            )
        if self._generation_setting(kwargs, "token_healing"):
            raise ValueError("`token_healing` writes the prompt anew from its text, without its videos. Leave it out.")
        original = settings.compression_positions == "original" and not self.model.uses_mrope
        if original and self._generation_setting(kwargs, "use_cache") is False:
            raise ValueError(
                '`compression_positions="original"` leaves gaps between positions, and without a cache Transformers '
                "takes a prompt with gaps for several prompts in a row. Leave `use_cache=False` out, or use "
                '`compression_positions="consecutive"`.'
            )
        if self.model.uses_mrope and CachedPrompt.attached_to(kwargs.get("past_key_values")) is None:
            past = kwargs["input_ids"][:, : cached.prompt_length]
            if self.model.is_placeholder(past).any():
                raise ValueError(
                    f"`past_key_values` holds {cached.prompt_length} tokens with images or videos among them, but not "
                    "where their positions end: another model filled it. Pass a cache that this model's `generate` or "
                    "`forward` filled, or start anew without it."
                )

    def _check_cache(self, kwargs: dict[str, Any]) -> None:
        cache = kwargs.get("past_key_values")
        if cache is None or cache.get_seq_length() == 0:
            return
        for name in ("prompt_lookup_num_tokens", "assistant_model"):
            if self._generation_setting(kwargs, name) is not None:
                raise ValueError(
                    f"`{name}` cannot go on from a filled `past_key_values`: Transformers would feed the prompt again. "
                    "Leave it out, or start anew without the cache."
                )
        if CachedPrompt.attached_to(cache) is not None:
            for name in ("num_beams", "num_return_sequences"):
                if (self._generation_setting(kwargs, name) or 1) > 1:
                    raise ValueError(
                        f"`{name}` cannot be more than 1 with a filled `past_key_values`, which has a row for each "
                        "prompt. Repeat its rows by `reorder_cache`, and the prompts, or start anew without it."
                    )

    def _check_last_token(self, prompt: ShortPrompt) -> None:
        if self.model.uses_mrope and self.model.is_placeholder(prompt.inputs["input_ids"][:, -1]).any():
            raise ValueError(
                "A prompt ends in a placeholder of an image or a video, from which Transformers would count the "
                "positions of the answer. End it with text, as chat templates do."
            )


def _after_cached(value: Tensor, cached: CachedPrompt) -> Tensor:
    """(..., n) -> (..., P + n): zeros for the cached tokens, which nobody reads."""
    return torch.cat([value.new_zeros(*value.shape[:-1], cached.length), value], dim=-1)


def _check_whole_conversation(input_ids: Tensor, mask: Tensor, cached: CachedPrompt) -> None:
    if mask.shape != input_ids.shape or input_ids.shape[1] <= cached.prompt_length:
        raise ValueError(
            f"`input_ids` {tuple(input_ids.shape)} and `attention_mask` {tuple(mask.shape)} must both cover the whole "
            f"conversation, the {cached.prompt_length} tokens of `past_key_values` and at least one more."
        )


def _check_labels(labels: Tensor, input_ids: Tensor, shift_labels: Tensor | None, logits_to_keep: int | Tensor) -> None:
    for name, value in (("labels", labels), ("shift_labels", shift_labels)):
        if value is not None and value.shape != input_ids.shape:
            raise ValueError(
                f"`{name}` is {tuple(value.shape)}, but `input_ids` is {tuple(input_ids.shape)}. Give each token of "
                f"the full prompt its label, {IGNORED_LABEL} where none counts."
            )
    if wants_some_rows(logits_to_keep):
        raise ValueError(
            f"`logits_to_keep` is {logits_to_keep}, but `labels` need the logits of the whole prompt. Pass one of them."
        )
