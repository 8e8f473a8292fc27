"""VidCom² models in lmms-eval, which runs the official benchmarks: `lmms-eval --model vidcom2 --model_args ...`.

Only lmms-eval imports this file, by the entry point `lmms_eval.models`. Its own model classes do not fit: the generic
class (`huggingface`) leaves the choice of frames to each processor, and the families' classes load the stock,
uncompressed models. Here frames, prompts and generation are those of `ask`.
"""

import re
import shlex
import sys
from collections.abc import Sequence
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Any, NoReturn

from accelerate import Accelerator
from lmms_eval.api.instance import (  # pyright: ignore[reportMissingImports]  (an optional dependency)
    GenerationResult,
    Instance,
    TokenCounts,
)
from lmms_eval.api.model import lmms  # pyright: ignore[reportMissingImports]
from lmms_eval.models.registry_v2 import ModelManifest  # pyright: ignore[reportMissingImports]
from transformers.utils.logging import tqdm

from ..asking.ask import ask
from ..asking.comparison import environment
from ..checks import check_video_file, import_methods
from ..errors import OptionError
from ..live.live_video import LiveVideo
from ..loading.checkpoints import load_resolved
from ..loading.finding_checkpoints import resolve
from ..loading.placement import Placement
from ..presets import NUM_FRAMES
from ..records.fingerprints import certificate_of
from ..records.provenance import birth_certificate, cpu_name, without_folder
from ..video.live_source import played
from ..video.reading import VideoError, read_video

MAX_NEW_TOKENS = 128  # for tasks that state none; in the official benchmarks these answer with a letter
SAMPLING = ("temperature", "top_p", "top_k")
# A task is a file of somebody else's: it may name these arguments of `generate`, and no others.
OF_TASKS = {"max_new_tokens", "min_new_tokens", "do_sample", *SAMPLING, "min_p", "num_beams", "repetition_penalty"}

MANIFEST = ModelManifest("vidcom2", simple_class_path=f"{__name__}.VidCom2ForLmmsEval")


