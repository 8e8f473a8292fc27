"""`vidcom2 chat` answers questions about a video one after the other. `asking/conversation.py` does the work, and
`chat_stream.py` for a live video."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..checks import FAMILY_SETTINGS, check_given
from ..configuration.compression_settings import SETTING_NAMES
from ..errors import OptionError
from .chat_stream import stream_chat
from .console import (
    INTERRUPTED,
    as_typed,
    check_not_given,
    err,
    one_line_errors,
    out,
    takes_fields,
    takes_placement,
    takes_settings,
)
from .loading import (
    MaybeWatchedArgument,
    TemplateOption,
    VideoOptions,
    announce_demo,
    print_lost,
    template_arguments,
    watched_video,
)

QUIT = ("/quit", "/exit")
LEAVING = "/quit or Ctrl-D leaves the conversation"
COMMANDS = f"A line is a question about the video, an empty one is skipped. {LEAVING}, and /help shows this."
OF_STREAM = {"max_video_tokens", "vision_method"}  # settings
NOT_OF_STREAM = {"video", "num_frames", "recommended", *SETTING_NAMES, *FAMILY_SETTINGS} - OF_STREAM


@dataclass(frozen=True, kw_only=True)
class ChatOptions(VideoOptions):
    """The options of `vidcom2 chat`. The command has one option for each field, with its help text."""

    video: MaybeWatchedArgument = None
    stream: Annotated[
        str | None,
        typer.Option(
            help="A live video instead: a URL (http, rtsp, rtmp, tcp, udp), `camera`, or a file, which is played. At "
            "most --max-video-tokens of it are remembered; without it, the checkpoint's, or 1568.",
            show_default=False,
        ),
    ] = None
    fps: Annotated[float, typer.Option(help="The most frames of a second of --stream that are shown.")] = 2.0
    max_new_tokens: Annotated[int, typer.Option(help="Maximum length of an answer, in tokens.", min=1)] = 256
    chat_template_kwargs: TemplateOption = None


@takes_settings
@takes_placement
@takes_fields(ChatOptions)
def chat_command(context: typer.Context, options: ChatOptions) -> None:
    """Talk about a video: the model is loaded once, and each question continues the conversation.

    Questions are lines on stdin. An empty line is skipped, and `/quit` or the end of the input ends the conversation.
    The video is encoded and compressed once; the KV cache holds its kept tokens and all turns.

    With --stream the model watches a live video, and each question is asked by itself about all that was shown until
    then. Frames for which it has no time are dropped.
    """
    with one_line_errors("Take fewer frames (--num-frames), or use --dtype bfloat16 or --device-map auto."):
        of_template = template_arguments(options.chat_template_kwargs)
        if options.stream is None:
            check_not_given(context, ("fps",), "is for a live video, which --stream names")
            _talk(context, options, of_template)
            return
        check_not_given(context, tuple(NOT_OF_STREAM), "does not apply to a live video, which --stream names")
        check_given("--stream", options.stream, "for a video file")
        arguments = {"max_new_tokens": options.max_new_tokens, "chat_template_kwargs": of_template}
        with stream_chat(
            options.model, options.stream, options.fps, options.placement, options.settings, arguments
        ) as chat:
            announce_demo(options.model)
            _answer_questions(chat.live.checkpoint.processor, chat.ask)


def _talk(context: typer.Context, options: ChatOptions, of_template: dict[str, Any]) -> None:
    watched = watched_video(context, options)
    from ..asking.conversation import Conversation

    announce_demo(options.model, options.video, "chat")
    print_lost(watched.lost_frames)
    conversation = Conversation(watched, options.max_new_tokens, of_template)

    def ask(question: str, streamer: Any) -> str:
        conversation.ask(question, streamer)
        kept = watched.features.video_compressions[0]
        of_video = f"{len(kept.placeholders):,} of {kept.num_placeholders:,} video tokens"
        return f"({conversation.cached_tokens:,} tokens in the KV cache, with {of_video})"

    _answer_questions(watched.checkpoint.processor, ask)


def _answer_questions(processor: Any, ask: Callable[[str, Any], str]) -> None:
    """Answer the lines of stdin.

    Args:
        ask: takes a question and a streamer, which prints the answer. Returns a line about how it came about.
    """
    from transformers import TextStreamer

    try:
        for question in _questions():
            streamer = TextStreamer(processor.tokenizer, skip_prompt=True, skip_special_tokens=True)
            try:
                line = ask(question, streamer)
            except OptionError as error:  # the next question may be fine
                err.print(f"[bold red]Error:[/] {as_typed(str(error))}", highlight=False)
                continue
            out.print(line, style="dim")
    except KeyboardInterrupt:
        out.print()
        raise typer.Exit(INTERRUPTED) from None


def _questions() -> Iterator[str]:
    """Yield the lines of stdin until `/quit` or its end. Print a prompt before each if a person types them."""
    asks = sys.stdin.isatty()
    if asks:
        out.print(f"({LEAVING}; /help shows more)", style="dim", highlight=False)
    while True:
        if asks:
            out.print("[bold]>[/] ", end="")
        line = sys.stdin.readline()
        if not line or line.strip() in QUIT:
            return
        if line.strip() == "/help":
            out.print(COMMANDS, highlight=False)
        elif line.strip():
            yield line.strip()
