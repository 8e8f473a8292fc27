"""The original LLaVA-Video, restated for the tests in plain loops over a dictionary of weights with the original names.

This was written from a description of the original code, LLaVA-NeXT's `llava_arch.py` and `siglip_encoder.py`. It
shares nothing with Transformers or the classes under test. It also writes synthetic checkpoints in the original format.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from transformers import GenerationConfig

from vidcom2.tiny.tokens import tiny_tokenizer

VISION = "model.vision_tower.vision_tower.vision_model."


@dataclass(frozen=True)
class Sizes:
    """Sizes of a small original model. `tower_layers` counts the last layer, which the original deletes."""

    image_size: int = 98  # 7 x 7 patches: odd, as 27 x 27 is
    patch_size: int = 14
    vision_hidden: int = 32
    vision_intermediate: int = 48
    tower_layers: int = 3
    vision_heads: int = 2
    hidden: int = 32
    intermediate: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    vocab: int = 264


# -- arithmetic --------------------------------------------------------------------------------------------------------


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps=1e-6)


def frame_patches(weights: dict[str, Tensor], sizes: Sizes, image: Tensor) -> list[list[Tensor]]:
    """Return projected patches [row][column] -> (hidden,) of one image (3, height, width), after all encoder layers.

    There is no post-layernorm and no head, since the original takes the output of the last layer it kept.
    """
    w = {name.removeprefix(VISION): tensor.double() for name, tensor in weights.items() if name.startswith(VISION)}
    image = image.double()
    side, p = sizes.image_size // sizes.patch_size, sizes.patch_size
    tokens = []
    for row in range(side):
        for column in range(side):
            patch = image[:, row * p : (row + 1) * p, column * p : (column + 1) * p]
            kernel = w["embeddings.patch_embedding.weight"]
            tokens.append((kernel * patch).sum(dim=(1, 2, 3)) + w["embeddings.patch_embedding.bias"])
    x = torch.stack(tokens) + w["embeddings.position_embedding.weight"]

    head = sizes.vision_hidden // sizes.vision_heads
    for layer in range(sizes.tower_layers - 1):
        lw = {
            name.removeprefix(f"encoder.layers.{layer}."): tensor
            for name, tensor in w.items()
            if name.startswith(f"encoder.layers.{layer}.")
        }
        y = layer_norm(x, lw["layer_norm1.weight"], lw["layer_norm1.bias"])
        q, k, v = (y @ lw[f"self_attn.{n}_proj.weight"].T + lw[f"self_attn.{n}_proj.bias"] for n in "qkv")
        attended = []
        for i in range(sizes.vision_heads):
            part = slice(i * head, (i + 1) * head)
            scores = q[:, part] @ k[:, part].T / math.sqrt(head)
            attended.append(scores.softmax(dim=-1) @ v[:, part])
        y = torch.cat(attended, dim=-1) @ lw["self_attn.out_proj.weight"].T + lw["self_attn.out_proj.bias"]
        x = x + y
        y = layer_norm(x, lw["layer_norm2.weight"], lw["layer_norm2.bias"])
        y = F.gelu(y @ lw["mlp.fc1.weight"].T + lw["mlp.fc1.bias"], approximate="tanh")
        x = x + y @ lw["mlp.fc2.weight"].T + lw["mlp.fc2.bias"]

    y = x @ weights["model.mm_projector.0.weight"].double().T + weights["model.mm_projector.0.bias"].double()
    y = F.gelu(y) @ weights["model.mm_projector.2.weight"].double().T + weights["model.mm_projector.2.bias"].double()
    return [[y[row * side + column] for column in range(side)] for row in range(side)]


def bilinear(grid: list[list[Tensor]], rows: int, columns: int) -> list[list[Tensor]]:
    """Interpolate between pixel centres (`align_corners=False`), clamped at the border."""

    def source(i: int, old: int, new: int) -> tuple[int, int, float]:
        at = max(0.0, (i + 0.5) * old / new - 0.5)
        low = min(int(at), old - 1)
        return low, min(low + 1, old - 1), at - low

    out = []
    for i in range(rows):
        top, bottom, down = source(i, len(grid), rows)
        line = []
        for j in range(columns):
            left, right, across = source(j, len(grid[0]), columns)
            upper = (1 - across) * grid[top][left] + across * grid[top][right]
            lower = (1 - across) * grid[bottom][left] + across * grid[bottom][right]
            line.append((1 - down) * upper + down * lower)
        out.append(line)
    return out


def pooled(grid: list[list[Tensor]], mode: str) -> list[list[Tensor]]:
    """Pool a frame's patches by 2 in each direction."""
    if mode == "bilinear":
        side = math.ceil(len(grid) / 2)
        return bilinear(grid, side, side)
    out = []
    for i in range(0, len(grid) - 1, 2):
        line = []
        for j in range(0, len(grid) - 1, 2):
            square = torch.stack([grid[i][j], grid[i][j + 1], grid[i + 1][j], grid[i + 1][j + 1]])
            line.append(square.mean(dim=0) if mode == "average" else square.max(dim=0).values)
        out.append(line)
    return out