class VidCom2ForLmmsEval(lmms):
    """A checkpoint of any supported family. Each process of `accelerate launch` answers its part of the questions.

    It answers tasks that generate a text about one video file, and refuses others.
    """

    is_simple = True  # lmms-eval passes the question and the video's path; we apply the chat template

    def __init__(
        self,
        pretrained: str,
        num_frames: int = NUM_FRAMES,
        live_fps: float | None = None,
        device: str | None = None,
        device_map: str | None = None,
        import_module: str | None = None,
        batch_size: int | str = 1,
        **settings: Any,
    ) -> None:
        """Load the model. lmms-eval passes what it reads from `--model_args`, `--batch_size` and `--device`.

        Args:
            pretrained: a Hub id or a folder, which may hold a stock checkpoint.
            num_frames: how many frames are sampled, evenly in time. A shorter video gives all it has.
            live_fps: play each video to a `LiveVideo`, this many frames a second, in place of `num_frames`. Of the
                settings it reads `max_video_tokens` (1568) alone.
            device: None means accelerate's choice.
            device_map: how accelerate spreads the model over devices, in one process alone.
            import_module: a module or file of the user's that registers compression methods.
            batch_size: 1, as in the paper.
            **settings: the other fields of `Placement` (`dtype`, `attn_implementation`, `revision`); and settings of
                VidCom² (`retention_ratio=0.25`), the checkpoint's own where not given.

        Raises:
            CheckpointError: if the model cannot be loaded.
            OptionError: a ValueError, on an argument that is unknown, outside its accepted set, or excludes another.
        """
        super().__init__()
        if batch_size not in (1, "1"):
            raise OptionError(f"`--batch_size` is {batch_size!r}, but must be 1. Use more processes instead.")
        if not isinstance(num_frames, int) or num_frames < 1:
            raise OptionError(f"`num_frames` is {num_frames!r}, but must be a whole number, at least 1.")
        self.accelerator = Accelerator()
        self._rank, self._world_size = self.accelerator.process_index, self.accelerator.num_processes
        if self._world_size > 1 and (device or device_map):
            raise OptionError(
                f"`{'device' if device else 'device_map'}` is {device or device_map!r}, but each of the "
                f"{self._world_size} processes has a device of its own. Leave it out."
            )
        if device is None:
            device = "auto" if device_map is not None else str(self.accelerator.device)
        settings |= {"device": device, "device_map": device_map}
        placement = Placement.popped_from(settings)
        if live_fps is not None and (not isinstance(live_fps, int | float) or not live_fps > 0):
            raise OptionError(f"`live_fps` is {live_fps!r}, but must be a number of frames per second above 0.")
        for name in settings if live_fps is not None else ():
            if name != "max_video_tokens":
                raise OptionError(f"`{name}` has no meaning for a live video (`live_fps`). Leave one of them out.")
        if import_module is not None:
            import_methods(import_module)
        resolved = resolve(pretrained, placement, settings)
        checkpoint = load_resolved(resolved)
        self.model, self.processor = checkpoint.model, checkpoint.processor
        self._where: dict[str, Any] = {"prepare_on": placement.prepare_on}
        self._name, self._commit = resolved.name_in_results, resolved.source.commit
        self._identity, self._num_frames = checkpoint.identity, num_frames
        # Questions about the same video mostly follow each other, and a long video takes long to decode.
        self._read = lru_cache(maxsize=1)(partial(read_video, num_frames=num_frames))
        self._settings = self.model.config.compression_settings()
        self._live_fps, self._watch = live_fps, lru_cache(maxsize=1)(self._watched_live)

    @property
    def device(self) -> Any:
        """The device where lmms-eval gathers its counts."""
        return self.accelerator.device

    def generate_until(self, requests: Sequence[Instance]) -> list[GenerationResult]:
        """Return the answers. Their `input_tokens` count the compressed prompt.

        Raises:
            OptionError: before anything is answered, if a request is not about one video file, or its task has an
                option that is not among `OF_TASKS`.
            SystemExit: on a video that cannot be read. lmms-eval would catch an exception, end this process normally,
                and leave the other processes waiting for it.
        """
        paths = [self._video_file(request) for request in requests]
        arguments = [generation_arguments(request.args[1]) for request in requests]
        results, kept, scored = [], 0, 0
        shown = tqdm(requests, desc="Answering", disable=self._rank != 0)
        for request, path, given in zip(shown, paths, arguments, strict=True):
            question, of_task = request.args[:2]
            live = None
            try:
                if self._live_fps is None:
                    video, given = self._read(path), self._where | given
                    answer = ask(video, question, self.model, processor=self.processor, **given)
                else:
                    live = self._watch(path)
                    answer = live.ask(question, **given)
            except (VideoError, OptionError) as error:
                sys.exit(f"vidcom2: task {request.task_name!r}, document {request.doc_id}: {error}")
            kept += len(answer.compression.indices)
            scored += answer.compression.num_tokens if live is None else live.seen_tokens
            text = until_stop(str(answer), of_task.get("until"))
            results.append(GenerationResult(text, TokenCounts(answer.prompt_tokens, answer.new_tokens)))
        if requests:
            self._certify(requests[0], kept / scored)
        return results

    def loglikelihood(self, requests: Sequence[Instance]) -> NoReturn:
        """Refuse the task with an OptionError: vidcom2 does not rank choices by their likelihood."""
        raise _refused(requests, "ranks choices by their likelihood")

    def generate_until_multi_round(self, requests: Sequence[Instance]) -> NoReturn:
        """Refuse the task with an OptionError: a prompt holds a single question."""
        raise _refused(requests, "asks in several rounds")

    def _watched_live(self, path: str) -> LiveVideo:
        live = LiveVideo(self.model, self.processor, **self._where)
        for frame, seconds in played(path, self._live_fps or 1.0):
            live.add(frame, seconds)
        self._settings = live.settings
        return live

    def _video_file(self, request: Instance) -> str:
        _, _, doc_to_visual, number, task, split = request.args
        visuals = doc_to_visual(self.task_dict[task][split][number])
        if not isinstance(visuals, list) or len(visuals) != 1 or not isinstance(visuals[0], str):
            shown = [type(visual).__name__ for visual in visuals] if isinstance(visuals, list) else visuals
            raise OptionError(
                f"the task {task!r} shows {shown}, but vidcom2 answers questions about one video file. Take a task "
                "about videos, such as `videomme`, `mlvu_dev` or `mvbench`."
            )
        check_video_file(visuals[0])
        return visuals[0]

    def _certify(self, request: Instance, kept_share: float) -> None:
        """Make the results file say where its figures come from, which `vidcom2 publish --results` requires.

        lmms-eval itself records neither versions nor the machine. But it writes the options that it was started with,
        which each task holds as `args`, so the certificate is added to these.
        """
        options = getattr(getattr(request.args[2], "__self__", None), "args", None)
        if options is None:  # called by other code than lmms-eval's command line
            return
        words = ["--model", "vidcom2", "--model_args", recorded_arguments(options.model_args, self._commit)]
        words += ["--tasks", ",".join(map(without_folder, str(options.tasks).split(",")))]
        words += ["--gen_kwargs", options.gen_kwargs] if options.gen_kwargs else []
        words += ["--limit", f"{options.limit:g}"] if options.limit is not None else []
        options.birth_certificate = birth_certificate(
            self._name,
            f"lmms-eval {shlex.join(words)}",
            **environment(self.model),
            cpu=cpu_name(),
            **certificate_of(self._identity),
            lmms_eval=version("lmms-eval"),
            processes=self._world_size,
            num_frames=self._num_frames if self._live_fps is None else None,
            live_fps=self._live_fps,
            model_settings=self._settings.as_dict(),
            kept_share=kept_share,
        )


