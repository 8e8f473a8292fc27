"""What the models with a head of all families share: `forward` and `generate` on prompts for the tokens that stay.

Both ask the inner model for a call of the stock class (`prepared`), make it, and return what the caller expects: logits
for each token of the caller's prompt, and sequences that begin with it.
"""

import copy
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, NoReturn, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, modeling_utils
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator
from transformers.utils.generic import ModelOutput, can_return_tuple

from ...configuration.compression_settings import name_meant, with_settings
from ...configuration.saved_with_code import SavedWithCode
from ..encoding.packed_attention import pack_attention
from ..encoding.video_features import VidCom2VideoFeatures
from ..hosting.in_transformers import (
    CACHE,
    ParentModel,
    cached_length,
    check_tensors,
    pop_settings,
    register_like,
    take_parents_signatures,
    to_own_names,
    with_cache_name,
    without,
)
from .calls import OF_GENERATE, ON_A_FILLED_CACHE, USE_OURS, Prepared, has_media, refuse
from .conversation_cache import Conversation, cached_rows
from .prompt_compression import VidCom2ModelMixin, rows_of_layers
from .prompt_layout import Layout

GENERATE_ARGUMENTS = tuple(inspect.signature(vars(GenerationMixin)["generate"]).parameters)[1:]
IGNORED_LABEL = -100


