"""The table of `vidcom2 plan`, and what its figures assume."""

from collections.abc import Sequence

from .plan import OF_BANDWIDTH, OF_FLOPS, PREFILL_CHUNK, TOGETHER, USABLE, Load, Plan


def plan_table(plans: Sequence[Plan], load: Load) -> list[list[str]]:
    """Return the rows of cells, with the headings first."""
    asked = load.videos_per_minute
    headings = ["GPU", "R, %", "prompt tokens", "KV cache, GB", "GPUs for the model", "requests at once"]
    headings += ["first token, s", "videos a minute"] + ([] if asked is None else [f"GPUs for {asked:g} a minute"])
    cells = [headings]
    for each in plans:
        row = [
            each.gpu,
            f"{100 * each.retention_ratio:g}",
            f"{each.prompt_tokens:,}",
            f"{each.request_bytes / 1e9:.2f}",
        ]
        if each.together is None:
            row += ["too small", *["–"] * (len(headings) - 5)]
        else:
            row += [str(each.together), f"{each.at_once:,}"]
            row += [f"{each.first_token_seconds:.2f}", f"{each.videos_per_minute:,.1f}"]
            row += [] if asked is None else [f"{each.needed:,}"]
        cells.append(row)
    return cells


def too_long(plans: Sequence[Plan], load: Load, positions: int | None) -> str | None:
    """Return a line on the prompts that, with the answer, are longer than the model was made for; None if none is.

    Args:
        positions: how many the model was made for; None if its config does not say.
    """
    if positions is None or all(each.prompt_tokens + load.new_tokens <= positions for each in plans):
        return None
    ratios = {each.retention_ratio: each.prompt_tokens for each in plans}
    longer = [f"{100 * ratio:g} %" for ratio, tokens in ratios.items() if tokens + load.new_tokens > positions]
    return (
        f"The model was made for {positions:,} positions, which prompts and answers exceed at R = {', '.join(longer)}. "
        "Take fewer frames (--num-frames), a lower ratio, or a budget (--max-video-tokens)."
    )


def notes(load: Load) -> list[str]:
    """Return what the figures assume, a line each."""
    budget = load.max_video_tokens
    bounded = [] if budget is None else [f"At R below 100 %, a video keeps at most {budget:,} tokens."]
    return [
        *bounded,
        "Computed from sizes, not measured. Measure before you buy: vidcom2 bench, and vLLM's own benchmark.",
        f"Assumed: bfloat16; matrix products reach {100 * OF_FLOPS:.0f} % of the GPU's peak, and reading "
        f"{100 * OF_BANDWIDTH:.0f} % of its bandwidth; {100 * USABLE:.0f} % of its memory is usable; up to "
        f"{TOGETHER[-1]} GPUs share a model without loss. Reading and decoding the videos is not counted.",
        f"KV cache: of one request with {load.text_tokens} tokens of text and an answer of {load.new_tokens}. Requests "
        "at once: as many as fit beside the weights and the largest activations, of one video in the vision tower or "
        f"of {PREFILL_CHUNK:,} tokens in the language model.",
        f"Videos a minute: with {load.concurrency} requests at a time, or as many as fit.",
    ]
