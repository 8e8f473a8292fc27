"""Answering questions about many videos with vLLM's offline engine, through the plugin in `vllm_plugin/`.

Threads read the next videos. vLLM preprocesses, batches and answers: a request joins the running batch as soon as there
is room, and leaves it when its answer ends. Requests carry their settings as in docs/serving.md.
"""
# vLLM has an environment of its own:
# pyright: reportMissingImports=false

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import vllm
from vllm.exceptions import VLLMClientError

from ..asking.prompting import (
    at_least_a_pair,
    prepare_inputs,
    prompt_text,
    spacing_of_a_part,
)
from ..configuration.compression_settings import CompressionSettings
from ..errors import OptionError, brief, one_line, reason_of
from ..loading.checkpoints import read_config_and_processor
from ..loading.finding_checkpoints import Resolved
from ..video.reading import Video
from ..vllm_plugin.compat import REASONS, why_not
from ..vllm_plugin.settings import check_engine_can_keep, check_model, has_mrope_positions
from .engine import Engine, Prepared
from .requests import AnsweredRequest, HowToAnswer, VideoRequest


@dataclass(frozen=True, eq=False)
class _Prompt:
    """A request as vLLM takes it, with the shape of its video's frames."""

    request: VideoRequest
    for_vllm: dict[str, Any]
    shape: tuple[int, ...]
    lost_frames: int


def config_and_processor(model: Resolved) -> tuple[Any, Any]:
    """Return what a checkpoint's config and processor are in vLLM, without starting an engine.

    Raises:
        OptionError: on settings that an engine cannot keep to, and on another version of vLLM.
        CheckpointError: if the config or the processor cannot be read.
    """
    problem = why_not(vllm.__version__)
    if problem is not None:
        raise OptionError(problem)
    config, processor = read_config_and_processor(model)
    if model.source.base is not None:
        raise OptionError(
            f"{model.name} is an adapter. Merge it into its base and name the result, serve the base with vLLM's "
            "`--enable-lora`, or use --engine transformers."
        )
    reason = REASONS.get(model.family.model_class.__name__)
    if reason is not None:
        raise OptionError(f"{model.name} cannot be answered in vLLM, because {reason}. Use --engine transformers.")
    try:
        check_model(config)
        check_engine_can_keep(config.compression_settings(), has_mrope_positions(config))
    except ValueError as error:
        raise OptionError(f"{error} (Of `vidcom2 run`, each setting is an option.)") from None
    return config, processor