def video_tokens(weights: dict[str, Tensor], sizes: Sizes, video: Tensor, mode: str) -> Tensor:
    """Return what enters the language model for a video (num_frames, 3, height, width), as (tokens, hidden) float64."""
    newline = weights["model.image_newline"].double()
    tokens = []
    for frame in video:
        for row in pooled(frame_patches(weights, sizes, frame), mode):
            tokens.extend(row)
            tokens.append(newline)
    return torch.stack(tokens)


def image_tokens(
    weights: dict[str, Tensor], sizes: Sizes, tiles: Tensor, height: int, width: int, pinpoints: list[list[int]]
) -> Tensor:
    """Return what enters the language model for an image of `height` x `width` pixels, by the rules of `anyres_max_9`.

    Args:
        tiles: (1 + n, 3, image_size, image_size): the whole image, then its tiles, row by row.
        pinpoints: the sizes (height, width) from which the image's canvas was chosen.
    """
    newline = weights["model.image_newline"].double()
    views = [frame_patches(weights, sizes, tile) for tile in tiles]
    tokens = [token for row in views[0] for token in row]
    if len(views) == 1:
        return torch.stack([*tokens, newline])

    best, canvas = (-1.0, -math.inf), None
    for h, w in pinpoints:
        scale = min(w / width, h / height)
        used = min(int(width * scale) * int(height * scale), width * height)
        if (used, used - h * w) > best:
            best, canvas = (used, used - h * w), (h, w)
    tile_rows, tile_columns = canvas[0] // sizes.image_size, canvas[1] // sizes.image_size
    side = len(views[0])
    grid = []
    for i in range(tile_rows * side):
        tiles_of_row = views[1 + (i // side) * tile_columns : 1 + (i // side + 1) * tile_columns]
        grid.append([token for tile in tiles_of_row for token in tile[i % side]])

    rows, columns = len(grid), len(grid[0])
    if width / height > columns / rows:  # the canvas has bars above and below
        bar = (rows - int(height * columns / width)) // 2
        grid = grid[bar : rows - bar]
    else:
        bar = (columns - int(width * rows / height)) // 2
        grid = [row[bar : columns - bar] for row in grid]
    rows, columns = len(grid), len(grid[0])
    shrink = math.sqrt(rows * columns / (9 * side**2))
    if shrink > 1.1:
        grid = bilinear(grid, int(rows // shrink), int(columns // shrink))
    for row in grid:
        tokens.extend([*row, newline])
    return torch.stack(tokens)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def original_weights(sizes: Sizes = Sizes(), tied: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0):
    """Return a random state dict with the original's key names."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}

    def add(name: str, *shape: int, around: float = 0.0) -> None:
        weights[name] = (around + 0.2 * torch.randn(*shape, generator=generator)).to(dtype)

    def linear(name: str, inputs: int, outputs: int, bias: bool) -> None:
        add(f"{name}.weight", outputs, inputs)
        if bias:
            add(f"{name}.bias", outputs)

    add("model.embed_tokens.weight", sizes.vocab, sizes.hidden)
    kv = sizes.hidden // sizes.heads * sizes.kv_heads
    for i in range(sizes.layers):
        layer = f"model.layers.{i}."
        for name, outputs, bias in (("q", sizes.hidden, True), ("k", kv, True), ("v", kv, True)):
            linear(f"{layer}self_attn.{name}_proj", sizes.hidden, outputs, bias)
        linear(f"{layer}self_attn.o_proj", sizes.hidden, sizes.hidden, False)
        linear(f"{layer}mlp.gate_proj", sizes.hidden, sizes.intermediate, False)
        linear(f"{layer}mlp.up_proj", sizes.hidden, sizes.intermediate, False)
        linear(f"{layer}mlp.down_proj", sizes.intermediate, sizes.hidden, False)
        add(f"{layer}input_layernorm.weight", sizes.hidden, around=1.0)
        add(f"{layer}post_attention_layernorm.weight", sizes.hidden, around=1.0)
    add("model.norm.weight", sizes.hidden, around=1.0)
    if not tied:
        add("lm_head.weight", sizes.vocab, sizes.hidden)
    linear("model.mm_projector.0", sizes.vision_hidden, sizes.hidden, True)
    linear("model.mm_projector.2", sizes.hidden, sizes.hidden, True)
    add("model.image_newline", sizes.hidden)

    add(f"{VISION}embeddings.patch_embedding.weight", sizes.vision_hidden, 3, sizes.patch_size, sizes.patch_size)
    add(f"{VISION}embeddings.patch_embedding.bias", sizes.vision_hidden)
    patches = (sizes.image_size // sizes.patch_size) ** 2
    add(f"{VISION}embeddings.position_embedding.weight", patches, sizes.vision_hidden)
    for i in range(sizes.tower_layers - 1):
        layer = f"{VISION}encoder.layers.{i}."
        for name in ("q", "k", "v", "out"):
            linear(f"{layer}self_attn.{name}_proj", sizes.vision_hidden, sizes.vision_hidden, True)
        linear(f"{layer}mlp.fc1", sizes.vision_hidden, sizes.vision_intermediate, True)
        linear(f"{layer}mlp.fc2", sizes.vision_intermediate, sizes.vision_hidden, True)
        for norm in ("layer_norm1", "layer_norm2"):
            add(f"{layer}{norm}.weight", sizes.vision_hidden, around=1.0)
            add(f"{layer}{norm}.bias", sizes.vision_hidden)
    add(f"{VISION}post_layernorm.weight", sizes.vision_hidden, around=1.0)
    add(f"{VISION}post_layernorm.bias", sizes.vision_hidden)
    return weights


def original_config(sizes: Sizes, tower: str, tied: bool = False, dtype: str = "float32") -> dict:
    """Return the config.json of `lmms-lab/LLaVA-Video-7B-Qwen2` (facts/models.md A1), with other sizes."""
    steps = [sizes.image_size * i for i in range(1, 7)]
    of_text = {"hidden_size": sizes.hidden, "intermediate_size": sizes.intermediate, "vocab_size": sizes.vocab}
    of_text |= {"num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads}
    of_text |= {"num_hidden_layers": sizes.layers, "max_window_layers": sizes.layers}
    of_text |= {"bos_token_id": 256, "eos_token_id": 258, "tie_word_embeddings": tied, "torch_dtype": dtype}
    of_tower = {"mm_vision_tower": tower, "mm_hidden_size": sizes.vision_hidden}
    of_tower |= {"image_grid_pinpoints": [[w, h] for w in steps for h in steps]}
    return json.loads((Path(__file__).parent / "data/llava_video_config.json").read_text()) | of_text | of_tower


def write_original(
    folder: Path,
    sizes: Sizes = Sizes(),
    tied: bool = False,
    num_shards: int = 3,
    dtype: torch.dtype = torch.float32,
    weights: dict[str, Tensor] | None = None,
    **overrides: object,
) -> dict[str, Tensor]:
    """Write a checkpoint as the original code saves one, and return its weights.

    The vision tower's config is written beside it, since its sizes differ from the released tower's.
    """
    weights = original_weights(sizes, tied, dtype) if weights is None else weights
    tower = folder / "tower"
    tower.mkdir(parents=True)
    vision_config = {
        "hidden_size": sizes.vision_hidden,
        "intermediate_size": sizes.vision_intermediate,
        "num_hidden_layers": sizes.tower_layers,
        "num_attention_heads": sizes.vision_heads,
        "image_size": sizes.image_size,
        "patch_size": sizes.patch_size,
    }
    (tower / "config.json").write_text(json.dumps({"model_type": "siglip", "vision_config": vision_config}))
    config = original_config(sizes, str(tower), tied, str(dtype).removeprefix("torch.")) | overrides
    (folder / "config.json").write_text(json.dumps(config, indent=2))

    names = sorted(weights)
    shards = [names[i::num_shards] for i in range(num_shards)]
    files = [f"model-{i + 1:05}-of-{num_shards:05}.safetensors" for i in range(num_shards)]
    if num_shards == 1:
        files = ["model.safetensors"]
    for file, shard in zip(files, shards, strict=True):
        save_file({name: weights[name] for name in shard}, folder / file, metadata={"format": "pt"})
    if num_shards > 1:
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in weights.values())},
            "weight_map": {name: file for file, shard in zip(files, shards, strict=True) for name in shard},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    tiny_tokenizer().save_pretrained(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())  # the original has <image>, and no <video>
    tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["content"] != "<video>"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    generation = {
        "do_sample": True,
        "temperature": 0.7,
        "top_k": 20,
        "repetition_penalty": 1.05,
        "eos_token_id": [258, 256],
    }
    GenerationConfig(**generation).save_pretrained(folder)
    return weights