class VidCom2GenerationMixin(SavedWithCode, ParentModel):
    """Makes a model with a head run on prompts for the tokens that stay. It comes before the parent class among a
    model's bases."""

    inner_class: type[VidCom2ModelMixin]  # around the parent's inner model
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
        pack_attention(self.model)

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        """Refuse unknown arguments of `generate` as the parent does, and say what they may have meant."""
        try:
            cast(Any, super())._validate_model_kwargs(model_kwargs)
        except ValueError as error:
            hints = [name_meant(name, GenerationConfig().to_dict()) for name in re.findall(r"'(\w+)'", str(error))]
            raise ValueError(f"{error}{next(filter(None, hints), '')}") from None

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
        """Run the parent's `forward` on the tokens that stay.

        The logits have the parent's shape: one row for each token of the caller's prompt, or for each that
        `logits_to_keep` names. In a prompt of a stock processor, a dropped token gets the row of the last token kept
        before it, and its label does not count.

        Args:
            labels, logits_to_keep: the parent's arguments, for the caller's prompt.
            **inputs: the parent's arguments, and the settings of `CompressionSettings` for this call.

        Raises:
            ValueError: if settings, placeholders, labels or other inputs do not fit.
        """
        if not has_media(inputs):  # The inner model does the rest.
            self._share_config()
            return super().forward(**inputs, labels=labels, logits_to_keep=logits_to_keep, return_dict=True)
        call = self._prepared(inputs)
        inputs = call.inputs
        if call.layout is None:
            outputs = super().forward(**inputs, labels=labels, logits_to_keep=logits_to_keep, return_dict=True)
        else:
            if labels is not None:
                inputs = inputs | _labels(labels, inputs, call.layout, logits_to_keep)
            outputs = super().forward(**inputs, return_dict=True)
            outputs.logits = picked(call.layout.of_caller(outputs.logits), logits_to_keep)
            outputs.hidden_states = rows_of_layers(outputs.hidden_states, call.layout)
        call.after.note_on(outputs.get(CACHE))
        return outputs

    def _encoded(self, which: str, inputs: dict[str, Any]) -> Any:
        """Encode videos or images in the inner model's `forward`, where accelerate and FSDP have weights in place."""
        return self.model(**inputs, only_features=which, return_dict=True)

    def _prepared(self, inputs: dict[str, Any], has_whole_conversation: bool = False) -> Prepared:
        """Return what the inner model's `prepared` does.

        Raises:
            ValueError: also where an aLoRA would begin too early. PEFT counts back from the end of the caller's prompt
                to where it begins, which in a prompt that was shortened would be before its invocation.
        """
        self._share_config()
        call = self.model.prepared(inputs, self._encoded, has_whole_conversation)
        adapters = (getattr(self, "peft_config", None) or {}).values()
        is_shortened = call.layout is not None and call.layout.shortens
        if is_shortened and any(getattr(each, "alora_invocation_tokens", None) for each in adapters):
            raise ValueError(
                "An aLoRA is active, and PEFT counts from the end of the prompt, which the model shortens, where it "
                f"begins. {USE_OURS}, or pass `retention_ratio=1.0` without a budget."
            )
        return call

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

    # -----------------------------------------------------------------------------------------------------------------
    # generate
    # -----------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(self, *args: Any, **kwargs: Any) -> ModelOutput | Tensor:
        """Run the parent's `generate` on the tokens that stay.

        It takes the parent's arguments, and the settings of `CompressionSettings` for this call. The returned sequences
        begin with the caller's `input_ids`, and `max_length` and `min_length` count them. Logits processors, stopping
        criteria and streamers see the prompt that the model runs, and the KV cache holds it. To continue a
        conversation, pass the returned KV cache together with the whole conversation as `input_ids`.

        Raises:
            ValueError: if settings, placeholders or other inputs do not fit.
        """
        kwargs = with_cache_name(kwargs) | dict(zip(GENERATE_ARGUMENTS, args))
        inputs = kwargs.pop("inputs", None)
        if inputs is not None:
            kwargs.setdefault("input_ids", inputs)
        name = "input_ids" if kwargs.get("input_ids") is not None else "inputs_embeds"
        is_assistant = getattr(kwargs.get("generation_config"), "is_assistant", False)  # It drafts from text alone.
        if is_assistant or kwargs.get(name) is None:  # Without a prompt, the parent begins from nothing.
            self._share_config()
            return super().generate(**without(kwargs, ("mm_encoder_outputs", *pop_settings(dict(kwargs)))))
        check_tensors({name: kwargs[name], "attention_mask": kwargs.get("attention_mask")})
        self._check_asked(kwargs, kwargs[name])
        tokens, cache, given = kwargs[name], kwargs.get(CACHE), kwargs.get("attention_mask")
        if kwargs.get("mm_encoder_outputs") is not None:
            # `generate` repeats the features in place for beams, so it gets copies.
            kwargs["mm_encoder_outputs"] = {key: copy.copy(each) for key, each in kwargs["mm_encoder_outputs"].items()}
        mask = kwargs["attention_mask"] = self._mask_of_padding(kwargs, tokens)
        before = Conversation.of(cache, len(tokens))
        if not before.is_known and 0 < tokens.shape[1] <= before.length:  # What this means is the parent's to say.
            return super().generate(**without(kwargs, pop_settings(dict(kwargs))) | {"attention_mask": given})
        _check_whole_conversation(tokens, mask, before)
        call = self._prepared(kwargs, has_whole_conversation=True)
        arguments = self._of_whole_conversation(call, name, tokens, before)
        if arguments.get("attention_mask") is mask:
            arguments["attention_mask"] = given  # where nothing changed, the parent infers it as ever
        if name == "input_ids":
            arguments[name] = self.model.stock_ids(arguments[name])
        self._count_for_caller(arguments, tokens.shape[1], dropped=tokens.shape[1] - arguments[name].shape[1])
        result = super().generate(**arguments)
        repeats = max(self._setting(kwargs, "num_beams") or 1, self._setting(kwargs, "num_return_sequences") or 1)
        for each in {id(one): one for one in (cache, getattr(result, CACHE, None))}.values():
            call.after.repeated(repeats).note_on(each)
        return result if name == "inputs_embeds" else _with_prompt(result, tokens, arguments[name].shape[1])

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse continuous batching, for which `generate_batch` and others ask here."""
        raise ValueError(
            "`generate_batch` and the other calls of continuous batching run token ids alone, without videos, and on a "
            "KV cache of another kind. Call `generate`, serve the model with vLLM, or use the stock class for text."
        )

    def _check_asked(self, kwargs: dict[str, Any], tokens: Tensor) -> None:
        """Refuse arguments with which images, videos or a filled cache cannot be right."""
        asked, cache = functools.partial(self._setting, kwargs), kwargs.get(CACHE)
        if has_media(kwargs):
            refuse(OF_GENERATE, asked)
        if cached_length(cache) == 0:
            return
        refuse(ON_A_FILLED_CACHE, asked)
        repeats = max(asked("num_beams") or 1, asked("num_return_sequences") or 1)
        if repeats > 1 and cached_rows(cache) == len(tokens):
            raise ValueError(
                f"`num_beams` or `num_return_sequences` is {repeats}, but the KV cache has one row for each prompt. "
                f"Repeat its rows: `past_key_values.batch_repeat_interleave({repeats})`, or start over without it."
            )

    def _of_whole_conversation(self, call: Prepared, name: str, tokens: Tensor, before: Conversation) -> dict[str, Any]:
        """Return a call's arguments for the cached tokens, too, of which `generate` expects ids, mask and positions."""
        arguments, length = dict(call.inputs), before.length
        if not length:
            return arguments
        past = before.laid_out(tokens[:, : before.caller_length])
        arguments[name] = torch.cat([past, arguments[name]], dim=1)
        positions = arguments.get("position_ids")
        if positions is not None and positions.shape[-1] < arguments[name].shape[1]:  # Nothing reads the cached ones.
            arguments["position_ids"] = torch.cat([positions.new_zeros(*positions.shape[:-1], length), positions], -1)
        return arguments

    def _count_for_caller(self, arguments: dict[str, Any], length: int, dropped: int) -> None:
        """Let `max_length` and `min_length` count the caller's prompt, of which some tokens are dropped."""
        most = self._setting(arguments, "max_length")
        if dropped and most is not None and self._setting(arguments, "max_new_tokens") is None and most <= length:
            raise ValueError(
                f"`max_length` is {most}, but the prompt has {length} tokens, which leaves no room for new ones. Pass "
                "`max_new_tokens`, or a larger `max_length`."
            )
        for name in ("max_length", "min_length"):
            if dropped and (limit := self._setting(arguments, name)):
                arguments[name] = max(0, limit - dropped)

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, *args: Any, input_ids: Tensor | None = None, **model_kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Repeat prompts and features for beams. The features are those of the new tokens, but the parent looks for
        them among the placeholders of the whole conversation, and takes GLM's for those of images."""
        encoded = model_kwargs.pop("mm_encoder_outputs", None)
        if encoded and expand_size > 1:
            length = cached_length(model_kwargs.get(CACHE))
            given = (self._distinct(input_ids), model_kwargs.get("inputs_embeds"))
            ids, embeds = (each if each is None else each[:, length:] for each in given)
            encoded = cast(Any, GenerationMixin)._expand_multimodal_outputs(self, ids, encoded, expand_size, embeds)
        expanded, model_kwargs = super()._expand_inputs_for_generation(
            expand_size, *args, input_ids=input_ids, **model_kwargs
        )
        return expanded, model_kwargs if encoded is None else model_kwargs | {"mm_encoder_outputs": encoded}

    def _prefill(self, input_ids: Tensor, generation_config: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the parent's prefill, which splits features into chunks by the ids of their placeholders."""
        ids = input_ids if generation_config.prefill_chunk_size is None else self._distinct(input_ids)
        return super()._prefill(ids, generation_config, *args, **kwargs)

    def _distinct(self, ids: Tensor | None) -> Tensor | None:
        if ids is None or ids.shape[1] == 0:  # The prompt is embeddings.
            return ids
        return self.model.distinct_ids(ids, self.model.kinds(ids))

    def _get_candidate_generator(self, *args: Any, **kwargs: Any) -> Any:
        """Return the parent's candidate generator. Beside videos, an assistant model drafts from the prompt as text,
        and prompt lookup ends a draft before a placeholder, for which there are no features."""
        of_model = kwargs["model_kwargs"]
        if kwargs.get("assistant_model") is not None and "video" in (of_model.get("mm_encoder_outputs") or {}):
            kwargs["model_kwargs"] = {
                name: of_model[name] for name in ("attention_mask", "use_cache") if name in of_model
            }
        generator = super()._get_candidate_generator(*args, **kwargs)
        if isinstance(generator, PromptLookupCandidateGenerator):
            limited = functools.partial(_before_placeholders, generator.get_candidates, self.config)
            generator.get_candidates = limited  # pyright: ignore[reportAttributeAccessIssue]  (its types are narrower)
        return generator

    def _mask_of_padding(self, kwargs: dict[str, Any], tokens: Tensor) -> Tensor:
        """Return the caller's mask (B, L); without one, a mask with 0 at pad tokens, as `generate` infers it."""
        if kwargs.get("attention_mask") is not None:
            return kwargs["attention_mask"]
        pad, eos = (self._setting(kwargs, name) for name in ("pad_token_id", "eos_token_id"))
        if tokens.ndim == 3 or pad is None or pad in (eos if isinstance(eos, list) else [eos]):
            return torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
        return (tokens != pad).long()

    def _setting(self, kwargs: dict[str, Any], name: str) -> Any:
        """Return what `generate` would use for a name: the argument, or the generation config's value."""
        for source in (kwargs.get(name), kwargs.get("generation_config"), self.generation_config):
            value = getattr(source, name, None) if hasattr(source, "to_diff_dict") else source
            if value is not None:
                return value
        return None


def _picked(rows: Tensor, wanted: Any) -> Tensor:
    """Return the rows that `logits_to_keep` names, as Transformers 5.19 does."""
    return rows[:, slice(-wanted, None) if isinstance(wanted, int) else wanted]


picked = getattr(modeling_utils, "slice_logits_to_keep", _picked)


def _with_prompt(result: Any, prompt: Tensor, length: int) -> Any:
    """Put the caller's prompt (B, L) in front of the new tokens, in place of the one that was run."""
    sequences = result if isinstance(result, Tensor) else getattr(result, "sequences", None)
    if sequences is None or sequences.ndim != 2 or sequences.shape[1] < length:  # A custom loop may return anything.
        return result
    before = prompt.repeat_interleave(len(sequences) // len(prompt), dim=0)
    sequences = torch.cat([before.to(sequences.device), sequences[:, length:]], dim=1)
    if isinstance(result, Tensor):
        return sequences
    result.sequences = sequences
    return result


def _before_placeholders(
    get_candidates: Callable[..., Any], config: Any, input_ids: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Any]:
    """Return the drafts of prompt lookup up to the first placeholder of an image, a video or a sound."""
    candidates, logits = get_candidates(input_ids, *args, **kwargs)
    ids = [getattr(config, f"{kind}_token_id", None) for kind in ("image", "video", "audio")]
    drafts = candidates[:, input_ids.shape[1] :]
    is_media = torch.isin(drafts, drafts.new_tensor([each for each in ids if each is not None]))
    length = int((is_media.cumsum(dim=1) == 0).sum(dim=1).min())
    return candidates[:, : input_ids.shape[1] + length], logits


def _check_whole_conversation(tokens: Tensor, mask: Any, before: Conversation) -> None:
    if tuple(mask.shape) != tuple(tokens.shape[:2]) or tokens.shape[1] <= before.caller_length:
        raise ValueError(
            f"`input_ids` is {tuple(tokens.shape[:2])} and `attention_mask` is {tuple(mask.shape)}, but both must "
            f"cover the whole conversation: the {before.caller_length} tokens of the KV cache and at least one more."
        )


def _labels(labels: Tensor, inputs: dict[str, Any], layout: Layout, logits_to_keep: Any) -> dict[str, Any]:
    """Return the arguments of a loss over the tokens that stay, from those of the caller's prompt."""
    shape, shifted = layout.rows.shape, inputs.get("shift_labels")
    if not isinstance(logits_to_keep, int) or logits_to_keep:
        raise ValueError(
            f"`logits_to_keep` is {logits_to_keep}, but `labels` need the logits of the whole prompt. Pass one of them."
        )
    for name, value in (("labels", labels), ("shift_labels", shifted)):
        if value is not None and value.shape != shape:
            raise ValueError(
                f"`{name}` is {tuple(value.shape)}, but the prompt is {tuple(shape)}. Give each token its label, or "
                f"{IGNORED_LABEL} if it has none."
            )
    if shifted is not None:  # They hold, for each token, the label of the next one.
        labels = torch.cat([torch.full_like(shifted[:, :1], IGNORED_LABEL), shifted[:, :-1]], dim=1)
    short = layout.laid_out(labels, IGNORED_LABEL)
    # No token precedes the first one. If padding does, the shifted loss would predict the token from the padding.
    is_token = layout.order.to(labels.device) >= 0
    short[:, 1:].masked_fill_(is_token[:, 1:] & ~is_token[:, :-1], IGNORED_LABEL)
    number = inputs.get("num_items_in_batch")
    given, left = ((each[:, 1:] != IGNORED_LABEL).sum() for each in (labels, short))
    found: dict[str, Any] = {"labels": short}
    if number is not None and given != left:
        # If the number counts this batch alone, the loss is the mean over the labels that are left. If it also counts
        # other batches, it is not known here how many of their labels are left.
        if (torch.as_tensor(number).to(given.device) != given).any():
            raise ValueError(
                f"`num_items_in_batch` counts labels of several batches or devices, among them {int(given)} of this "
                f"batch, of which {int(given - left)} are those of dropped tokens. Set the labels of video "
                f"placeholders and of each prompt's first token to {IGNORED_LABEL} in the data collator, or write the "
                "prompts with this project's processor. Or set `model.accepts_loss_kwargs = False` before the "
                "`Trainer` is made, which then averages the losses of the batches, however many labels each has."
            )
        found["num_items_in_batch"] = None
    if shifted is not None:
        found["shift_labels"] = torch.cat([short[:, 1:], shifted[:, -1:]], dim=1)
    return found