class VllmEngine(Engine):
    """vLLM's engine, and the requests in it.

    Args:
        model: the model that was found. Its settings are those of the run, and a request's own replace them. Of its
            placement the dtype holds; vLLM chooses the rest.
        how: its `batch_size` is the most requests in the engine at a time, and so in a step of it.
        arguments: further arguments of `vllm.LLM`.

    Raises:
        CheckpointError, OptionError: as `config_and_processor`.
    """

    def __init__(self, model: Resolved, how: HowToAnswer, arguments: Mapping[str, Any]) -> None:
        config, processor = config_and_processor(model)
        super().__init__(processor, how, ahead=2 * how.workers)
        family, source = model.family, model.source
        own = {each: getattr(config, each) for each in family.settings}
        commit: dict[str, Any] = {} if source.commit is None else {"revision": source.commit}
        # The processors of GLM and InternVL give a video the placeholders of images. The plugin gives it its own.
        self.placeholder = self.processor.tokenizer.convert_tokens_to_ids(self.processor.video_token)
        as_images = any(hasattr(config, name) for name in ("video_start_token_id", "frame_marks"))
        self.full_placeholder = config.image_token_id if as_images else self.placeholder
        self.spreads_times = family.spreads_times
        # To vLLM, "auto" means bfloat16 for a checkpoint in float32.
        dtype = model.placement.dtype
        if dtype == "auto":
            dtype = str(config.dtype or "auto").removeprefix("torch.")
        # A stock checkpoint is served by the plugin's class too, whatever its config.json names.
        overrides = {"architectures": [family.model_class.__name__], **CompressionSettings.as_dict(config), **own}
        given = dict(arguments)
        others = given.pop("hf_overrides", {})
        if not isinstance(others, dict) or others.keys() & overrides.keys():
            raise OptionError(
                f"`hf_overrides` of vLLM's arguments is {brief(others)}, but must be an object without "
                "`architectures` and without settings of VidCom², which are options."
            )
        try:
            self.llm = vllm.LLM(
                model=source.path,
                dtype=dtype,
                max_num_seqs=how.batch_size,
                limit_mm_per_prompt={"video": 1, "image": 0},
                hf_overrides=others | overrides,
                **commit,
                **given,
            )
        except TypeError as error:
            if not any(f"'{name}'" in str(error) for name in given):
                raise
            raise OptionError(f"vLLM's arguments are {brief(given)}, which it does not take: {error}.") from error
        self._asked: dict[str, _Prompt] = {}
        self._full_video_tokens = lru_cache(maxsize=1024)(self._count_full_video_tokens)

    def prompt(
        self, request: VideoRequest, video: Video, template_arguments: dict[str, Any], group: Prepared
    ) -> "_Prompt":
        if self.spreads_times and spacing_of_a_part(video) is not None:
            raise OptionError(
                "the frames show only a part of the video, but vLLM gives this family the times of frames that are "
                "spread over all of it. Ask it with --engine transformers."
            )
        text = prompt_text(self.processor, request.prompt, template_arguments)
        if getattr(self.processor, "add_time_instruction", False):  # vLLM tokenizes the prompt before it sees the video
            from ..modeling.families.processing_llava_video import time_instruction

            token, said = self.processor.video_token, time_instruction(video.seconds.tolist(), video.duration)
            text = text.replace(token, f"{token}\n{said}", 1)
        frames, metadata = at_least_a_pair(self.processor, video)
        asked = {"prompt": text, "multi_modal_data": {"video": [(frames, {**metadata, "do_sample_frames": False})]}}
        asked |= {"mm_processor_kwargs": request.settings} if request.settings else {}
        return _Prompt(request, asked, video.frames.shape, video.lost)

    def _answered(self, take: Callable[..., Prepared | None], prepare: Any) -> Iterator[AnsweredRequest]:
        while True:
            while len(self._asked) < self.how.batch_size:
                group = take(not self._asked)
                if group is None:
                    break
                yield from group.refused
                for prompt in group.prompts:
                    refused = self._add(prompt)
                    if refused is not None:
                        yield refused
            if not self._asked:
                return
            for output in self.llm.llm_engine.step():
                if output.finished:
                    prompt = self._asked.pop(output.request_id)
                    try:
                        answer = self._answer(prompt, output)
                    except Exception as error:
                        answer = AnsweredRequest(prompt.request, error=reason_of(error))
                    yield answer

    def _add(self, prompt: _Prompt) -> AnsweredRequest | None:
        """Hand a request to vLLM, which preprocesses it. Returns it with an error if vLLM refuses it, as it does with
        a prompt that is longer than the model takes."""
        greedy = self.llm.get_default_sampling_params()
        greedy.temperature, greedy.max_tokens = 0.0, prompt.request.max_new_tokens or self.how.max_new_tokens
        try:
            (number,) = self.llm.enqueue([prompt.for_vllm], greedy, use_tqdm=False)
        except Exception as error:
            # vLLM's own class for what is wrong with a request is no ValueError.
            reason = one_line(error) if isinstance(error, VLLMClientError) else reason_of(error)
            return AnsweredRequest(prompt.request, error=reason)
        self._asked[number.partition("-")[0]] = prompt  # outputs have the number without its random ending
        return None

    def _answer(self, prompt: _Prompt, output: Any) -> AnsweredRequest:
        ids, new, ending = output.prompt_token_ids, list(output.outputs[0].token_ids), output.outputs[0].finish_reason
        if ending in ("abort", "error"):  # with the tokens that it had until then
            return AnsweredRequest(prompt.request, error=f"vLLM gave up this request (finish_reason {ending!r}).")
        video_tokens, full = ids.count(self.placeholder), self._full_video_tokens(prompt.shape)
        return AnsweredRequest(
            request=prompt.request,
            answer=self.processor.decode(new, skip_special_tokens=True),
            prompt_tokens=len(ids),
            video_tokens=video_tokens,
            full_prompt_tokens=len(ids) - video_tokens + full,
            full_video_tokens=full,
            new_tokens=len(new),
            lost_frames=prompt.lost_frames,
        )

    def _count_full_video_tokens(self, shape: tuple[int, ...]) -> int:
        """Return how many tokens a video of this shape has without compression, which depends on nothing else."""
        video = Video.from_frames(np.zeros(shape, dtype=np.uint8), fps=1.0)
        return int((prepare_inputs(self.processor, "?", video)["input_ids"] == self.full_placeholder).sum())

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
