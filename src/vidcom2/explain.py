"""The paper's Figure 2 for the user's own video: frames, their uniqueness and budgets, and what was dropped."""

import base64
import html
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image
from transformers import BatchFeature, PreTrainedModel

from .answer import prepare_inputs
from .checkpoints import Checkpoint
from .run import encode_video, scored_frames
from .video import Video

FRAMES_PER_ROW = 8
FRAME_PIXELS = 280  # height of a drawn frame
DIMMED = 0.22  # brightness left to a dropped patch
UNIQUENESS_COLOR, BUDGET_COLOR = "#4c72b0", "#dd8452"


@dataclass(frozen=True)
class Explanation:
    """What was kept of a video, and why.

    Attributes:
        frames: (T, FRAME_PIXELS, width, 3) uint8.
        seconds: (T,) when each frame is shown.
        frame_uniqueness: (T,) u_t.
        frame_budgets: (T,) k_t.
        kept: (T, h, w) bool, the token grid.
    """

    model: str
    retention_ratio: float
    frames: np.ndarray
    seconds: np.ndarray
    frame_uniqueness: np.ndarray
    frame_budgets: np.ndarray
    kept: np.ndarray

    @property
    def title(self) -> str:
        kept, total = int(self.kept.sum()), self.kept.size
        share = f"{kept} of {total} video tokens ({kept / total:.1%})"
        return f"VidCom² keeps {share} at retention_ratio={self.retention_ratio}"

    @property
    def subtitle(self) -> str:
        height, width = self.kept.shape[1:]
        return (
            f"{self.model} · {len(self.frames)} frames of {height} × {width} tokens · dropped tokens are dimmed · "
            "bars of uniqueness $u_t$ start at the least unique frame"
        )

    def dimmed_frames(self) -> np.ndarray:
        """The frames with their dropped tokens darkened, a token being a rectangle of the frame."""
        height, width = self.frames.shape[1:3]
        rows = np.arange(height) * self.kept.shape[1] // height
        columns = np.arange(width) * self.kept.shape[2] // width
        brightness = np.where(self.kept[:, rows][:, :, columns], 1.0, DIMMED)
        return (self.frames * brightness[..., None]).astype(np.uint8)


def explain(checkpoint: Checkpoint, video: Video) -> Explanation:
    """Encode the video and tell what VidCom² keeps; the language model does not run."""
    model = checkpoint.model
    inputs = prepare_inputs(checkpoint.processor, "", video).to(model.device, model.dtype)
    compression = encode_video(model, inputs)
    num_frames, tokens_per_frame = compression.token_uniqueness.shape
    height, width = _token_grid(model, inputs, tokens_per_frame)
    kept = np.zeros(num_frames * tokens_per_frame, dtype=bool)
    kept[compression.indices.cpu().numpy()] = True
    shown = scored_frames(len(video.frames), compression)
    return Explanation(
        model=checkpoint.name,
        retention_ratio=model.config.retention_ratio,
        frames=np.stack([_resized(frame, width / height) for frame in video.frames[shown]]),
        seconds=video.seconds[shown],
        frame_uniqueness=compression.frame_uniqueness.cpu().numpy(),
        frame_budgets=compression.frame_budgets.cpu().numpy(),
        kept=kept.reshape(num_frames, height, width),
    )


def _token_grid(model: PreTrainedModel, inputs: BatchFeature, tokens_per_frame: int) -> tuple[int, int]:
    """Rows and columns of a frame's tokens: of the video's shape for Qwen2-VL, square for the others."""
    if "video_grid_thw" in inputs:
        _, height, width = (inputs["video_grid_thw"][0] // model.config.vision_config.spatial_merge_size).tolist()
        return height, width
    side = round(tokens_per_frame**0.5)
    return side, tokens_per_frame // side


def _resized(frame: np.ndarray, aspect: float) -> np.ndarray:
    """The frame as the model sees it: FRAME_PIXELS high, in the proportions of the token grid."""
    size = (round(FRAME_PIXELS * aspect), FRAME_PIXELS)
    return np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC))


