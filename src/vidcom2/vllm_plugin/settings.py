"""The settings of a repo and of a request. Some are refused, because vLLM counts tokens before it sees a video."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from vllm.model_executor.models.config import MODELS_CONFIG_MAP, VerifyAndUpdateConfig
from vllm.transformers_utils.config import uses_mrope

from ..configuration.compression_settings import (
    ALL_TOKENS,
    COMPRESSION_METHODS,
    NO_BUDGET,
    SETTING_NAMES,
    CompressionSettings,
    checked_setting,
)
from ..families.table import FAMILIES
from ..modeling.methods.compression import VideoTokens, compress_with
from ..modeling.registered_methods import METHODS as METHODS  # so that all methods are here

RATIO, BUDGET = "retention_ratio", "max_video_tokens"
OF_BOUNDS = "request_"  # begins the names of what the operator lets requests ask for
OF_THE_MODEL = ("compression_newlines", "spatial_pool_mode")  # no call can set them, as in Transformers
OF_THE_TOWER = tuple(name for name in SETTING_NAMES if name.startswith("vision_"))
OF_A_REQUEST = tuple(name for name in SETTING_NAMES if name not in OF_THE_TOWER)
# vLLM's flags for its own pruning, and the settings that a request has instead.
OF_VLLM = {"video_pruning_rate": RATIO, "video_pruning_method": "compression_method"}
WITHOUT_FEATURES = ("ngram", "suffix")  # speculative decoding that looks only at token ids


def has_mrope_positions(hf_config: Any) -> bool:
    """Return whether the tokens of a prompt have positions t, h and w, which differ."""
    return uses_mrope(hf_config) and not FAMILIES[hf_config.model_type].numbers_tokens


def engine_settings(hf_config: Any) -> CompressionSettings:
    """Return the settings in a repo's config, with the changes of `--hf-overrides`. They are those of a request that
    brings none, so `request_max_video_tokens` is also their budget if they have none.

    Raises:
        ValueError: on settings outside their accepted set, on those that an engine cannot keep to, and on those that
            exceed the bounds of requests.
    """
    given = {name: getattr(hf_config, name) for name in SETTING_NAMES if hasattr(hf_config, name)}
    bounds = RequestBounds.of_config(hf_config)
    if given.get(BUDGET) is None:
        given[BUDGET] = bounds.max_video_tokens
    settings = CompressionSettings(**given)
    check_engine_can_keep(settings, has_mrope=has_mrope_positions(hf_config))
    bounds.check(settings, "config.json or `--hf-overrides`", "Set it within these bounds, or change them")
    return settings


@dataclass(frozen=True)
class RequestBounds:
    """What the operator lets requests ask for, so that no client can make its prompt as long as it likes. Its fields
    with `request_` before their names are fields of the config, which `--hf-overrides` sets.

    Attributes:
        min_ratio, max_ratio: the least and the largest `retention_ratio`, both included; None for no bound.
        max_video_tokens: the largest `max_video_tokens`, which is also the budget of requests that name none.
    """

    min_ratio: float | None = None
    max_ratio: float | None = None
    max_video_tokens: int | None = None

    @classmethod
    def of_config(cls, hf_config: Any) -> "RequestBounds":
        """Return the bounds in a config.

        Raises:
            ValueError: on a bound that is no value of its setting, a least ratio above the largest, and on a name that
                begins like a bound but is none.
        """
        known = {f"{OF_BOUNDS}{each.name}": each.name for each in fields(cls)}
        bounds: dict[str, Any] = {}
        for name, value in vars(hf_config).items():
            if not name.startswith(OF_BOUNDS) or (name in known and value is None):
                continue
            if name not in known:
                raise ValueError(f"`{name}` in the config is not a bound of requests. They are {', '.join(known)}.")
            try:
                bounds[known[name]] = checked_setting(BUDGET if known[name] == BUDGET else RATIO, value)
            except ValueError as error:
                raise ValueError(f"`{name}` is the bound of a setting. {error}") from None
        found = cls(**bounds)
        if (found.min_ratio or 0) > (found.max_ratio or 1):
            raise ValueError(
                f"`{OF_BOUNDS}min_ratio` is {found.min_ratio}, but `{OF_BOUNDS}max_ratio` is {found.max_ratio}. Set it "
                "to at most as much."
            )
        return found

    def check(self, settings: CompressionSettings, where: str, remedy: str) -> None:
        """Check that settings are within the bounds.

        Args:
            where: where they come from, for the error, and `remedy` what to do about it.

        Raises:
            ValueError: if they are not.
        """
        least, most = self.min_ratio or 0, self.max_ratio or 1
        if not least <= settings.retention_ratio <= most:
            raise ValueError(
                f"`{RATIO}` is {settings.retention_ratio} in {where}, but this server accepts {least:g} to {most:g} "
                f"(`{OF_BOUNDS}min_ratio` and `{OF_BOUNDS}max_ratio`). {remedy}."
            )
        budget = settings.max_video_tokens
        if self.max_video_tokens is not None and (budget is None or budget > self.max_video_tokens):
            raise ValueError(
                f"`{BUDGET}` is {budget} in {where}, but this server accepts at most {self.max_video_tokens} "
                f"(`{OF_BOUNDS}{BUDGET}`). {remedy}."
            )

    def most(self, engine: CompressionSettings, num_frames: int) -> dict[str, Any]:
        """Return the settings with which no request of a server can have more placeholders for the largest video.

        Args:
            num_frames: the frames of that video. It has at least one for two of them.
        """
        if self == RequestBounds(self.min_ratio):
            return dict(ALL_TOKENS)
        # Whatever method a request names, it keeps as many as V-CAST, or for a low ratio the tokens of one frame.
        is_own = COMPRESSION_METHODS[engine.compression_method].own
        method = {"compression_method": "vcast"} if is_own else {}
        ratio = max(self.max_ratio or 1.0, min(1.0, 2 / max(num_frames, 1)))
        # That every frame keeps a token may take more than the budget. Requests with such a video are refused.
        budget = NO_BUDGET if self.max_video_tokens is None else max(self.max_video_tokens, num_frames)
        return {**method, RATIO: ratio, BUDGET: budget}


def check_engine_can_keep(settings: CompressionSettings, has_mrope: bool) -> None:
    """Raise a ValueError on a setting that keeps vLLM from counting a video's tokens, or that vLLM would ignore."""
    method = COMPRESSION_METHODS[settings.compression_method]
    # What passes keeps the same number whatever a video shows. For a user's own method that is checked when it runs.
    if not method.keeps_by_sizes(settings.compression_rounding):
        raise ValueError(
            f"`compression_rounding` is {settings.compression_rounding!r}, which makes the number of kept tokens "
            "depend on what a video shows, but vLLM counts them before it has seen the video. Set it to "
            """"exact" in config.json, with `--hf-overrides '{"compression_rounding": "exact"}'`, or in the request."""
        )
    if settings.vision_method != "full":
        raise ValueError(
            f"`vision_method` is {settings.vision_method!r}, but vLLM's own vision tower encodes the videos. Set it to "
            '"full".'
        )
    if settings.compression_positions != "consecutive" and not has_mrope:
        raise ValueError(
            f"`compression_positions` is {settings.compression_positions!r}, but vLLM gives the tokens of a prompt "
            'consecutive positions. Set it to "consecutive".'
        )


