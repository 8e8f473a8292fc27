"""The settings of a repo as the engine can keep them: it counts placeholders before it sees features."""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

import dataclasses
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from vllm.model_executor.models.config import MODELS_CONFIG_MAP, VerifyAndUpdateConfig
from vllm.transformers_utils.config import uses_mrope

from ..configuration.compression_methods import COMPRESSION_METHODS
from ..configuration.compression_settings import SETTING_NAMES, CompressionSettings
from ..modeling.compression import compress_with
from ..modeling.video_compression import VideoTokens

RATIO = "retention_ratio"
WITHOUT_FEATURES = ("ngram", "suffix")  # speculative decoding that looks at token ids alone


def engine_settings(hf_config: Any) -> CompressionSettings:
    """The settings in a repo's config, with what `--hf-overrides` changes.

    Raises:
        ValueError: on settings outside their accepted set, and on those that an engine cannot keep.
    """
    given = {name: getattr(hf_config, name) for name in SETTING_NAMES if hasattr(hf_config, name)}
    settings = CompressionSettings(**given)
    method = COMPRESSION_METHODS[settings.compression_method]
    # The others keep the same number whatever a video shows; of a user's own method that is checked where it runs.
    if method.reads("compression_rounding") and settings.compression_rounding != "exact":
        raise ValueError(
            f"`compression_rounding` is {settings.compression_rounding!r}, with which the number of kept tokens hangs "
            'on what a video shows, but vLLM counts them before it has seen it. Set it to "exact" in config.json, or '
            """pass `--hf-overrides '{"compression_rounding": "exact"}'`."""
        )
    if "tower_states" in method.needs:
        raise ValueError(
            f"`compression_method` is {method.name!r}, which looks at states of the vision tower, and vLLM does not "
            "hand these out. Choose another method."
        )
    if settings.vision_update_ratio != 1.0:
        raise ValueError(
            f"`vision_update_ratio` is {settings.vision_update_ratio!r}, but vLLM's vision tower computes every patch. "
            "Set it to 1.0."
        )
    if settings.compression_positions != "consecutive" and not uses_mrope(hf_config):
        raise ValueError(
            f"`compression_positions` is {settings.compression_positions!r}, but vLLM gives the tokens of a prompt "
            'consecutive positions. Set it to "consecutive".'
        )
    return settings


class SettingsAtStart(VerifyAndUpdateConfig):
    """What vLLM calls once for an engine, before it loads anything."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """As for the stock model. Refuse what cannot be kept, and take `--video-pruning-rate q` as a retention ratio of
        1 - q.

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
            multimodal.video_pruning_rate = None  # with which vLLM's own classes prune
        settings = engine_settings(hf_config)
        if multimodal is None:
            return
        if multimodal.video_pruning_method not in ("evs", settings.compression_method):  # the first is vLLM's default
            raise ValueError(
                f"`--video-pruning-method` is {multimodal.video_pruning_method!r}, but the repo's `compression_method` "
                f"is {settings.compression_method!r}. Leave the flag out, or change the repo's with `--hf-overrides "
                f"""'{{"compression_method": {json.dumps(multimodal.video_pruning_method)}}}'`."""
            )
        if uses_mrope(hf_config):
            num_stages = vllm_config.parallel_config.pipeline_parallel_size
            if num_stages > 1:
                raise ValueError(
                    f"`--pipeline-parallel-size` is {num_stages}, but vLLM tells the positions of kept video tokens to "
                    "the first stage alone. Use `--tensor-parallel-size`."
                )
            if vllm_config.parallel_config.use_ubatching:
                raise ValueError(
                    "`--enable-dbo` or `--ubatch-size` is set and takes steps apart, but the positions of kept video "
                    "tokens are told for a whole step. Leave it out."
                )
            drafter = vllm_config.speculative_config
            if drafter is not None and drafter.method not in WITHOUT_FEATURES:
                raise ValueError(
                    f"The speculative decoding method is {drafter.method!r}, whose model would be given video tokens "
                    f"with their positions, but reads them without. Use {' or '.join(map(repr, WITHOUT_FEATURES))}."
                )


def ratio_of(settings: CompressionSettings, processor_kwargs: Mapping[str, object]) -> float:
    """The retention ratio of a request: of its `mm_processor_kwargs`, or the repo's.

    Raises:
        ValueError: outside (0, 1].
    """
    ratio = processor_kwargs.get(RATIO)
    if ratio is None:
        return settings.retention_ratio
    return CompressionSettings(retention_ratio=ratio).retention_ratio  # type: ignore[arg-type]


def with_ratio(settings: CompressionSettings, ratio: float) -> CompressionSettings:
    return dataclasses.replace(settings, retention_ratio=ratio)


def kept_tokens(settings: CompressionSettings, num_frames: int, grid: tuple[int, int]) -> int:
    """How many tokens of a video stay, whatever it shows: the method is asked about a video of nothing.

    Raises:
        ValueError: on a ratio that the method cannot have for a video of this size.
    """
    return _kept_tokens(tuple(settings.as_dict().items()), num_frames, grid)


@lru_cache(maxsize=1024)
def _kept_tokens(settings: tuple[tuple[str, Any], ...], num_frames: int, grid: tuple[int, int]) -> int:
    nothing = torch.zeros(num_frames, grid[0] * grid[1], 2)
    return len(compress_with(CompressionSettings(**dict(settings)), VideoTokens(nothing, grid)).indices)