def draw_png(explanation: Explanation, path: str) -> None:
    """Rows of frames with bars of u_t and k_t under each. Needs matplotlib (`pip install vidcom2[explain]`)."""
    from matplotlib.figure import Figure

    num_frames = len(explanation.frames)
    columns = min(num_frames, FRAMES_PER_ROW)
    rows = -(-num_frames // columns)
    figure = Figure(figsize=(max(1.7 * columns, 9), 3.3 * rows + 0.9), layout="constrained")
    figure.suptitle(f"{explanation.title}\n{explanation.subtitle}", fontsize=11)
    axes = figure.subplots(3 * rows, columns, squeeze=False, height_ratios=[3, 1, 1] * rows)
    images = explanation.dimmed_frames()
    u, k = explanation.frame_uniqueness, explanation.frame_budgets
    # u_t is a negated similarity: bars grow from the least unique frame of the video.
    u_range = (float(u.min()) - 0.08 * max(float(np.ptp(u)), 1e-3), float(u.max()))
    for cell in range(rows * columns):
        row, column = divmod(cell, columns)
        frame_axis, u_axis, k_axis = axes[3 * row : 3 * row + 3, column]
        if cell >= num_frames:
            for axis in (frame_axis, u_axis, k_axis):
                axis.axis("off")
            continue
        frame_axis.imshow(images[cell])
        frame_axis.set_title(f"frame {cell}\n{explanation.seconds[cell]:.2f} s", fontsize=8)
        frame_axis.axis("off")
        _draw_bar(u_axis, float(u[cell]), u_range, f"{u[cell]:.4f}", UNIQUENESS_COLOR)
        _draw_bar(k_axis, float(k[cell]), (0, float(k.max())), str(int(k[cell])), BUDGET_COLOR)
        if column == 0:
            u_axis.set_ylabel("$u_t$", rotation=0, labelpad=12, fontsize=10)
            k_axis.set_ylabel("$k_t$", rotation=0, labelpad=12, fontsize=10)
    figure.savefig(path, dpi=110)


def _draw_bar(axis, value: float, value_range: tuple[float, float], label: str, color: str) -> None:
    low, high = value_range
    axis.bar([0], [value - low], bottom=low, color=color, width=0.6)
    axis.set(xlim=(-0.6, 0.6), ylim=(low, low + 1.45 * (high - low)), xticks=[], yticks=[])
    axis.text(0, value + 0.05 * (high - low), label, ha="center", va="bottom", fontsize=8)
    axis.spines[["top", "right", "left"]].set_visible(False)


def draw_html(explanation: Explanation, path: str) -> None:
    """One self-contained page: the same, with the full frame under the pointer."""
    u, k = explanation.frame_uniqueness, explanation.frame_budgets
    u_low = float(u.min()) - 0.08 * max(float(np.ptp(u)), 1e-3)
    cards = []
    for i, (full, dimmed) in enumerate(zip(explanation.frames, explanation.dimmed_frames())):
        u_share = (float(u[i]) - u_low) / max(float(u.max()) - u_low, 1e-9)
        k_share = int(k[i]) / int(k.max())
        cards.append(
            f'<figure><div class="frame"><img src="{_data_url(dimmed)}" alt="frame {i}, dropped tokens dimmed">'
            f'<img class="full" src="{_data_url(full)}" alt="frame {i}"></div>'
            f"<figcaption>frame {i} · {explanation.seconds[i]:.2f} s</figcaption>"
            f'<div class="bar u"><i style="width:{u_share:.1%}"></i><span>u<sub>t</sub> {u[i]:.4f}</span></div>'
            f'<div class="bar k"><i style="width:{k_share:.1%}"></i><span>k<sub>t</sub> {int(k[i])}</span></div>'
            "</figure>"
        )
    page = _PAGE.format(
        title=html.escape(explanation.title),
        subtitle=html.escape(explanation.subtitle).replace("$u_t$", "u<sub>t</sub>"),
        cards="\n".join(cards),
        u_color=UNIQUENESS_COLOR,
        k_color=BUDGET_COLOR,
    )
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


def _data_url(frame: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 24px; color: #222; background: #fff; }}
h1 {{ font-size: 20px; margin: 0 }} p {{ margin: 4px 0 18px; color: #555 }}
main {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 18px }}
figure {{ margin: 0 }} .frame {{ position: relative }} img {{ width: 100%; display: block }}
.full {{ position: absolute; inset: 0; opacity: 0 }} .frame:hover .full {{ opacity: 1 }}
figcaption {{ font-size: 13px; margin: 4px 0 }}
.bar {{ position: relative; height: 22px; margin: 3px 0; background: #eee; font-size: 13px }}
.bar i {{ position: absolute; inset: 0 auto 0 0; opacity: .55 }} .bar span {{ position: relative; padding-left: 6px }}
.u i {{ background: {u_color} }} .k i {{ background: {k_color} }}
</style></head><body>
<h1>{title}</h1><p>{subtitle}; hover over a frame to see all of it</p>
<main>
{cards}
</main></body></html>
"""
