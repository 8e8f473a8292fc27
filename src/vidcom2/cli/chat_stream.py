"""`vidcom2 chat --stream` answers questions about a stream while it is watched. `live/` does the work."""

from typing import TYPE_CHECKING, Any

import typer

from ..checks import FAMILY_SETTINGS
from ..errors import OptionError
from ..finding_checkpoints import resolve
from .console import INTERRUPTED, as_typed, err, out, questions, status
from .loading import announce_demo, import_libraries, template_arguments

if TYPE_CHECKING:
    from ..live.viewer import Viewer
    from .chat import ChatOptions

USED = ("max_video_tokens", "compression_positions", *FAMILY_SETTINGS)  # of the settings, by a live video


def chat_about_stream(stream: str, options: "ChatOptions") -> None:
    """Watch a stream, and answer each line of stdin by itself, about all that was seen until then."""
    if options.video is not None:
        raise OptionError(f"the video is {options.video!r}, but `--stream` is {stream!r}. Leave one of them out.")
    for name, value in options.settings.items():
        if name not in USED:
            raise OptionError(
                f"`{name}` is {value!r}, but a live video keeps what covers it in `max_video_tokens`. Leave it out."
            )
    of_template = template_arguments(options.chat_template_kwargs)
    from ..video.live_source import LiveSource

    source = LiveSource(stream, options.fps)
    resolved = resolve(options.model, options.placement, options.settings)
    import_libraries(options.placement)
    from transformers import TextStreamer

    from ..checkpoints import load_resolved
    from ..live.live_video import MAX_VIDEO_TOKENS, LiveVideo
    from ..live.viewer import Viewer

    checkpoint = load_resolved(resolved)
    most = options.settings.get("max_video_tokens", MAX_VIDEO_TOKENS)
    live = LiveVideo(checkpoint.model, checkpoint.processor, max_video_tokens=most)
    announce_demo(options.model)

    def ended(error: Exception | None) -> None:
        if live.num_frames and not source.stopped:
            why = "" if error is None else f": {as_typed(str(error))}"
            err.print(f"[yellow]The stream has ended[/]{why}. Ask on, or leave by /quit.", highlight=False)

    viewer = Viewer(live, source, ended)
    viewer.start()
    tokenizer: Any = checkpoint.processor.tokenizer
    try:
        with status("Waiting for the first frame ..."):
            viewer.wait_for_a_frame()
        for question in questions():
            with viewer.paused():
                try:
                    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
                    live.ask(
                        question,
                        max_new_tokens=options.max_new_tokens,
                        chat_template_kwargs=of_template,
                        streamer=streamer,
                    )
                except OptionError as error:  # the next question may be fine
                    err.print(f"[bold red]Error:[/] {as_typed(str(error))}", highlight=False)
                    continue
                out.print(f"({_told(viewer)})", style="dim")
    except KeyboardInterrupt:
        out.print()
        raise typer.Exit(INTERRUPTED) from None
    finally:
        viewer.stop()


def _told(viewer: "Viewer") -> str:
    """Return what of a stream is remembered, and what was missed."""
    live, source = viewer.live, viewer.source
    kept = len(live.watched().features.video_compressions[0].indices)
    seen = -(-live.num_frames // live.frames_together) * (live.tokens_per_frame or 0)
    missed = f", {source.dropped:,} frames dropped" if source.dropped else ""
    again = f", opened again {source.reopened} times" if source.reopened else ""
    return f"{kept:,} of {seen:,} tokens of {viewer.seconds:,.0f} s{missed}{again}"
