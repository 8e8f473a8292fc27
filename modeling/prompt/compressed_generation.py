"""What the models with a head of all families share: loss, logits and `generate` on the compressed prompt.

`forward` gets the compressed prompt's hidden states from the inner model, and picks the labels of the kept tokens.
`generate` compresses the prompt and calls the parent's, which still sees the caller's full `input_ids`.
"""

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin
from transformers.utils.generic import ModelOutput, can_return_tuple

from ...configuration.compression_settings import CompressionSettings, with_settings
from ...configuration.saved_with_code import SavedWithCode
from ..encoding.video_features import VidCom2VideoFeatures
from ..hosting.in_transformers import (
    CACHE,
    ParentModel,
    pop_settings,
    register_like,
    take_parents_signatures,
    to_own_names,
    wants_some_rows,
    with_cache_name,
    without,
)
from .call_description import (
    OF_CHUNKS,
    OF_GENERATE,
    Asked,
    CallDescription,
    CallPath,
    NewVideos,
    check_compressible,
    check_on_cache,
    refuse,
)
from .conversation_cache import (
    IGNORED_LABEL,
    CachedPrompt,
    CompressedPrompt,
    ShortPrompt,
    labels_at,
    positions_by_order,
    take,
)
from .prompt_compression import IMAGE, TEXT, VIDEO, PromptRecord, VidCom2ModelMixin

GENERATE_ARGUMENTS = tuple(inspect.signature(vars(GenerationMixin)["generate"]).parameters)[1:]


