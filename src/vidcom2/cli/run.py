"""`vidcom2 run` compares answers about one video. For many videos, `run_many.py` writes a file of answers."""

import json

import typer

from ..checks import check_given, check_settings, is_watched
from ..errors import OptionError
from ..toys import shown_with, toy_of
from .comparison_table import as_json, print_answer, print_comparison
from .console import (
    check_not_given,
    one_line_errors,
    progress_of,
    status,
    takes_fields,
    takes_placement,
    takes_settings,
)
from .loading import announce_demo, load_with_video, template_arguments, watched_video
from .run_many import run_many
from .run_on_ray import run_on_ray
from .run_options import (
    DEFAULT_PROMPT,
    DEMO_AGAINST,
    ENGINES,
    NOT_OF_ENGINE,
    ONLY_MANY,
    ONLY_ONE,
    RunOptions,
)


@takes_settings
@takes_placement
@takes_fields(RunOptions)
def run_command(context: typer.Context, options: RunOptions) -> None:
    """Ask a question about a video with and without compression and measure both, or ask about many videos.

    Prints the answers, the number of tokens in the language model's prompt (counted there), the seconds that its
    prefill and the whole of `generate` took (medians), and how many tokens each frame kept. Without arguments it runs a
    demo, in which a toy model answers a question about a clip, and another method answers with as many tokens.
    About a video that `vidcom2 watch` wrote it prints the answer alone, since only the kept tokens are left.

    With --videos or --requests it answers about many videos, in batches and with compression only, and writes each
    answer to --output as soon as it is there. The same command, started again, continues where it stopped. Exit code 3
    means that some requests ended in an error. With --engine vllm or ray, another engine answers.
    """
    prompt = options.prompt
    if options.videos is not None or options.requests is not None:
        with one_line_errors():
            check_not_given(context, ONLY_ONE, "is for one video, but --videos and --requests ask about many")
            check_given("--prompt", prompt, f"for {DEFAULT_PROMPT!r}")
            if options.engine not in ENGINES:
                raise OptionError(f"`engine` is {options.engine!r}, but must be one of {', '.join(ENGINES)}.")
            check_not_given(context, NOT_OF_ENGINE[options.engine], f"is not an option of --engine {options.engine}")
        (run_on_ray if options.engine == "ray" else run_many)(options)
        return
    remedy = "Take fewer frames (--num-frames), leave the full prompt out (--no-baseline), use --dtype bfloat16, or "
    with one_line_errors(remedy + "spread the model over devices (--device-map auto)."):
        check_not_given(context, ONLY_MANY, "is for many videos, which --videos or --requests names")
        check_given("--prompt", prompt, "for the question of the demo")
        if options.against is not None:
            check_settings({"compression_method": options.against}, typed={"compression_method": "--against"})
        of_template = template_arguments(options.chat_template_kwargs)
        if is_watched(options.video):
            watched = watched_video(context, options)
            with status("Answering ..."):
                answer = watched.ask(
                    prompt or DEFAULT_PROMPT, max_new_tokens=options.max_new_tokens, chat_template_kwargs=of_template
                )
            announce_demo(options.model, options.video)
            print_answer(answer, watched)
            return
        clip = shown_with(options.model)[0] if options.video is None else None
        is_demo = clip is not None and toy_of(options.model) is not None and prompt is None
        frames, checkpoint = load_with_video(options, options.scale_while_reading)
        from ..asking.comparison import compare_answers

        with progress_of("Answering") as progress:
            result = compare_answers(
                checkpoint,
                frames,
                prompt or (clip.question if clip else DEFAULT_PROMPT),
                options.max_new_tokens,
                options.repeats,
                options.baseline,
                progress,
                options.against or (DEMO_AGAINST if is_demo else None),
                of_template,
            )
        if options.as_json:
            print(json.dumps(as_json(result), indent=2))
        else:
            announce_demo(options.model, options.video)
            print_comparison(result, clip.answer if clip and is_demo else None)
