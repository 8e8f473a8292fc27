"""The layout of the page, and the functions that its events call."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import jinja2

from ..configuration.compression_settings import COMPRESSION_METHODS
from ..toys import TOY, TOYS
from .answerer import Answerer, EncodedClip
from .controls import controls_of, is_read, overrides_of
from .conversation import NO_CLIP, Turn, Turns, asked, problem_of
from .rendering import frames_html, problem_html, progress_html, turns_html

CSS = Path(__file__).with_name("page.css")
MOST_FRAMES = 64  # the end of the slider, unless the command asks for more
RATIO_STEP = 0.01
MODEL_QUEUE = "model"  # the model answers one user at a time; the others wait in this queue
WAITING_USERS = 32  # at most; any further user is told to try again
HOURS_OF_UPLOADS = 2
INTRODUCTION = """
<h1>VidCom² demo</h1>
<p>A video LLM reads a clip as thousands of video tokens. VidCom² keeps the distinctive ones. Ask about a clip, and
compare two answers: one with few tokens, and one with all of them.</p>
<p class="model">The model is <b>{{ name }}</b>, on {{ device }}.</p>
{% if toy %}
<p class="toy"><b>This model is a toy</b> of a million parameters. It knows only clips like the samples and questions
like these: {{ toy }} For a real model, start <code>vidcom2 demo --model …</code>.</p>
{% endif %}
"""
NOTES = """
<p>The answer with few tokens comes first, and then the one with all tokens. Each is timed only once. For figures that
you can rely on, use <code>vidcom2 bench</code>. <b>Prefill</b> is the language model's work on the whole conversation,
which it reads again with each question. The <b>whole answer</b> includes the vision encoder, which runs once for each
clip.</p>
"""


def build_page(answerer: Answerer, num_frames: int, max_new_tokens: int) -> gr.Blocks:
    """Build the page for a model, without serving it.

    Args:
        num_frames, max_new_tokens: the values that the controls begin with.
    """
    checkpoint = answerer.checkpoint
    toy = next((toy for toy in TOYS.values() if toy.title == checkpoint.name), None)
    clips = (toy or TOY).clips
    at_first = answerer.settings({})
    controls = controls_of(checkpoint)

    with gr.Blocks(title="VidCom² demo", analytics_enabled=False, delete_cache=(3600, 3600 * HOURS_OF_UPLOADS)) as page:
        turns = gr.State(())
        gr.HTML(
            jinja2.Template(INTRODUCTION, autoescape=True).render(
                name=checkpoint.name,
                device=str(checkpoint.model.device.type).upper(),
                toy=" ".join(clip.question for clip in clips) if toy else None,
            ),
            elem_classes="introduction",
        )
        with gr.Row(elem_classes="main-row"):
            with gr.Column(scale=2, min_width=300):
                video = gr.Video(
                    value=str(clips[0].path), sources=["upload"], label="Clip", height=260, elem_id="clip", buttons=[]
                )
                clip_note = gr.HTML(elem_id="clip-note")
                gr.HTML('<p class="samples-label">Samples, each with a question:</p>')
                with gr.Row(elem_classes="samples"):
                    samples = [gr.Button(clip.question, size="sm", min_width=90) for clip in clips]
            with gr.Column(scale=3, min_width=320):
                conversation = gr.HTML(turns_html(()), elem_id="conversation")
                question = gr.Textbox(
                    clips[0].question,
                    label="Question",
                    info="Further questions about the same clip continue the conversation.",
                    lines=1,
                    max_lines=4,
                    elem_id="question",
                )
                with gr.Row(elem_classes="buttons"):
                    ask = gr.Button("Ask", variant="primary", min_width=90, elem_id="ask")
                    stop = gr.Button("Stop", min_width=90)
                    anew = gr.Button("New conversation", min_width=140)
        with gr.Row(elem_classes="settings"):
            ratio = gr.Slider(
                RATIO_STEP,
                1.0,
                at_first.retention_ratio,
                step=RATIO_STEP,
                label="Retention ratio",
                info="The share of the video tokens that is kept.",
                elem_id="ratio",
                buttons=[],
                min_width=260,
            )
            frames = gr.Slider(
                1,
                max(MOST_FRAMES, num_frames),
                num_frames,
                step=1,
                label="Frames",
                info="How many are sampled, evenly in time.",
                elem_id="frames",
                buttons=[],
                min_width=260,
            )
            method = gr.Dropdown(
                list(COMPRESSION_METHODS),
                value=at_first.compression_method,
                label="Compression method",
                info="It chooses which tokens are kept.",
                filterable=False,
                elem_id="method",
                min_width=260,
            )
        with gr.Accordion("More settings", open=False), gr.Row():
            chosen = [
                gr.Dropdown(
                    list(control.choices),
                    value=getattr(at_first, control.setting),
                    label=control.label,
                    info=control.info,
                    filterable=False,
                    visible=is_read(at_first.compression_method, control),
                    min_width=260,
                )
                for control in controls
            ]
            longest = gr.Slider(
                1,
                max(512, max_new_tokens),
                max_new_tokens,
                step=1,
                label="Longest answer",
                info="In tokens.",
                buttons=[],
                min_width=260,
            )
        kept = gr.HTML(elem_id="kept")
        gr.HTML(NOTES, elem_classes="notes")

        settings = [ratio, method, *chosen]

        def show_kept(path: str | None, number: int, *values: Any) -> Iterator[tuple[str, Any]]:
            """Yield a line about the clip, and its frames with what is kept of each."""
            if path is None:
                yield problem_html(NO_CLIP), ""
                return
            try:
                if not answerer.has(path, int(number)):
                    yield progress_html("The clip is being read and encoded …"), gr.skip()
                clip = answerer.clip(path, int(number))
            except Exception as error:
                yield problem_html(problem_of(error, path)), ""
                return
            try:
                overrides = overrides_of(values[0], values[1], controls, values[2:])
                drawn = frames_html(answerer.explanation(clip, overrides), clip.structure_tokens)
            except Exception as error:
                drawn = problem_html(problem_of(error, path))
            yield about_clip(clip), drawn

        def answer(
            path: str | None, number: int, text: str, before: Turns, most: int, *values: Any
        ) -> Iterator[tuple[Turns, str, Any]]:
            overrides = overrides_of(values[0], values[1], controls, values[2:])
            is_answered = False
            for after in asked(answerer, path, int(number), text, overrides, int(most), before):
                # Empty the box once, when the answer begins. Until then the user can correct a question that is
                # refused, and afterwards type the next question while the answer grows.
                leaves = bool(after[-1].replies) and not is_answered
                is_answered |= leaves
                yield after if after[-1].problem is None else before, turns_html(after), "" if leaves else gr.skip()

        def waiting(text: str, before: Turns, share: float) -> str:
            return turns_html((*before, Turn(text.strip(), share)) if text.strip() else before)

        # Show the question at once, even if the user has to wait for the model.
        asking = gr.on(
            [ask.click, question.submit],
            waiting,
            [question, turns, ratio],
            conversation,
            queue=False,
            show_progress="hidden",
        ).then(
            answer,
            [video, frames, question, turns, longest, *settings],
            [turns, conversation, question],
            show_progress="hidden",
            concurrency_limit=1,
            concurrency_id=MODEL_QUEUE,
            trigger_mode="once",
        )
        stop.click(
            lambda before: turns_html(before, is_stopped=True),
            turns,
            conversation,
            cancels=[asking],
            show_progress="hidden",
        )
        gr.on(
            [anew.click, video.change],
            lambda: ((), turns_html(())),
            None,
            [turns, conversation],
            cancels=[asking],
            show_progress="hidden",
        )
        gr.on(
            [page.load, video.change, frames.change, *(each.change for each in settings)],
            show_kept,
            [video, frames, *settings],
            [clip_note, kept],
            trigger_mode="always_last",
            show_progress="hidden",
            concurrency_limit=4,
        )
        method.change(
            lambda name: [gr.update(visible=is_read(name, control)) for control in controls],
            method,
            chosen,
            show_progress="hidden",
        )
        for button, clip in zip(samples, clips, strict=True):
            button.click(
                lambda path=str(clip.path), text=clip.question: (path, text),
                None,
                [video, question],
                show_progress="hidden",
            )
    return page.queue(max_size=WAITING_USERS)


def about_clip(clip: EncodedClip) -> str:
    """Return one line about what was read of the file."""
    video = clip.video
    count, height, width = video.frames.shape[:3]
    lost = f" Damaged: {video.lost} frames of the file could not be decoded." if video.lost else ""
    frames = "1 frame" if count == 1 else f"{count} frames"
    return progress_html(f"{video.duration:.1f} s, {width} × {height} pixels; the model sees {frames}.{lost}")
