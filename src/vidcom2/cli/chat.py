"""`vidcom2 chat` answers questions about a video one after the other. `answering/conversation.py` does the work."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from ..errors import OptionError
from ..placement import Placement
from .chat_stream import chat_about_stream
from .console import (
    INTERRUPTED,
    as_typed,
    err,
    one_line_errors,
    out,
    questions,
    takes_fields,
    takes_placement,
    takes_settings,
)
from .loading import (
    FramesOption,
    ModelOption,
    TemplateOption,
    announce_demo,
    print_lost,
    template_arguments,
    watched_video,
)


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """The options of `vidcom2 chat`. The command has one option for each field, with its help text."""

    settings: dict[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)
    video: Annotated[
        str | None,
        typer.Argument(
            help="Video file, http(s) URL, or what `vidcom2 watch` wrote. Without it, a short clip that comes with "
            "vidcom2.",
            show_default=False,
        ),
    ] = None
    model: ModelOption = None
    num_frames: FramesOption = 32
    stream: Annotated[
        str | None,
        typer.Option(
            help="Watch a stream: `camera`, a URL (http, rtsp, rtmp, srt, tcp, udp), or a file at its own speed. Each "
            "question is asked by itself.",
            show_default=False,
        ),
    ] = None
    fps: Annotated[float, typer.Option(help="With --stream, the most frames per second to watch.", min=0.01)] = 2.0
    max_new_tokens: Annotated[int, typer.Option(help="Maximum length of an answer, in tokens.", min=1)] = 256
    chat_template_kwargs: TemplateOption = None


@takes_settings
@takes_placement
@takes_fields(ChatOptions)
def chat_command(options: ChatOptions) -> None:
    """Talk about a video: the model is loaded once, and each question continues the conversation.

    Questions are lines on stdin. An empty line is skipped, and `/quit` or the end of the input ends the conversation.
    The video is encoded and compressed once; the KV cache holds its kept tokens and all turns. With `--stream`, a live
    video is remembered in `--max-video-tokens` (1568) tokens.
    """
    with one_line_errors("Take fewer frames (--num-frames), or use --dtype bfloat16 or --device-map auto."):
        if options.stream is not None:
            chat_about_stream(options.stream, options)
            return
        of_template = template_arguments(options.chat_template_kwargs)
        watched = watched_video(options.model, options.video, options.num_frames, options.placement, options.settings)
        from transformers import TextStreamer

        from ..answering.conversation import Conversation

        announce_demo(options.model, options.video, "name its file: `vidcom2 chat FILE`")
        print_lost(0 if watched.video is None else watched.video.lost)
        conversation = Conversation(watched, options.max_new_tokens, of_template)
        processor: Any = watched.checkpoint.processor
        try:
            for question in questions():
                streamer = TextStreamer(processor.tokenizer, skip_prompt=True, skip_special_tokens=True)
                try:
                    conversation.ask(question, streamer)
                except OptionError as error:  # the next question may be fine
                    err.print(f"[bold red]Error:[/] {as_typed(str(error))}", highlight=False)
                    continue
                assert conversation.ids is not None
                held, whole = conversation.cached_tokens, conversation.ids.shape[1]
                out.print(f"({held:,} tokens in the KV cache, of {whole:,} in the conversation)", style="dim")
        except KeyboardInterrupt:
            out.print()
            raise typer.Exit(INTERRUPTED) from None
