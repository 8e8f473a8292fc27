"""The page about a live video: the visitor's camera, and questions about what it has shown so far."""

import base64
import html
import io
import time
import weakref
from dataclasses import dataclass
from typing import Any, cast

import gradio as gr
import jinja2
import numpy as np
from gradio.data_classes import ImageData

from ..errors import OptionError
from ..live.live_video import LiveVideo
from ..video.frames import read_picture
from .answerer import Answerer
from .rendering import problem_html, progress_html
from .turns import problem_text

INTRODUCTION = """
<h1>Live</h1>
<p>The model remembers a fixed number of tokens of what your camera shows: the last frames whole, and of the earlier
ones the tokens that cover them best. Start the camera, and ask at any time. Pictures go to the machine that serves this
page, are not stored there, and are forgotten ten minutes after you leave.</p>
{% if toy %}
<p class="toy"><b>This model is a toy</b>, which knows digits on moving backgrounds alone. Its answers about anything
else mean nothing. For a real model, start <code>vidcom2 demo --model …</code>.</p>
{% endif %}
"""
STEP = 0.5  # seconds between two pictures
MOST_VISITORS = 8  # who are watched at the same time
SECONDS_KEPT = 600  # how long a visit is remembered after its last picture
NO_PICTURE = "Nothing was shown yet. Start the camera, and let the browser use it."
NO_QUESTION = "There is no question. Write one about what the camera has shown."
FULL = f"{MOST_VISITORS} others are live at the moment. Try again later."
_visits: "weakref.WeakSet[Visit]" = weakref.WeakSet()


@dataclass(eq=False)
class Visit:
    """What one visitor's camera has shown.

    Attributes:
        live: what is remembered; None before the first picture.
        started: when the first picture came, by this machine's clock.
        seconds: when the last picture came, from then on.
        dropped: how many pictures came while the model was busy.
        shape: that of the pictures.
    """

    live: LiveVideo | None = None
    started: float = 0.0
    seconds: float = 0.0
    dropped: int = 0
    shape: tuple[int, ...] = ()

    def told(self) -> str:
        """Return in one line what is remembered."""
        if self.live is None:
            return NO_PICTURE
        seen, most = self.live.seen_tokens, self.live.max_video_tokens
        dropped = f" Left out while the model was busy: {self.dropped:,}." if self.dropped else ""
        return (
            f"{self.seconds:.0f} s, {self.live.num_frames:,} pictures; the model remembers {min(seen, most):,} of "
            f"{seen:,} tokens.{dropped}"
        )

    def show(self, answerer: Answerer, picture: np.ndarray) -> None:
        """Show the model the next picture, or leave it out while the model is busy. One of another size, as when a
        phone is turned, begins a new live video.

        Raises:
            OptionError: if too many others are live.
            ValueError: on a picture that a live video refuses.
        """
        with answerer.if_free() as is_free:
            if not is_free:
                self.dropped += 1
                return
            live, started, now = self.live, self.started, time.monotonic()
            if live is None or picture.shape != self.shape:
                if live is None and sum(each.live is not None for each in _visits) >= MOST_VISITORS:
                    raise OptionError(FULL)
                its = answerer.checkpoint
                live = LiveVideo(answerer.model, its.processor, prepare_on=its.prepare_on)
                started, self.dropped = now, 0
            live.add(picture, now - started)
            self.live, self.started, self.seconds, self.shape = live, started, now - started, picture.shape
            _visits.add(self)

    def forget(self, answerer: Answerer) -> None:
        """Forget all, also the picture that the model is looking at."""
        with answerer.alone():
            self.live = None


def build_live_page(answerer: Answerer, max_new_tokens: int, is_toy: bool) -> None:
    """Lay out the page, in a context of Gradio's blocks."""
    visit = gr.State(Visit(), time_to_live=SECONDS_KEPT)
    gr.HTML(jinja2.Template(INTRODUCTION).render(toy=is_toy), elem_classes="introduction")
    with gr.Row(elem_classes="main-row"):
        with gr.Column(scale=2, min_width=300):
            camera = gr.Image(sources=["webcam"], streaming=True, label="Camera", height=260, elem_id="camera")
            camera.preprocess = lambda payload: cast(Any, payload)  # Gradio would open what PIL can, PostScript too
            note = gr.HTML(progress_html(NO_PICTURE), elem_id="live-note")
        with gr.Column(scale=3, min_width=320):
            answer = gr.HTML(elem_id="live-answer")
            question = gr.Textbox(label="Question", lines=1, max_lines=4, elem_id="live-question")
            with gr.Row(elem_classes="buttons"):
                ask = gr.Button("Ask", variant="primary", min_width=90, elem_id="live-ask")
                anew = gr.Button("Forget it all", min_width=140, elem_id="live-anew")

    def watch(watched: Visit, picture: ImageData | None) -> tuple[Visit, str]:
        try:
            if picture is not None:
                _, is_inline, content = (picture.url or "").partition(";base64,")
                file = io.BytesIO(base64.b64decode(content)) if is_inline else picture.path or ""
                watched.show(answerer, read_picture(file, "camera"))
        except Exception as error:
            return watched, problem_html(problem_text(error))
        return watched, progress_html(watched.told())  # which is returned, so that Gradio keeps it longer

    def answered(text: str, watched: Visit) -> str:
        text = text.strip()
        try:
            with answerer.alone():
                if not text or watched.live is None:
                    return problem_html(NO_PICTURE if watched.live is None else NO_QUESTION)
                said = watched.live.ask(text, max_new_tokens=max_new_tokens)
        except Exception as error:
            return problem_html(problem_text(error))
        about = f"{said.video_tokens:,} video tokens, of {watched.seconds:.0f} s"
        return (
            f'<p class="question">{html.escape(text)}</p><p class="answer">{html.escape(said.strip())}</p>'
            f'<p class="note">{about}</p>'
        )

    def forget(watched: Visit) -> tuple[str, str]:
        watched.forget(answerer)
        return progress_html(NO_PICTURE), ""

    at_once = {"concurrency_limit": MOST_VISITORS, "show_progress": "hidden"}
    camera.stream(watch, [visit, camera], [visit, note], stream_every=STEP, **at_once)
    gr.on([ask.click, question.submit], answered, [question, visit], answer, **at_once)
    anew.click(forget, visit, [note, answer], show_progress="hidden")