def check_model(hf_config: Any, pipeline_stages: int = 1) -> None:
    """Check that the plugin serves a model, of a family that it serves.

    Raises:
        ValueError: if it does not.
    """
    attention = getattr(hf_config.get_text_config(), "use_bidirectional_attention", None)
    if attention == "vision":
        raise ValueError(
            f"`text_config.use_bidirectional_attention` is {attention!r}: the tokens of a frame attend to each other, "
            "as in Gemma 4's 26B and 31B, but vLLM fixes which ones do so before it has seen the video. Serve the repo "
            "with `transformers serve`, or the stock checkpoint without compression."
        )
    family = FAMILIES[hf_config.model_type]
    if pipeline_stages > 1 and not family.stages:
        raise ValueError(
            f"`--pipeline-parallel-size` is {pipeline_stages}, but {family.name}'s later stages would need the keys "
            "and embeddings of earlier ones, which vLLM does not pass on. Use `--tensor-parallel-size`."
        )


class SettingsAtStart(VerifyAndUpdateConfig):
    """The check of settings and flags that vLLM calls once for an engine, before it loads anything."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Do what vLLM does for the stock model, refuse settings that an engine cannot keep to, and read
        `--video-pruning-rate q` as a retention ratio of 1 - q.

        Raises:
            ValueError: as `engine_settings`, and on flags that contradict each other or the model.
        """
        of_stock = MODELS_CONFIG_MAP.get(vllm_config.model_config.architecture.removeprefix("VidCom2"))
        if of_stock is not None:
            of_stock.verify_and_update_config(vllm_config)
        model_config, multimodal = vllm_config.model_config, vllm_config.model_config.multimodal_config
        hf_config = model_config.hf_config
        if multimodal is not None and multimodal.video_pruning_rate is not None:
            rate = multimodal.video_pruning_rate
            ratio = round(1 - rate, 12)  # 1 - 0.9 is a little less than 0.1
            overrides = model_config.hf_overrides
            other = overrides.get(RATIO, ratio) if isinstance(overrides, dict) else ratio
            if other != ratio:
                raise ValueError(
                    f"`--video-pruning-rate {rate}` asks for a retention ratio of {ratio}, and `--hf-overrides` for "
                    f"one of {other}. Pass one of them."
                )
            hf_config.retention_ratio = ratio
            multimodal.video_pruning_rate = None  # otherwise vLLM's own classes would prune too
        settings = engine_settings(hf_config)
        check_model(hf_config, vllm_config.parallel_config.pipeline_parallel_size)
        if multimodal is None:
            return
        for name, value in named_settings(multimodal.mm_processor_kwargs or {}):
            raise ValueError(
                f"`{name}` is {value!r} in `--mm-processor-kwargs`, but the server's settings come from the repo. "
                f"Pass `--hf-overrides '{json.dumps({name: value}, default=str)}'`."
            )
        if multimodal.video_pruning_method not in ("evs", settings.compression_method):  # the first is vLLM's default
            raise ValueError(
                f"`--video-pruning-method` is {multimodal.video_pruning_method!r}, but the repo's `compression_method` "
                f"is {settings.compression_method!r}. Leave the flag out, or change the repo's with `--hf-overrides "
                f"""'{{"compression_method": {json.dumps(multimodal.video_pruning_method)}}}'`."""
            )
        lora, drafter = vllm_config.lora_config, vllm_config.speculative_config
        if lora is not None and lora.enable_tower_connector_lora:
            raise ValueError(
                "`--enable-tower-connector-lora` is set, but vLLM applies adapters of the tower to as many tokens as "
                "are left of a video. Leave it out: adapters of the language model are served."
            )
        if not has_mrope_positions(hf_config):
            return
        if vllm_config.parallel_config.use_ubatching:
            raise ValueError(
                "`--enable-dbo` or `--ubatch-size` is set and splits steps, but the positions of kept video tokens are "
                "given for a whole step. Leave it out."
            )
        if drafter is not None and drafter.method not in WITHOUT_FEATURES:
            raise ValueError(
                f"The speculative decoding method is {drafter.method!r}, whose model would be given video tokens "
                f"together with their positions, which it cannot read. Use {' or '.join(map(repr, WITHOUT_FEATURES))}."
            )