def recorded_arguments(model_args: str, commit: str | None) -> str:
    """Return `--model_args` for the recorded command: files are called by their names, since paths of this machine are
    nobody else's business, and `revision` names the commit of the Hub repo, if the model is from there."""
    files = re.compile(r"(?<![^,])(pretrained|import_module)=([^,]*)")
    named = files.sub(lambda found: f"{found[1]}={without_folder(found[2])}", model_args)
    if commit is None:
        return named
    return re.sub(r"(?<![^,])revision=[^,]*,?", "", named).rstrip(",") + f",revision={commit}"


def generation_arguments(of_task: dict[str, Any]) -> dict[str, Any]:
    """Turn a task's options into arguments of `generate`, greedy unless the task samples at a temperature above 0.
    Raises an OptionError on an option that is not among `OF_TASKS`."""
    arguments = {name: value for name, value in of_task.items() if name != "until" and value is not None}
    for name in arguments.keys() - OF_TASKS:
        raise OptionError(f"the task has the option {name!r}, but tasks may set only {', '.join(sorted(OF_TASKS))}.")
    temperature = arguments.get("temperature")
    samples = bool(arguments.get("do_sample", temperature)) and temperature != 0
    if not samples:
        arguments = {name: value for name, value in arguments.items() if name not in SAMPLING}
    return {"max_new_tokens": MAX_NEW_TOKENS, **arguments, "do_sample": samples}


def until_stop(text: str, stops: str | Sequence[str] | None) -> str:
    """Cut a text at the first of the task's stop strings, after stripping the space around it."""
    text = text.strip()
    for stop in [stops] if isinstance(stops, str) else stops or ():
        text = text.split(stop)[0]
    return text


def _refused(requests: Sequence[Instance], what: str) -> OptionError:
    return OptionError(
        f"the task {requests[0].task_name!r} {what}, which vidcom2 does not do. Take a variant of it that generates an "
        "answer, such as `egoschema_subset` or `perceptiontest_val_mc`."
    )
