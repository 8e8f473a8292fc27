"""The layout of the page, and the functions that its events call."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import jinja2
from gradio.data_classes import FileData

from ..asking.candidates import way_in_words
from ..configuration.compression_settings import COMPRESSION_METHODS
from ..errors import OptionError
from ..toys import TOY, TOYS, Clip
from .answerer import Answerer, EncodedClip
from .controls import chosen_settings, controls_for, is_read
from .live_page import build_live_page
from .rendering import frames_html, problem_html, progress_html, turns_html
from .turns import Turn, Turns, asked, problem_text

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
<p>The answer with few tokens comes first, and then the one with all tokens. An answer that takes less than half a
second is given five more times, and the shortest times count. A longer one is timed once. For figures that you can rely
on, use <code>vidcom2 bench</code>. <b>Prefill</b> is the language model's work on the whole conversation, which it
reads again with each question. The <b>whole answer</b> includes the vision encoder, which runs once for each clip.</p>
"""
NO_CLIP = "There is no clip. Upload one, or choose a sample."
# A problem with the clip or the settings stands where they are, which may be out of sight.
SHOW_PROBLEM = "() => document.querySelector('.problem')?.scrollIntoView({ behavior: 'smooth', block: 'nearest' })"


def build_page(answerer: Answerer, num_frames: int, max_new_tokens: int, first: str | None = None) -> gr.Blocks:
    """Build the page for a model, without serving it.

    Args:
        num_frames, max_new_tokens: the values that the controls begin with.
        first: the clip that the page begins with, without a question; else the first sample, with its own. It stands
            before the samples, so that one can come back to it.
    """
    checkpoint = answerer.checkpoint
    toy = next((toy for toy in TOYS.values() if toy.title == checkpoint.name), None)
    clips = (toy or TOY).clips
    shown = clips if first is None else [Clip(Path(first), "", ""), *clips]
    at_first = answerer.settings({})
    controls = controls_for(checkpoint)

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
                    value=str(shown[0].path), sources=["upload"], label="Clip", height=260, elem_id="clip", buttons=[]
                )
                # Gradio's own would convert a file that the browser cannot play.
                video.postprocess = _as_it_is
                clip_note = gr.HTML(elem_id="clip-note")
                upload = gr.UploadButton("Upload a clip", file_types=["video"], size="sm", elem_id="upload")
                gr.HTML('<p class="samples-label">Or take a sample, which comes with a question:</p>')
                with gr.Row(elem_classes="samples"):
                    samples = [gr.Button(clip.question or clip.path.name, size="sm", min_width=90) for clip in shown]
            with gr.Column(scale=3, min_width=320):
                conversation = gr.HTML(turns_html(()), elem_id="conversation")
                question = gr.Textbox(
                    shown[0].question,
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
            ratio = _slider(
                "Retention ratio",
                "The share of the video tokens that is kept.",
                RATIO_STEP,
                1.0,
                at_first.retention_ratio,
                RATIO_STEP,
            )
            frames = _slider(
                "Frames", "How many are sampled, evenly in time.", 1, max(MOST_FRAMES, num_frames), num_frames
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
            longest = _slider("Longest answer", "In tokens.", 1, max(512, max_new_tokens), max_new_tokens)
        kept = gr.HTML(elem_id="kept")
        gr.HTML(NOTES, elem_classes="notes")

        settings = [frames, longest, ratio, method, *chosen]

        def chosen_clip(path: str | None, number: float | None) -> EncodedClip:
            if path is None:
                raise OptionError(NO_CLIP)
            return answerer.clip(path, int(_checked(frames, number)))

        def overrides(most: float | None, share: float | None, name: str, *values: str) -> dict[str, Any]:
            _checked(longest, most)
            return chosen_settings(_checked(ratio, share), name, controls, values)

        def show_kept(path: str | None, number: float | None, *values: Any) -> Iterator[tuple[str, Any]]:
            """Yield a line about the clip, and its frames with what is kept of each."""
            if path is not None and number is not None and not answerer.has(path, int(number)):
                yield progress_html("The clip is being read and encoded …"), gr.skip()
            about, drawn = "", ""
            try:
                clip = chosen_clip(path, number)
                about = about_clip(clip)
                drawn = frames_html(answerer.explanation(clip, overrides(*values)))
            except Exception as error:
                problem = problem_html(problem_text(error, path))
                about, drawn = (about, problem) if about else (problem, "")
            yield about, drawn

        def answer(
            text: str, before: Turns, path: str | None, number: float | None, *values: Any
        ) -> Iterator[tuple[Turns, str, Any]]:
            try:
                _checked(frames, number)
                changed = overrides(*values)
            except OptionError as error:  # a box loses a wrong number, and the page its complaint, when one leaves it
                turn = Turn(text.strip(), "", problem=problem_text(error))
                yield before, turns_html((*before, turn)), gr.skip()
                return
            try:
                clip = chosen_clip(path, number)
                answerer.explanation(clip, changed)
            except Exception as error:
                problem_text(error, path)  # raises it again if it is a bug; else `show_kept` says it
                yield before, turns_html(before), gr.skip()
                return
            is_answered = False
            for after in asked(answerer, clip, text, changed, int(values[0]), before):
                # Empty the box once, when the answer begins. Until then the user can correct a question that is
                # refused, and afterwards type the next question while the answer grows.
                leaves = bool(after[-1].replies) and not is_answered
                is_answered |= leaves
                yield after if after[-1].problem is None else before, turns_html(after), "" if leaves else gr.skip()

        def without_sample(text: str) -> str:
            """Empty the box if its question is about a sample, which another clip replaces."""
            return "" if text in {clip.question for clip in clips} else text

        def waiting(text: str, before: Turns, share: float | None, name: str) -> str:
            if share is None or not text.strip():
                return turns_html(before)
            way = way_in_words({"retention_ratio": share, "compression_method": name})
            return turns_html((*before, Turn(text.strip(), way)))

        # Show the question at once, even if the user has to wait for the model.
        asking = gr.on(
            [ask.click, question.submit],
            waiting,
            [question, turns, ratio, method],
            conversation,
            queue=False,
            show_progress="hidden",
        ).then(
            answer,
            [question, turns, video, *settings],
            [turns, conversation, question],
            show_progress="hidden",
            concurrency_limit=1,
            concurrency_id=MODEL_QUEUE,
            trigger_mode="once",
        )
        asking.then(None, js=SHOW_PROBLEM)
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
            [page.load, video.change, *(each.change for each in settings)],
            show_kept,
            [video, *settings],
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
        upload.upload(lambda path, text: (path, without_sample(text)), [upload, question], [video, question])
        gr.on([video.upload, video.clear], without_sample, question, question, show_progress="hidden")
        for button, clip in zip(samples, shown, strict=True):
            button.click(
                lambda path=str(clip.path), text=clip.question: (path, text),
                None,
                [video, question],
                show_progress="hidden",
            )
    if "SPACES_ZERO_GPU" not in os.environ:  # there each call of the model is a process of its own, and forgets
        with page.route("Live", "/live"):
            build_live_page(answerer, max_new_tokens, is_toy=toy is not None)
    return page.queue(max_size=WAITING_USERS)


def _as_it_is(value: str | Path | None) -> FileData | None:
    return None if value is None else FileData(path=str(value), orig_name=Path(value).name)


def _slider(label: str, info: str, least: float, most: float, value: float, step: float = 1) -> gr.Slider:
    slider = gr.Slider(
        least,
        most,
        value,
        step=step,
        label=label,
        info=info,
        elem_id=label.split()[-1].lower(),
        buttons=[],
        min_width=260,
    )
    slider.preprocess = lambda payload: payload  # Gradio's own fails on a box that is empty; `_checked` says so
    return slider


def _checked(slider: gr.Slider, value: float | None) -> float:
    """Return the number in a slider's box. Raises an OptionError if the box is empty, or the number out of range."""
    if value is None or not slider.minimum <= value <= slider.maximum:
        given = "empty" if value is None else f"{value:g}"
        raise OptionError(
            f"“{slider.label}” is {given}, but must be a number from {slider.minimum:g} to {slider.maximum:g}."
        )
    return value


def about_clip(clip: EncodedClip) -> str:
    """Return one line about what was read of the file."""
    video = clip.video
    count, height, width = video.frames.shape[:3]
    lost = f" Damaged: {video.lost} frames of the file could not be decoded." if video.lost else ""
    frames = "1 frame" if count == 1 else f"{count} frames"
    return progress_html(f"{video.duration:.1f} s, {width} × {height} pixels; the model sees {frames}.{lost}")