def settings_of_request(
    engine: CompressionSettings,
    processor_kwargs: Mapping[str, object],
    has_mrope: bool,
    bounds: RequestBounds = RequestBounds(),
) -> CompressionSettings:
    """Return the settings with which a request's videos are compressed.

    Args:
        engine: the settings of every request that sets none.
        processor_kwargs: the request's `mm_processor_kwargs`. None stands for the engine's value.
        has_mrope: whether the model has M-RoPE positions.
        bounds: what the operator lets requests ask for.

    Raises:
        ValueError: on a setting that a request cannot set, a value that the operator does not accept, and a name that
            looks like a setting but is none.
    """
    for name, value in named_settings(processor_kwargs):
        if name in OF_THE_TOWER and (name, value) != ("vision_method", "full"):
            raise ValueError(
                f"`{name}` is {value!r} in a request, but vLLM's own vision tower encodes every video in its own way. "
                "Leave it out of `mm_processor_kwargs`."
            )
        if name in OF_THE_MODEL:
            raise ValueError(
                f"`{name}` is {value!r} in a request, but it belongs to the model. Set it in config.json, or with "
                "`--hf-overrides`, for all requests."
            )
    given = {name: processor_kwargs.get(name) for name in OF_A_REQUEST}
    settings = engine.compression_settings(**given)
    method = COMPRESSION_METHODS[settings.compression_method]
    if not method.own and method.name != engine.compression_method:
        raise ValueError(
            f"`compression_method` is {method.name!r} in a request, but vLLM learns only while it encodes a video "
            "whether a registered method keeps as many tokens as it has counted, and an error there stops the server. "
            "Set it in config.json, or with `--hf-overrides`, for all requests."
        )
    check_engine_can_keep(settings, has_mrope)
    bounds.check(settings, "a request", "Leave it out, or pass a value that is accepted")
    return settings