class VidCom2GenerationMixin(SavedWithCode, ParentModel):
    """Makes a model with a head run on compressed prompts. It comes before the parent class among a model's bases."""

    inner_class: type[VidCom2ModelMixin]  # around the parent's inner model
    output_class: type[Any]  # the parent's output, a dataclass, with a field `prompt_positions`
    hides_mask_from_head = False  # Whether to keep the caller's mask, which covers the full prompt, from the head.
    model: VidCom2ModelMixin
    get_video_features: Callable[..., VidCom2VideoFeatures]  # the parent's, which calls the inner model's

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        take_parents_signatures(cls, VidCom2GenerationMixin, "forward")
        register_like(cls)

    def __init__(self, config: Any, *args: Any, **settings: Any):
        """Build the model from its config.

        Args:
            config: the family's config, or the stock class's, which then gets the default settings.
            **settings: override the config's settings. `from_pretrained(..., config=config, ...)` passes them here.

        Raises:
            ValueError: if `config` is another family's, or a setting is outside its accepted set.
        """
        super().__init__(with_settings(config, self.config_class, pop_settings(settings)), *args, **settings)
        # The parent has built its own inner model. Ours has the same weights and other methods.
        self.model.__class__ = self.inner_class

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take weights from `load_state_dict` under the names of checkpoints, too. `Trainer` passes them so, with
        `strict=False`, and the stock classes silently keep their own weights instead."""
        to_own_names(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    # -----------------------------------------------------------------------------------------------------------------
    # forward
    # -----------------------------------------------------------------------------------------------------------------

    @can_return_tuple
    def forward(self, labels: Tensor | None = None, logits_to_keep: int | Tensor = 0, **inputs: Any) -> ModelOutput:
        """Run the parent's `forward` on the compressed prompt.

        The logits have the parent's shape: one row for each position of `input_ids`, or for each position that
        `logits_to_keep` names. A dropped token gets the row of the last token kept before it. Training with `labels`
        does not need these rows, so there the logits hold only the L' rows of the compressed prompt, padded on the
        left. The loss always covers the labels of the kept tokens. The KV cache holds and remembers the compressed
        prompt.

        Args:
            labels, logits_to_keep: the parent's arguments, which refer to the caller's prompt.
            **inputs: the parent's arguments, and the settings of `CompressionSettings` for this call.

        Returns:
            The parent's output, and `prompt_positions` (int64): for each row of the logits the position in `input_ids`
            of its token, -1 at padding; None if nothing was compressed. `attentions` cover the compressed prompt.

        Raises:
            ValueError: if settings, placeholders, labels or other inputs cannot be used with a compressed prompt.
        """
        self._share_config()
        if inputs.get("compressed_prompt") is not None:
            raise ValueError(
                "`compressed_prompt` is what `generate` hands to a custom generation loop, and `forward` cannot take "
                "it. Get the arguments of each step from the model's `prepare_inputs_for_generation`."
            )
        call = None
        if not inputs.get("is_compressed"):
            call, inputs = self.model.describe(inputs)
            inputs["call"] = call
        if call is None or call.path is not CallPath.COMPRESS:
            return self._output(
                super().forward(**inputs, labels=labels, logits_to_keep=logits_to_keep, return_dict=True)
            )
        loss_arguments = {name: inputs.pop(name, None) for name in ("shift_labels", "num_items_in_batch")}
        check_compressible(inputs)
        self._check_invocations(inputs["input_ids"])
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
        if wants_some_rows(logits_to_keep):  # The inner model has already picked them.
            outputs.logits = outputs.logits.view(*positions.shape, -1)
        else:
            outputs.logits = prompt.at_positions(outputs.logits)
        if outputs.hidden_states is not None:
            outputs.hidden_states = prompt.of_layers(outputs.hidden_states)
        return self._output(outputs, positions)

    def _balance_experts(self, outputs: Any, prompt: ShortPrompt) -> None:
        """Put a mixture of experts' load-balancing loss into `outputs`, and add it to their loss."""

    def _output(self, outputs: ModelOutput, prompt_positions: Tensor | None = None) -> ModelOutput:
        known = self.output_class.__dataclass_fields__.keys()
        output = self.output_class(**{name: outputs[name] for name in outputs if name in known})
        for name in outputs.keys() - known:  # Another library may have replaced the parent's `forward`.
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
        """Return the model's own loss over the labels of the compressed prompt's tokens."""
        if shift_labels is not None:  # They hold, for each position, the label of the next token.
            labels = torch.cat([torch.full_like(shift_labels[:, :1], IGNORED_LABEL), shift_labels[:, :-1]], dim=1)
        # No token precedes the first one. If padding does, the shifted loss would predict the token from the padding.
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
                # If the number counts this batch alone, the loss is the mean over the labels that are left. If it also
                # counts other batches, it is not known here how many of their labels are left.
                raise ValueError(
                    f"`num_items_in_batch` counts labels of several batches or devices, among them the {int(given)} "
                    f"labels of this batch's full prompts, but its compressed prompts have {int(left)} left. Set the "
                    f"labels of video placeholders and of each prompt's first token to {IGNORED_LABEL} in the data "
                    "collator. Or set `model.accepts_loss_kwargs = False` before the `Trainer` is made, which then "
                    "averages the losses of the batches, however many labels each has."
                )
        vocab_size = self.config.get_text_config().vocab_size
        return self.loss_function(logits=logits, labels=short, vocab_size=vocab_size, **arguments)

    # -----------------------------------------------------------------------------------------------------------------
    # generate
    # -----------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(self, *args: Any, **kwargs: Any) -> ModelOutput | Tensor:
        """Run the parent's `generate` on the compressed prompt.

        It takes the parent's arguments, and the settings of `CompressionSettings` for this call. The returned
        sequences begin with the caller's full `input_ids`. Streamers, logits processors, stopping criteria and length
        limits see the full prompt too, whether the caller passes them or `generate` makes them. The KV cache holds and
        remembers the compressed prompt. To continue a conversation, pass the returned KV cache together with the whole
        conversation as `input_ids`.

        Raises:
            ValueError: if settings, placeholders or other inputs cannot be used with a compressed prompt.
        """
        kwargs = with_cache_name(kwargs) | dict(zip(GENERATE_ARGUMENTS, args))
        inputs = kwargs.pop("inputs", None)
        if inputs is not None:
            kwargs.setdefault("input_ids", inputs)
        self._share_config()
        if getattr(kwargs.get("generation_config"), "is_assistant", False):  # It drafts from the prompt as text.
            return super().generate(**without(kwargs, ("mm_encoder_outputs",)))
        if kwargs.get("mm_encoder_outputs") is not None:
            # `generate` repeats the features in place for beams, so it gets copies.
            kwargs["mm_encoder_outputs"] = {key: copy.copy(each) for key, each in kwargs["mm_encoder_outputs"].items()}
        call, kwargs = self.model.describe(kwargs, has_whole_conversation=True)
        check_on_cache(self._asked(kwargs))
        self._check_unknown_cache(kwargs, call.settings)
        if call.path is CallPath.PARENT:
            return self._generate_full(self._with_all_features(kwargs, call))
        return self._generate_compressed(kwargs, call)

    def _share_config(self) -> None:
        """Give the inner model the head's config, which the user may have replaced.

        Raises:
            ValueError: if the config asks every call for tuples, since the parent reads the inner model's output by
                name.
        """
        if self.model.config is not self.config:
            self.model.config = self.config
        if not self.config.return_dict:
            raise ValueError(
                "`config.return_dict` is False. Transformers' own class fails with this value, because its inner model "
                "would return a tuple. Set it to True, and pass `return_dict=False` to the calls that should return "
                "tuples."
            )

    def _with_all_features(self, kwargs: dict[str, Any], call: CallDescription) -> dict[str, Any]:
        """Return the arguments with the features of all video tokens in place of pixels.

        The features are marked as such, since the `forward` of each step does not know the ratio of the call.
        """
        if call.videos is NewVideos.PIXELS:
            video = self.model(**kwargs, call=call, only_video_features="all", return_dict=True)
        elif call.videos is NewVideos.ALL_FEATURES:
            given = kwargs["mm_encoder_outputs"]["video"]
            video = VidCom2VideoFeatures(
                pooler_output=self.model.with_placeholders(given.pooler_output, kwargs),
                deepstack_features=getattr(given, "deepstack_features", None),
            )
        else:
            return kwargs
        if not self.model.parent_knows_videos:  # It has no embedding for their token, so each chunk needs its features.
            refuse(OF_CHUNKS, self._asked(kwargs))
        return self.model.with_features(kwargs, video)

    def _generate_full(self, kwargs: dict[str, Any]) -> ModelOutput | Tensor:
        """Run the parent's `generate`, but keep the positions of a conversation with its cache, not on the model."""
        cache, input_ids = kwargs.get(CACHE), kwargs.get("input_ids")
        if input_ids is None or kwargs.get("position_ids") is not None:
            return super().generate(**kwargs)
        mask = self._mask_of_padding(kwargs)
        if not self.model.uses_mrope:
            is_first = cache is None or cache.get_seq_length() == 0
            result = super().generate(**kwargs)
            if is_first:
                prompt = CachedPrompt.of_full_prompt(mask, None)
                self._remember(prompt, kwargs, cache, getattr(result, CACHE, None))
            return result
        rotary, offset = self.model.full_rotary_positions(kwargs | {"attention_mask": mask})
        order = positions_by_order(mask)
        kwargs["position_ids"] = torch.stack([order, *(order.expand(3, -1, -1) if rotary is None else rotary)])
        result = super().generate(**kwargs)
        prompt = CachedPrompt.of_full_prompt(mask, mask.new_zeros(len(mask), 1).long() if offset is None else offset)
        self._remember(prompt, kwargs, cache, getattr(result, CACHE, None))
        return result

    def _remember(self, prompt: CachedPrompt, kwargs: dict[str, Any], *caches: Any) -> None:
        """Attach the memory of a prompt to the caches that `generate` filled from it."""
        beams = self._generation_setting(kwargs, "num_beams") or 1
        prompt = prompt.repeated(max(beams, self._generation_setting(kwargs, "num_return_sequences") or 1))
        if beams > 1 and prompt.is_short:
            prompt = replace(prompt, lost="it was filled by beam search, and holds other beams than those returned")
        for cache in caches:
            prompt.attach_to(cache)

    def _generate_compressed(self, kwargs: dict[str, Any], call: CallDescription) -> ModelOutput | Tensor:
        """Run the parent's `generate` on a compressed prompt or conversation.

        It gets the caller's whole `input_ids`, which logits processors and the like look at, and the compressed
        conversation, which the model runs. It skips the cached tokens by itself.
        """
        check_compressible(kwargs)
        self._check_invocations(kwargs["input_ids"])
        kwargs = kwargs | {"attention_mask": self._mask_of_padding(kwargs)}
        input_ids, mask, cache = kwargs["input_ids"], kwargs["attention_mask"], kwargs.get(CACHE)
        cached = CachedPrompt.of(cache, len(input_ids), input_ids.device)
        _check_whole_conversation(input_ids, mask, cached)
        refuse(OF_GENERATE, self._asked(kwargs))
        past = input_ids[:, : cached.prompt_length]
        kinds_of_past = self.model.kinds(past)
        self._check_known_positions(kinds_of_past, cache)
        if call.videos is NewVideos.PIXELS:  # through `forward`, where accelerate and FSDP have the weights in place
            features = self.model(**kwargs, call=call, only_video_features="kept", return_dict=True)
        else:
            features = self.model.new_features(kwargs, call)
        prompt, arguments = self.model.compressed(kwargs, call, features, has_whole_conversation=True)
        self._check_last_token(arguments["input_ids"])
        short_past = take(self.model.distinct_ids(past, kinds_of_past), cached.positions, prompt.padding)
        short_ids = torch.cat([short_past, arguments["input_ids"]], dim=1)
        arguments |= {
            "input_ids": input_ids,
            "position_ids": _after_cached(arguments["position_ids"], cached),
            "compressed_prompt": CompressedPrompt(short_ids, mask),
        }
        self._keep_lookup_from_placeholders(arguments)
        result = super().generate(**arguments)
        self._remember(prompt.cached, kwargs, cache, getattr(result, CACHE, None))
        return result

    # The parent's `generate` calls the following methods. Its `input_ids` are the caller's full prompt throughout, so
    # that logits processors, stopping criteria, streamers and length limits see this. The mask, the positions and the
    # cache belong to the compressed prompt.

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        # A library such as PEFT puts in its own `prepare_inputs_for_generation`, which does not name our argument.
        super()._validate_model_kwargs(
            {name: value for name, value in model_kwargs.items() if name != "compressed_prompt"}
        )

    def _prefill(
        self, input_ids: Tensor, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> ModelOutput:
        prompt = model_kwargs.get("compressed_prompt")
        if prompt is None:
            input_ids = self._ids_by_kind(input_ids, model_kwargs)
            return super()._prefill(input_ids, generation_config, model_kwargs, *args, **kwargs)
        model_kwargs["compressed_prompt"] = replace(prompt, is_in_ids=True)  # This holds for chunks of the ids too.
        try:
            return super()._prefill(prompt.shorten(input_ids), generation_config, model_kwargs, *args, **kwargs)
        finally:
            model_kwargs["compressed_prompt"] = prompt

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        inputs_embeds: Tensor | None = None,
        compressed_prompt: CompressedPrompt | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the parent's inputs of a step; those of a compressed prompt are marked as such for `forward`.

        `inputs_embeds` is a named parameter because `generate` looks for that name in the signature.
        """
        kwargs |= {"next_sequence_length": next_sequence_length, "inputs_embeds": inputs_embeds}
        if compressed_prompt is None:
            return super().prepare_inputs_for_generation(input_ids, **kwargs)
        if next_sequence_length is None and not compressed_prompt.is_in_ids:
            input_ids = compressed_prompt.shorten(input_ids)
        return super().prepare_inputs_for_generation(input_ids, **kwargs) | {"is_compressed": True}

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, *args: Any, input_ids: Tensor | None = None, **model_kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Repeat prompts and features for beams.

        The parent counts placeholders to find the features of each prompt, so it is given the ids that the model runs.
        """
        if input_ids is None or expand_size == 1:
            return super()._expand_inputs_for_generation(expand_size, *args, input_ids=input_ids, **model_kwargs)
        prompt = model_kwargs.get("compressed_prompt")
        run = self._ids_by_kind(input_ids, model_kwargs) if prompt is None else prompt.ids
        _, model_kwargs = super()._expand_inputs_for_generation(expand_size, *args, input_ids=run, **model_kwargs)
        return input_ids.repeat_interleave(expand_size, dim=0), model_kwargs

    def _ids_by_kind(self, input_ids: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        """Return the ids of an uncompressed prompt, by which the parent finds the placeholders of each kind of
        features. If videos have none of their own, their frames are among those of images."""
        encoded = model_kwargs.get("mm_encoder_outputs") or {}
        if encoded.get("video") is None:
            return input_ids
        return self.model.distinct_ids(input_ids, self.model.kinds(input_ids))

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        """Prepare the cache without room for the dropped tokens, which matters for a static one."""
        prompt = model_kwargs.get("compressed_prompt")
        if prompt is not None:
            max_cache_length -= prompt.num_dropped
        super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )

    def _get_logits_processor(self, *args: Any, model_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        """Return the parent's logits processors, with the full mask, which tells penalties where each prompt begins."""
        return super()._get_logits_processor(*args, model_kwargs=_with_full_mask(model_kwargs or {}), **kwargs)

    def _get_candidate_generator(self, *args: Any, model_kwargs: dict[str, Any], **kwargs: Any) -> Any:
        """Return the parent's candidate generator. An assistant model drafts from the caller's whole prompt as text."""
        whole = _with_full_mask(model_kwargs)
        if whole is not model_kwargs:
            whole = without(whole, ("compressed_prompt", "position_ids"))
        return super()._get_candidate_generator(*args, model_kwargs=whole, **kwargs)

    def _keep_lookup_from_placeholders(self, arguments: dict[str, Any]) -> None:
        """Suppress placeholders where prompt lookup proposes copies of the prompt: they would lack features."""
        if self._generation_setting(arguments, "prompt_lookup_num_tokens") is not None:
            suppressed = self._generation_setting(arguments, "suppress_tokens") or []
            sound = getattr(self.config, "audio_token_id", None)
            placeholders = [self.config.image_token_id, self.config.video_token_id, *([] if sound is None else [sound])]
            arguments["suppress_tokens"] = [*suppressed, *placeholders]

    def _mask_of_padding(self, kwargs: dict[str, Any]) -> Tensor:
        """Return the caller's mask (B, L); without one, a mask with 0 at pad tokens, as `generate` infers it."""
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

    # -----------------------------------------------------------------------------------------------------------------
    # Caches that are stored
    # -----------------------------------------------------------------------------------------------------------------

    @staticmethod
    def cache_memory(past_key_values: Any) -> dict[str, Tensor]:
        """Return what a KV cache remembers of its conversation, to be stored beside its keys and values.

        Args:
            past_key_values: the cache that `generate` or `forward` filled.

        Returns:
            Tensors by name, a few bytes per token, which `safetensors` and `torch.save` can store.

        Raises:
            ValueError: if the cache has no memory, or cannot be continued.
        """
        known = getattr(past_key_values, "cached_prompt", None)
        if known is None:
            raise ValueError(
                f"The KV cache is a {type(past_key_values).__name__} that remembers no conversation. Pass the "
                "cache that this model's `generate` or `forward` filled."
            )
        return known.as_tensors()

    @staticmethod
    def restore_cache_memory(past_key_values: Any, memory: dict[str, Tensor]) -> None:
        """Give the memory of its conversation back to a cache that was rebuilt from its keys and values.

        Args:
            past_key_values: a cache that holds the same tokens.
            memory: the tensors that `cache_memory` returned.

        Raises:
            ValueError: if the memory belongs to another cache.
        """
        prompt, length = CachedPrompt.from_tensors(memory), int(past_key_values.get_seq_length())
        rows = getattr(past_key_values.layers[0], "keys", None)
        if length < prompt.length or (rows is not None and len(rows) != len(prompt.positions)):
            raise ValueError(
                f"`memory` belongs to a cache that held at least {prompt.length} tokens of {len(prompt.positions)} "
                f"prompts, but the KV cache holds {length}{'' if rows is None else f' of {len(rows)}'}. Pass the "
                "memory of this cache."
            )
        prompt.attach_to(past_key_values)

    # -----------------------------------------------------------------------------------------------------------------
    # Bad input
    # -----------------------------------------------------------------------------------------------------------------

    def _asked(self, kwargs: dict[str, Any]) -> Asked:
        """Return the arguments of `generate` in the form that the tables of refusals read."""
        return Asked(
            kwargs,
            setting=functools.partial(self._generation_setting, kwargs),
            uses_mrope=self.model.uses_mrope,
            is_stateful=self._is_stateful,
        )

    def _check_invocations(self, input_ids: Tensor) -> None:
        """Check that no video follows the last invocation of an aLoRA. PEFT counts back from the end of the full prompt
        to where the adapter begins, which in a compressed prompt would be before its invocation."""
        for config in (getattr(self, "peft_config", None) or {}).values():
            invocation = getattr(config, "alora_invocation_tokens", None) or ()
            for row, is_video in zip(input_ids.tolist(), self.model.is_video(input_ids)):
                starts = [at for at in range(len(row)) if invocation and row[at : at + len(invocation)] == invocation]
                if starts and is_video[starts[-1] :].any():
                    raise ValueError(
                        "In a prompt, a video follows the invocation of an aLoRA. Ask after the video, pass "
                        "`retention_ratio=1.0` without a budget, or take a LoRA that always acts."
                    )

    def _check_known_positions(self, kinds_of_past: Tensor, cache: Any) -> None:
        if self.model.uses_mrope and CachedPrompt.attached_to(cache) is None and (kinds_of_past > TEXT).any():
            raise ValueError(
                f"The KV cache holds {kinds_of_past.shape[1]} tokens with images or videos among them, but does not "
                "know where their positions end: another model filled it. Pass a cache that this model's `generate` "
                "or `forward` filled, or start over without it."
            )

    def _check_unknown_cache(self, kwargs: dict[str, Any], settings: CompressionSettings) -> None:
        """Check that `input_ids` tell which tokens a cache without a memory holds.

        Raises:
            ValueError: if they do not.
        """
        cache, input_ids = kwargs.get(CACHE), kwargs.get("input_ids")
        if cache is None or input_ids is None or not CachedPrompt.is_unknown(cache):
            return
        length = int(cache.get_seq_length())
        held, new = (self.model.kinds(ids) for ids in (input_ids[:, :length], input_ids[:, length:]))
        remedy = (
            "Give the cache its memory back (`restore_cache_memory`, with what `cache_memory` returned when it was "
            "stored), or start over without it"
        )
        encoded = kwargs.get("mm_encoder_outputs") or {}
        for kind, of_kind, pixels in (("video", VIDEO, "pixel_values_videos"), ("image", IMAGE, "pixel_values")):
            if kwargs.get(pixels) is None and encoded.get(kind) is None and (new == of_kind).any():
                raise ValueError(
                    f"The KV cache holds {length} tokens and has no memory of their prompt. `input_ids` has "
                    f"{kind} placeholders after its first {length} tokens, but no {kind} comes with them, so the cache "
                    f"may hold what compression left of a longer prompt. {remedy}."
                )
        if settings.may_drop and (held == VIDEO).any():
            raise ValueError(
                f"The KV cache holds {length} tokens with videos among them, and has no memory of whether they "
                f"were compressed. {remedy}, or pass `retention_ratio=1.0` without a budget if they were not."
            )
        grids = (kwargs.get("image_grid_thw"), kwargs.get("video_grid_thw"))
        if self.model.uses_mrope and (held > TEXT).any() and all(each is None for each in grids):
            raise ValueError(
                f"The KV cache holds {length} tokens with images or videos among them, and has no memory of where "
                f"their positions end. {remedy}, or pass the `image_grid_thw` and `video_grid_thw` of the whole "
                "conversation."
            )

    def _check_last_token(self, short_ids: Tensor) -> None:
        if self.model.uses_mrope and (self.model.kinds(short_ids[:, -1:]) > TEXT).any():
            raise ValueError(
                "A prompt ends in a placeholder of an image or a video, and Transformers would count the positions of "
                "the answer from it. End the prompt with text, as chat templates do."
            )


def _with_full_mask(model_kwargs: dict[str, Any]) -> dict[str, Any]:
    prompt = model_kwargs.get("compressed_prompt")
    if prompt is None:
        return model_kwargs
    rows = model_kwargs["position_ids"].shape[-2]
    repeated = prompt.full_mask.repeat_interleave(rows // len(prompt.full_mask), dim=0)
    return model_kwargs | {"attention_mask": repeated}


def _after_cached(value: Tensor, cached: CachedPrompt) -> Tensor:
    """Pad (..., n) to (..., P + n) with zeros for the cached tokens, which nothing reads."""
    return torch.cat([value.new_zeros(*value.shape[:-1], cached.length), value], dim=-1)


def _check_whole_conversation(input_ids: Tensor, mask: Tensor, cached: CachedPrompt) -> None:
    if mask.shape != input_ids.shape or input_ids.shape[1] <= cached.prompt_length:
        raise ValueError(
            f"`input_ids` is {tuple(input_ids.shape)} and `attention_mask` is {tuple(mask.shape)}, but both must cover "
            f"the whole conversation: the {cached.prompt_length} tokens of the KV cache and at least one more."
        )


def _check_labels(labels: Tensor, input_ids: Tensor, shift_labels: Tensor | None, logits_to_keep: int | Tensor) -> None:
    for name, value in (("labels", labels), ("shift_labels", shift_labels)):
        if value is not None and value.shape != input_ids.shape:
            raise ValueError(
                f"`{name}` is {tuple(value.shape)}, but `input_ids` is {tuple(input_ids.shape)}. Give each token of "
                f"the full prompt its label, or {IGNORED_LABEL} if it has none."
            )
    if wants_some_rows(logits_to_keep):
        raise ValueError(
            f"`logits_to_keep` is {logits_to_keep}, but `labels` need the logits of the whole prompt. Pass one of them."
        )