def without_settings(processor_kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return the processor's own arguments among the `mm_processor_kwargs` of a request."""
    return {name: value for name, value in processor_kwargs.items() if name not in SETTING_NAMES + OF_THE_MODEL}


def named_settings(processor_kwargs: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the settings among `mm_processor_kwargs` that are not None.

    Raises:
        ValueError: on a name that looks like a setting but is none, because vLLM would ignore it, and on a setting
            inside of `videos_kwargs` and the like.
    """
    known = SETTING_NAMES + OF_THE_MODEL
    for name, value in processor_kwargs.items():
        if isinstance(value, Mapping):
            for inner in value:
                if inner in known or _looks_like_a_setting(inner):
                    raise ValueError(
                        f"`{inner}` stands inside of `{name}`, where only a processor's own arguments are read. Put "
                        "settings of the compression directly into `mm_processor_kwargs`."
                    )
        elif value is not None and name in known:
            yield name, value
        elif _looks_like_a_setting(name) and name not in known:
            close = [OF_VLLM[name]] if name in OF_VLLM else difflib.get_close_matches(name.lower(), SETTING_NAMES, n=1)
            hint = f"Did you mean `{close[0]}`? " if close else ""
            raise ValueError(
                f"`{name}` in `mm_processor_kwargs` is not a setting. {hint}A request may set "
                f"{', '.join(f'`{each}`' for each in OF_A_REQUEST)}."
            )


def _looks_like_a_setting(name: str) -> bool:
    """Return whether a name begins like a setting of the compression or a flag of vLLM's, or is a misspelt one."""
    begins = name.lower().startswith(("compression_", "retention_", "max_video_", "vision_", "video_pruning_"))
    return begins or bool(difflib.get_close_matches(name.lower(), SETTING_NAMES, cutoff=0.8))


def kept_tokens(settings: CompressionSettings, num_frames: int, grid: tuple[int, int]) -> int:
    """Return how many tokens of a video stay, whatever it shows. The method counts them on an empty video.

    Raises:
        ValueError: on a ratio that the method does not support for a video of this size.
    """
    return _kept_tokens(tuple(settings.as_dict().items()), num_frames, grid)


@lru_cache(maxsize=1024)
def _kept_tokens(settings: tuple[tuple[str, Any], ...], num_frames: int, grid: tuple[int, int]) -> int:
    empty = torch.zeros(num_frames, grid[0] * grid[1], 2)
    return len(compress_with(CompressionSettings(**dict(settings)), VideoTokens(empty, grid)).indices)
