"""Break the code in one place after another, and say which breakages the default tests notice.

    python tests/mutations.py                      # all mutations, one after another; takes hours on one core
    python tests/mutations.py cache_is_not_reset   # the mutations of these names
    python tests/mutations.py --list

Each mutation is made in a copy of the tree in a temporary folder. The test files that it is about run there until the
first failure. The exit code is 0 if all mutations were caught. A mutation whose text is no longer in its file is
neither caught nor missed: find out what replaced that text.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALL_PASSED = 0  # exit code of pytest
SECONDS_OF_A_RUN = 3600

PROMPT, METHODS, ENCODING, FAMILIES, HOSTING, RECORDS, EVALUATION, VIDEO = (
    *(f"modeling/{room}" for room in ("prompt", "methods", "encoding", "families", "hosting")),
    *(f"src/vidcom2/{room}" for room in ("records", "evaluation", "video")),
)


@dataclass(frozen=True)
class Mutation:
    """Replaces `old` by `new` in `file`, so that `breaks` is no longer true. The files `tests` should notice."""

    name: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]


def of_the_model(name: str, file: str, old: str, new: str, breaks: str, *tests: str) -> Mutation:
    return Mutation(name, file, old, new, breaks, tests or ("generate", "forward", "conversations"))


MUTATIONS = [
    # -- families -----------------------------------------------------------------------------------------------------
    of_the_model(
        "images_within_marks_of_a_video_are_images",
        f"{FAMILIES}/glm_videos.py",
        "(begun > ended)",
        "(begun < ended)",
        "in GLM's families the marks of a video tell its placeholders from those of images",
        "qwen_videos",
    ),
    of_the_model(
        "videos_keep_the_ids_of_images",
        f"{PROMPT}/prompt_compression.py",
        "        return input_ids.masked_fill(kinds == VIDEO, self.video_id)",
        "        return input_ids",
        "Transformers finds the features of GLM's videos where it repeats or splits them",
        "generate",
    ),
    of_the_model(
        "glms_own_method_repeats_features",
        f"{FAMILIES}/glm_videos.py",
        "        return cast(Any, GenerationMixin)._expand_multimodal_outputs(self, *args, **kwargs)",
        "        return super()._expand_multimodal_outputs(*args, **kwargs)",
        "beams of a prompt with two videos get both in their order",
        "generate",
    ),
    of_the_model(
        "sound_among_frames_has_positions_of_text",
        f"{FAMILIES}/qwen_sound.py",
        "            use_audio_in_video=heard,",
        "            use_audio_in_video=False,",
        "in the Omni models the sound of a video has the positions of its seconds",
        "qwen_sound",
    ),
    of_the_model(
        "each_sound_is_repeated_by_itself",
        f"{FAMILIES}/qwen_sound.py",
        "group.repeat(expand_size)",
        "group.repeat_interleave(expand_size)",
        "beams of a prompt with two sounds get both in their order",
        "qwen_sound",
    ),
    of_the_model(
        "the_first_sizes_belong_to_the_new_tokens",
        f"{FAMILIES}/qwen_sound.py",
        "return given[len(given) - number :]",
        "return given[:number]",
        "a thinker takes the sizes of the whole conversation, of which the last belong to the new videos",
        "qwen_sound",
    ),
    of_the_model(
        "an_image_in_tiles_may_be_a_frame",
        f"{FAMILIES}/frame_marks.py",
        "            is_one_tile = len(run) < 2 * tokens_per_frame\n",
        "            is_one_tile = True\n",
        "an image in several tiles is no frame of InternVL's, whatever stands before it",
        "frame_images",
    ),
    of_the_model(
        "images_are_taken_for_frames",
        f"{FAMILIES}/frame_images.py",
        "images = {name: rows[~is_frame] for name, rows in tiles.items()}",
        "images = {name: rows[is_frame] for name, rows in tiles.items()}",
        "InternVL's images stay whole beside frames",
        "frame_images",
    ),
    of_the_model(
        "tiles_of_larger_images_may_be_frames",
        f"{FAMILIES}/frame_marks.py",
        "return _ends_with(text, self.tail) and self.is_label",
        "return self.is_label",
        "a tile of an image of SmolVLM's is no frame, whatever stands before it",
        "frame_images",
    ),
    of_the_model(
        "padding_counts_as_tiles",
        f"{FAMILIES}/modeling_vidcom2_smolvlm.py",
        'is_tile = (tiles["pixel_values"] != 0).flatten(1).any(dim=1)',
        'is_tile = (tiles["pixel_values"] == tiles["pixel_values"]).flatten(1).any(dim=1)',
        "videos of different lengths may share a call of SmolVLM",
        "frame_images",
    ),
    # -- settings -----------------------------------------------------------------------------------------------------
    of_the_model(
        "settings_of_a_call_are_ignored",
        f"{PROMPT}/prompt_compression.py",
        "settings = self.config.compression_settings(**overrides)",
        "settings = self.config.compression_settings()",
        "a setting of one call takes effect in that call",
        "call_settings",
    ),
    of_the_model(
        "stored_settings_outlive_their_method",
        "configuration/compression_settings.py",
        "unread |= {name for name in SETTING_NAMES if not table[method].reads(name)}",
        "pass",
        "a method that is chosen for a call or on loading leaves out stored settings that it does not read",
        "methods",
    ),
    of_the_model(
        "settings_of_a_video_call_are_ignored",
        f"{ENCODING}/video_features.py",
        "settings = self.config.compression_settings(**pop_settings(kwargs, self.of_parent))",
        "pop_settings(kwargs, self.of_parent)\n        settings = self.config.compression_settings()",
        "`get_video_features` takes settings",
        "call_settings",
    ),
    of_the_model(
        "the_config_put_in_place_is_ignored",
        f"{PROMPT}/compressed_generation.py",
        "            self.model.config = self.config\n",
        "            pass\n",
        "a config that replaces the head's also replaces the inner model's",
        "bad_input",
    ),
    of_the_model(
        "rounding_is_always_up",
        f"{METHODS}/method_vidcom2.py",
        'budgets.ceil() if settings.compression_rounding == "ceil" else budgets.round()',
        "budgets.ceil()",
        '`compression_rounding="round"` rounds half to even',
        "compression",
    ),
    of_the_model(
        "rounded_budgets_exceed_the_videos",
        f"{METHODS}/method_vidcom2.py",
        "if settings.max_video_tokens is not None and total > settings.max_video_tokens:",
        "if False:",
        "scores are not computed twice to keep a video within `max_video_tokens`",
        "max_video_tokens",
    ),
    of_the_model(
        "a_lower_ratio_keeps_the_rounding",
        f"{METHODS}/compression.py",
        'compression_rounding="exact" if rounds else settings.compression_rounding,',
        "compression_rounding=settings.compression_rounding,",
        "a video keeps at most `max_video_tokens`, however frame budgets are rounded",
        "max_video_tokens",
    ),
    of_the_model(
        "more_than_the_budget_is_kept",
        f"{METHODS}/compression.py",
        "        if kept <= budget:\n            return compression\n    raise",
        "        return compression\n    raise",
        "a method that cannot keep to `max_video_tokens` is refused",
        "max_video_tokens",
    ),
    of_the_model(
        "a_budget_alone_drops_nothing",
        f"{PROMPT}/prompt_compression.py",
        "return any(map(settings.drops_of, self.video_sizes(**inputs)))",
        "return False",
        "at a ratio of 1.0 a video beyond `max_video_tokens` is compressed",
        "max_video_tokens",
    ),
    of_the_model(
        "a_budget_always_leaves_the_parents_path",
        f"{PROMPT}/prompt_compression.py",
        "return any(map(settings.drops_of, self.video_sizes(**inputs)))",
        "return True",
        "at a ratio of 1.0 a video within `max_video_tokens` is the parent's",
        "max_video_tokens",
    ),
    of_the_model(
        "temperature_is_ignored",
        f"{METHODS}/method_vidcom2.py",
        "(u - u.max()) / settings.compression_temperature",
        "(u - u.max()) / 0.01",
        "`compression_temperature` is the temperature of the softmax",
        "compression",
    ),
    of_the_model(
        "window_is_ignored",
        f"{METHODS}/method_vidcom2.py",
        "if window is None or window >= num_frames:",
        "if True:",
        "`compression_window` bounds the frames of the mean",
        "compression",
    ),
    of_the_model(
        "frame_score_is_ignored",
        f"{METHODS}/method_vidcom2.py",
        'if frame_score == "max":',
        "if False:",
        'with `compression_frame_score="max"` a frame has the score of its most unique token',
        "compression",
    ),
    of_the_model(
        "weights_are_ignored",
        f"{METHODS}/method_vidcom2.py",
        "settings.compression_frame_weight * u_frame + settings.compression_video_weight * u_video",
        "u_frame + u_video",
        "both weights take effect",
        "compression",
    ),
    of_the_model(
        "newlines_are_ignored",
        f"{FAMILIES}/modeling_vidcom2_llava_video.py",
        'if self.kept_newlines == "occupied":',
        "if False:",
        '`compression_newlines="occupied"` drops the newlines of empty rows',
        "llava_video",
    ),
    # -- budgets, ranks, ties -----------------------------------------------------------------------------------------
    of_the_model(
        "a_frame_may_keep_nothing",
        f"{METHODS}/method_vidcom2.py",
        "budgets.clamp(1, tokens_per_frame).long()",
        "budgets.clamp(0, tokens_per_frame).long()",
        "each frame keeps a token",
        "compression",
    ),
    of_the_model(
        "budgets_forget_the_mean",
        f"{METHODS}/method_vidcom2.py",
        "ratio * (1 + sigma - 1 / len(u))",
        "ratio * (1 + sigma)",
        "budgets add up to the ratio (Eq. 6)",
        "compression",
    ),
    of_the_model(
        "the_exact_total_is_rounded_up",
        f"{METHODS}/compression.py",
        "math.floor(retention_ratio * num_tokens + 1e-6)",
        "math.ceil(retention_ratio * num_tokens - 1e-6)",
        "the exact total is ⌊R·T·M⌋",
        "compression",
    ),
    of_the_model(
        "ties_of_remainders_go_to_the_later_frame",
        f"{METHODS}/compression.py",
        "order = remainders.argsort(descending=True, stable=True)",
        "order = num_frames - 1 - remainders.flip(0).argsort(descending=True, stable=True)",
        "ties of remainders go to the earlier frame",
        "compression",
    ),
    of_the_model(
        "ties_keep_the_later_token",
        f"{METHODS}/compression.py",
        "order = token_scores.argsort(dim=1, descending=True, stable=True)",
        "order = token_scores.shape[1] - 1 - token_scores.flip(1).argsort(dim=1, descending=True, stable=True)",
        "of equal tokens the earlier one stays",
        "compression",
    ),
    of_the_model(
        "non_finite_tokens_are_kept_first",
        f"{METHODS}/method_vidcom2.py",
        "u = u.masked_fill(~finite, -math.inf)",
        "u = u.masked_fill(~finite, math.inf)",
        "a token with a non-finite value is kept last",
        "compression",
    ),
    of_the_model(
        "rotary_positions_of_the_toys_tower_are_ignored",
        "benchmarks/methods/attended_tokens.py",
        "(states * cos[part] + torch.cat([-second, first], dim=-1) * sin[part]).transpose(0, 1)",
        "states.transpose(0, 1)",
        "the methods of benchmarks/methods choose by what the toys' towers attend to",
        "leaderboard_methods",
    ),
    of_the_model(
        "frames_that_repeat_take_the_attention_of_others",
        "benchmarks/methods/attended_tokens.py",
        "[is_new.cumsum(0) - 1]",
        "[(is_new.cumsum(0) - 1).flip(0)]",
        "a frame that repeats the one before has its attention",
        "leaderboard_methods",
    ),
    of_the_model(
        "visionzips_targets_are_the_first_tokens",
        "benchmarks/methods/method_visionzip.py",
        "step = (others.sum(dim=1) // k_targets).clamp(min=1)",
        "step = torch.ones_like(k_targets)",
        'with `"visionzip"` targets are evenly spaced in their frame',
        "leaderboard_methods",
    ),
    of_the_model(
        "holitom_cuts_as_early_as_it_can",
        "benchmarks/methods/method_holitom.py",
        "most[end + 1], best = of_lengths.max(), int(of_lengths.argmax())",
        "most[end + 1], best = of_lengths.max(), int(of_lengths.flip(0).argmin())",
        'with `"holitom"` segments save as many tokens as can be',
        "leaderboard_methods",
    ),
    of_the_model(
        "holitoms_clusters_are_plain_means",
        "benchmarks/methods/method_holitom.py",
        "CENTRE_WEIGHT = 0.6",
        "CENTRE_WEIGHT = 0.5",
        "in HoliTom's clusters the centre has the weight of the paper",
        "leaderboard_methods",
    ),
    of_the_model(
        "fastvids_anchors_lose_their_least_weight",
        "benchmarks/methods/method_fastvid.py",
        ".clamp(min=LEAST_ANCHOR_WEIGHT)",
        "",
        'with `"fastvid"` an anchor keeps at least the weight β in its mean',
        "leaderboard_methods",
    ),
    of_the_model(
        "flashvids_trees_pass_on_only_their_last_token",
        "benchmarks/methods/method_flashvid.py",
        "to_parents = clear_tokens(sums, ~merged[frame])",
        "to_parents = clear_tokens(sums - from_next, ~merged[frame])",
        'with `"flashvid"` trees are clustered by the mean of all their tokens',
        "leaderboard_methods",
    ),
    of_the_model(
        "only_the_last_part_of_a_merge_counts",
        f"{METHODS}/users_methods.py",
        "sums.index_add_(0, outputs, weighted)",
        "sums = torch.zeros_like(sums).index_add_(0, outputs, weighted)",
        "merging in parts gives what merging at once does",
        "leaderboard_methods",
    ),
    of_the_model(
        "coverage_knows_no_time",
        f"{METHODS}/method_coverage.py",
        "TIME_WEIGHT = 2.0",
        "TIME_WEIGHT = 0.0",
        'with `"coverage"` tokens are far from each other in time too',
        "coverage",
    ),
    of_the_model(
        "tokens_of_a_round_may_be_alike",
        f"{METHODS}/method_coverage.py",
        "torch.minimum(distances, between[best]).index_fill",
        "distances.index_fill",
        'with `"coverage"` the tokens that are picked in one round are far from each other',
        "coverage",
    ),
    of_the_model(
        "non_finite_tokens_are_offered",
        f"{METHODS}/method_coverage.py",
        "distances.masked_fill(taken | ~tokens.finite, -torch.inf)",
        "distances.masked_fill(taken, -torch.inf)",
        'with `"coverage"` tokens with non-finite values take the place of no other',
        "coverage",
    ),
    of_the_model(
        "curvature_is_ignored",
        f"{METHODS}/method_vcast.py",
        "kappa[1:-1] = 1 - (steps[:-1] * steps[1:]).sum(dim=-1)",
        "pass",
        'with `"vcast"` a frame at which the video turns keeps more tokens',
        "vcast",
    ),
    of_the_model(
        "the_ends_of_a_video_have_no_curvature",
        f"{METHODS}/method_vcast.py",
        "kappa = torch.ones_like(means[:, 0])",
        "kappa = torch.zeros_like(means[:, 0])",
        "the curvature is 1 at both ends",
        "vcast",
    ),
    of_the_model(
        "released_remainders_are_the_papers",
        f"{METHODS}/method_vcast.py",
        "granted = (total - whole.sum() - filled_before).clamp(min=0).minimum(room)",
        "granted = (torch.arange(len(room), device=room.device) < total - whole.sum()).to(room.dtype)",
        "V-CAST's code fills one frame after another",
        "vcast",
    ),
    of_the_model(
        "lengths_are_scaled_over_the_video",
        f"{METHODS}/method_vcast.py",
        "longest = norms.masked_fill(~finite, -math.inf).amax(dim=1, keepdim=True)",
        "longest = norms.masked_fill(~finite, -math.inf).amax()",
        "V-CAST scales the tokens' lengths within their frame",
        "vcast",
    ),
    of_the_model(
        "full_frames_lose_their_rest",
        f"{METHODS}/compression.py",
        "factor = bend + torch.where(slope > 0, (total - at_bend.sum()) / slope.clamp(min=1e-300), 0.0)",
        "factor = total / weights.sum()",
        "what a full frame cannot take goes to the others",
        "vcast",
    ),
    # -- which features stay ------------------------------------------------------------------------------------------
    of_the_model(
        "a_deepstack_layer_is_not_gathered",
        f"{ENCODING}/video_features.py",
        "self._kept_features(layer, compressions) for layer in outputs",
        "tuple(video[: len(each.indices)] for video, each in zip(layer, compressions)) for layer in outputs",
        "deepstack features belong to the kept tokens",
        "qwen_videos",
        "generate",
    ),
    of_the_model(
        "merges_are_dropped",
        f"{METHODS}/compression.py",
        "features = features.index_copy(0, scored[self.indices], self.kept(features[scored]))",
        "pass",
        "a merged token is the weighted mean of several",
        "methods",
    ),
    of_the_model(
        "the_last_newline_is_dropped",
        f"{FAMILIES}/llava_videos.py",
        "indices.new_tensor([self.num_tokens] * self.ends_with_newline)",
        "indices.new_tensor([self.num_tokens - 1] * self.ends_with_newline)",
        "LLaVA-OneVision's newline at the end of a video stays",
        "generate",
        "forward",
    ),
    of_the_model(
        "newlines_stand_one_row_early",
        f"{FAMILIES}/modeling_vidcom2_llava_video.py",
        "rows * (self.side + 1) + self.side])",
        "rows * (self.side + 1) + self.side - 1])",
        "LLaVA-Video's newlines stay where they are",
        "llava_video",
        "generate",
    ),
    of_the_model(
        "scored_tokens_are_counted_without_newlines",
        f"{FAMILIES}/modeling_vidcom2_llava_video.py",
        "return indices + indices // self.side",
        "return indices",
        "a scored token's placeholder is behind the newlines before it",
        "llava_video",
        "generate",
    ),
    # -- chunks, repeated frames, changed patches ---------------------------------------------------------------------
    of_the_model(
        "chunks_are_ignored",
        f"{ENCODING}/video_features.py",
        "whole or chunk_frames is None else",
        "True else",
        "the tower takes `vision_chunk_frames` frames at a time",
        "frame_encoding",
    ),
    of_the_model(
        "repeated_frames_take_the_first_of_their_chunk",
        f"{ENCODING}/video_features.py",
        "sources = [ranks[t] - ranks[frames[0]] for t in shown]",
        "sources = [min(ranks[t] - ranks[frames[0]], 0) for t in shown]",
        "a repeated frame has the features of the one before it",
        "frame_encoding",
    ),
    of_the_model(
        "the_vision_method_is_ignored",
        f"{FAMILIES}/llava_videos.py",
        "if plan.is_one_call and partial is None:",
        "if plan.is_one_call:",
        "`vision_method` decides what the tower computes",
        "vision_skip_repeated",
    ),
    of_the_model(
        "a_drift_is_compared_with_the_frame_before",
        f"{ENCODING}/left_out_patches.py",
        "last = torch.where(differ[:, None], groups, last)",
        "last = groups",
        "a group is compared with the last computed one, not with the frame before",
        "vision_skip_repeated",
    ),
    of_the_model(
        "left_out_groups_take_the_first_frames_features",
        f"{ENCODING}/left_out_patches.py",
        "return torch.where(computed, numbers, places).cummax(dim=0).values",
        "return torch.where(computed, numbers, places)",
        "a group that is left out takes the features of the last computed one at its place",
        "vision_skip_repeated",
    ),
    of_the_model(
        "keys_of_an_earlier_chunk_are_kept",
        f"{ENCODING}/left_out_patches.py",
        "self.keys_and_values = whole_frames.last",
        "self.keys_and_values = self.keys_and_values or whole_frames.last",
        "patches attend to what was computed last at every place, also in the chunk before",
        "vision_skip_repeated",
    ),
    of_the_model(
        "keys_are_taken_in_raster_order",
        f"{ENCODING}/left_out_patches.py",
        "sources = torch.where(sources < 0, sources, order.argsort()[sources.clamp(min=0)])",
        "sources = sources + 0",
        "a tower that goes window by window has its keys in that order",
        "vision_skip_repeated",
    ),
    of_the_model(
        "patches_that_are_left_move_up",
        f"{ENCODING}/left_out_patches.py",
        "get_vision_position_ids(grid_thw, tower.spatial_merge_size)[patches],",
        "get_vision_position_ids(grid_thw, tower.spatial_merge_size)[: int(patches.sum())],",
        "the patches that are computed keep their places",
        "vision_skip_repeated",
    ),
    of_the_model(
        "windows_are_left_out_in_part",
        f"{ENCODING}/left_out_patches.py",
        "        if units is not None:",
        "        if False:",
        "a window is computed whole",
        "vision_skip_repeated",
    ),
    # -- positions ----------------------------------------------------------------------------------------------------
    of_the_model(
        "survivors_move_up",
        f"{PROMPT}/prompt_compression.py",
        "position_ids = torch.stack([order, *(take(row, positions, 0) for row in rotary)])",
        "position_ids = torch.stack([order] * 4)",
        "survivors keep their own (t, h, w)",
    ),
    of_the_model(
        "the_answer_stands_one_position_late",
        f"{PROMPT}/prompt_compression.py",
        "offset = following - num_tokens",
        "offset = following - num_tokens + 1",
        "the answer's positions begin where the full prompt ends",
    ),
    of_the_model(
        "a_second_turns_video_starts_at_zero",
        f"{FAMILIES}/qwen_videos.py",
        "return positions[..., :-1] + start, ",
        "return positions[..., :-1], ",
        "a second turn's positions continue the first's",
    ),
    of_the_model(
        "the_last_frame_counts_as_the_last_position",
        f"{PROMPT}/conversation_cache.py",
        "following = rotary[1:].amax(dim=0)",
        "following = rotary.amax(dim=0)",
        "positions continue after the last token, not after a long video's last frame",
        "conversations",
        "qwen_videos",
    ),
    of_the_model(
        "original_positions_are_consecutive",
        f"{PROMPT}/prompt_compression.py",
        "position_ids = take(start + positions_by_order(attended), positions, 0)",
        "position_ids = order + offset * is_token",
        '`compression_positions="original"` leaves the gaps',
        "call_settings",
    ),
    of_the_model(
        "gaps_in_positions_separate_prompts_without_a_cache",
        f"{HOSTING}/in_transformers.py",
        "if is_unmasked and (has_empty_places or (has_gaps and cache is None)):",
        "if is_unmasked and has_empty_places:",
        "a prompt with gaps between its positions is one prompt without a cache too",
        "call_settings",
    ),
    of_the_model(
        "flash_attention_reads_no_cached_keys_of_a_prompt_with_gaps",
        f"{HOSTING}/in_transformers.py",
        "num_keys = of_layers[0]",
        "num_keys = num_queries",
        "FlashAttention attends to the cached tokens before a prompt with gaps",
        "flash_attention",
    ),
    of_the_model(
        "flash_attention_continues_layers_of_different_lengths",
        f"{HOSTING}/in_transformers.py",
        "if len(of_layers) > 1:",
        "if False:",
        "a cache whose layers hold different numbers of tokens is refused where FlashAttention could not read it",
        "flash_attention",
    ),
    of_the_model(
        "media_after_a_turn_get_positions_of_text",
        f"{PROMPT}/prompt_compression.py",
        "if call.drops_tokens or (has_media_after_cached and memory is not None):",
        "if call.drops_tokens:",
        "an image after a cached turn gets the positions of an image",
        "conversations",
    ),
    of_the_model(
        "padding_counts_as_a_position",
        f"{PROMPT}/conversation_cache.py",
        "return (mask.long().cumsum(dim=1) - 1).clamp(min=0)",
        "return torch.arange(mask.shape[1], device=mask.device).expand_as(mask)",
        "padding has no positions",
    ),
    # -- masks --------------------------------------------------------------------------------------------------------
    of_the_model(
        "padding_is_kept",
        f"{PROMPT}/prompt_compression.py",
        "kept = attended & self._kept(",
        "kept = self._kept(",
        "padding is not part of the compressed prompt",
    ),
    of_the_model(
        "a_loop_attends_the_padding",
        f"{PROMPT}/conversation_cache.py",
        "is_token = (self.positions >= 0).to(device)",
        "is_token = torch.ones_like(self.positions, dtype=torch.bool, device=device)",
        "without a mask the padding of the compressed prompt is not attended",
        "conversations",
        "forward",
    ),
    of_the_model(
        "pad_tokens_are_not_inferred",
        f"{PROMPT}/compressed_generation.py",
        "return (input_ids != pad).long()",
        "return torch.ones_like(input_ids)",
        "a batch without a mask has its padding inferred",
        "generate",
    ),
    # -- generate -----------------------------------------------------------------------------------------------------
    of_the_model(
        "hooks_see_the_compressed_prompt",
        f"{PROMPT}/compressed_generation.py",
        "return input_ids.repeat_interleave(expand_size, dim=0), model_kwargs",
        "return prompt.ids.repeat_interleave(expand_size, dim=0), model_kwargs | "
        '{"compressed_prompt": replace(prompt, full_mask=torch.ones_like(prompt.ids))}',
        "logits processors, criteria and streamers see the full prompt",
        "generate",
        "hooks",
    ),
    of_the_model(
        "a_penalty_sees_the_short_mask",
        f"{PROMPT}/compressed_generation.py",
        "model_kwargs=_with_full_mask(model_kwargs or {}), **kwargs)",
        "model_kwargs=model_kwargs or {}, **kwargs)",
        "a penalty that looks at the mask sees that of the full prompt",
        "hooks",
        "generate",
    ),
    of_the_model(
        "a_static_cache_has_room_for_the_full_prompt",
        f"{PROMPT}/compressed_generation.py",
        "max_cache_length -= prompt.num_dropped",
        "max_cache_length -= 0",
        "a static cache has no room for dropped tokens",
        "generate",
    ),
    of_the_model(
        "lookup_proposes_placeholders",
        f"{PROMPT}/compressed_generation.py",
        "[*suppressed, *placeholders]",
        "[*suppressed]",
        "prompt lookup proposes no placeholders",
        "generate",
    ),
    of_the_model(
        "beams_of_two_prompts_are_mixed",
        f"{PROMPT}/conversation_cache.py",
        "self.ids.repeat_interleave(len(sequences) // len(self.ids), dim=0)",
        "self.ids.repeat(len(sequences) // len(self.ids), 1)",
        "beams of a prompt stand side by side",
        "generate",
    ),
    of_the_model(
        "features_of_the_caller_are_repeated_in_place",
        f"{PROMPT}/compressed_generation.py",
        "{key: copy.copy(each) for key, each in",
        "{key: each for key, each in",
        "the caller's features are left alone",
        "bad_input",
        "generate",
    ),
    # -- caches -------------------------------------------------------------------------------------------------------
    of_the_model(
        "memory_does_not_follow_reordered_rows",
        f"{PROMPT}/conversation_cache.py",
        "        self._follow(beam_idx)\n",
        "",
        "what a cache remembers follows its rows",
        "conversations",
    ),
    of_the_model(
        "memory_does_not_follow_selected_rows",
        f"{PROMPT}/conversation_cache.py",
        "        self._follow(indices)\n",
        "",
        "what a cache remembers follows its rows",
        "conversations",
    ),
    of_the_model(
        "memory_of_repeated_rows_is_mixed",
        f"{PROMPT}/conversation_cache.py",
        "return self.rows(rows.repeat_interleave(repeats))",
        "return self.rows(rows.repeat(repeats))",
        "repeated rows stand side by side",
        "conversations",
    ),
    of_the_model(
        "a_crop_into_the_prompt_is_not_noticed",
        f"{PROMPT}/conversation_cache.py",
        "elif known is not None and length < known.length and known.is_short:",
        "elif False:",
        "a cache that was cropped into its prompt is refused",
        "conversations",
        "generate",
    ),
    of_the_model(
        "cache_is_not_reset",
        f"{PROMPT}/conversation_cache.py",
        "super().reset()\n        self.cached_prompt = None\n",
        "super().reset()\n",
        "a cache that is reset forgets its prompt",
        "generate",
    ),
    of_the_model(
        "another_model_continues_the_cache",
        f"{PROMPT}/conversation_cache.py",
        "if known is None or self.in_use:",
        "if True:",
        "another model cannot continue a compressed cache",
        "conversations",
    ),
    # -- logits, labels -----------------------------------------------------------------------------------------------
    of_the_model(
        "rows_are_one_off",
        f"{PROMPT}/conversation_cache.py",
        "index = (padding + counts - 1).clamp(min=0)",
        "index = (padding + counts - 2).clamp(min=0)",
        "a position has the logits of its own token",
        "forward",
        "inner_model",
    ),
    of_the_model(
        "the_first_token_is_predicted_from_padding",
        f"{PROMPT}/compressed_generation.py",
        ".masked_fill(is_first, IGNORED_LABEL)",
        "",
        "a prompt's first token is not predicted",
        "forward",
        "training",
    ),
    of_the_model(
        "shifted_labels_are_shifted_again",
        f"{PROMPT}/compressed_generation.py",
        "labels = torch.cat([torch.full_like(shift_labels[:, :1], IGNORED_LABEL), shift_labels[:, :-1]], dim=1)",
        "labels = shift_labels",
        "`shift_labels` holds the label of each position's next token",
        "training",
        "forward",
    ),
    of_the_model(
        "labels_of_dropped_tokens_are_counted",
        f"{PROMPT}/compressed_generation.py",
        "if given == left:",
        "if True:",
        "accumulated labels of dropped tokens are refused, or not counted",
        "training",
    ),
    of_the_model(
        "labels_move_by_one",
        f"{PROMPT}/conversation_cache.py",
        "return take(labels, prompt_positions, IGNORED_LABEL)",
        "return take(labels.roll(1, dims=1), prompt_positions, IGNORED_LABEL)",
        "the loss is over the labels of the kept tokens",
        "forward",
        "training",
    ),
    # -- around the models --------------------------------------------------------------------------------------------
    of_the_model(
        "half_a_line_is_read",
        f"{RECORDS}/jsonl.py",
        '.split("\\n")[:-1]]',
        '.split("\\n") if line]',
        "a last line that an interruption left half-written is skipped",
        "many",
        "evaluation",
    ),
    of_the_model(
        "errors_count_as_answers",
        f"{RECORDS}/jsonl.py",
        'if "error" not in row}',
        "}",
        "questions that ended in an error are asked again",
        "many",
        "evaluation",
    ),
    of_the_model(
        "a_batch_that_does_not_fit_is_given_up",
        f"{EVALUATION}/evaluate.py",
        "if len(together) > 1:",
        "if False:",
        "a batch that does not fit into memory is halved",
        "evaluation",
    ),
    of_the_model(
        "two_processes_take_one_lock",
        f"{RECORDS}/whole_files.py",
        "        raise TakenError(otherwise) from None\n    try:\n        yield",
        "        pass\n    try:\n        yield",
        "no two processes make the same folder",
        "whole_files",
        "convert_llava_video",
        "many",
    ),
    of_the_model(
        "a_file_is_known_by_its_size",
        f"{RECORDS}/fingerprints.py",
        'return f"sha256 {sha256_of(path)}"',
        'return f"sha256 {size}"',
        "a changed file of the same size counts as another file",
        "fingerprints",
        "many",
    ),
    of_the_model(
        "a_part_is_written_under_a_new_name_each_time",
        f"{RECORDS}/answer_parts.py",
        'name = hashlib.sha256("\\n".join(sorted(row["id"] for row in rows))',
        'name = hashlib.sha256("\\n".join(row["id"] for row in rows)',
        "work that Ray repeats replaces its part",
        "answer_parts",
    ),
    of_the_model(
        "errors_in_parts_count_as_answers",
        f"{RECORDS}/answer_parts.py",
        'for row in rows if "error" not in row and',
        "for row in rows if",
        "requests that ended in an error are asked again",
        "answer_parts",
    ),
    of_the_model(
        "an_unfinished_file_stays",
        f"{RECORDS}/whole_files.py",
        "        part.unlink(missing_ok=True)\n",
        "        pass\n",
        "an error leaves nothing of an unfinished file",
        "whole_files",
        "explain",
    ),
    of_the_model(
        "patches_are_drawn_over_the_part_that_tokens_cover",
        "src/vidcom2/explain/explanation.py",
        "tower_covered = _covered(model.config, side, seen)",
        "tower_covered = _covered(model.config, 2 * height, seen)",
        "explain draws the tower's patches where they are",
        "explain",
    ),
    of_the_model(
        "explain_takes_the_towers_part_from_the_defaults",
        "src/vidcom2/explain/explanation.py",
        "model.model.partial_encoding(settings=every[0], **encoded.inputs)",
        "model.model.partial_encoding(settings=CompressionSettings(), **encoded.inputs)",
        "explain draws what the vision tower computed with the model's settings",
        "explain",
    ),
    # -- a model that changes its class -------------------------------------------------------------------------------
    of_the_model(
        "a_bound_method_stays_with_the_old_class",
        "src/vidcom2/applying.py",
        "        holder.__dict__[name] = method\n",
        "        pass\n",
        "hooks of accelerate run the new class",
        "applying",
    ),
    of_the_model(
        "a_config_elsewhere_in_the_model_stays",
        "src/vidcom2/applying.py",
        '        if vars(module).get("config") is old_config:\n',
        "        if module is loaded:\n",
        "the inner model has the config of the head",
        "applying",
    ),
    of_the_model(
        "a_stock_cache_with_unknown_positions_is_continued",
        f"{PROMPT}/prompt_compression.py",
        "        self._check_known_to_the_stock_class(cache)\n",
        "",
        "a cache from before `apply` is refused if its positions are unknown",
        "applying",
    ),
    of_the_model(
        "positions_after_a_video_are_left_to_the_stock_class",
        f"{PROMPT}/conversation_cache.py",
        "if known.position_offset is not None and known.position_offset.any():",
        "if False:",
        "a cache of ours with a video is refused after `remove`",
        "applying",
    ),
    of_the_model(
        "a_video_is_encoded_for_each_question",
        "src/vidcom2/answering/ask.py",
        "        if features is None:  # encoded",
        "        if True:  # encoded",
        "several questions share one run of the vision tower",
        "frames",
    ),
    # -- video --------------------------------------------------------------------------------------------------------
    Mutation(
        "a_gap_takes_frames_from_the_rest",
        f"{VIDEO}/timeline.py",
        "        if longest * steps <= rest:\n            break\n",
        "        break\n",
        "a gap without frames counts as no longer than the time between two sampled frames",
        ("video_time_stamps", "video"),
    ),
    Mutation(
        "frames_before_time_0_come_after_it",
        f"{VIDEO}/timeline.py",
        "before = known[0] - np.rint(",
        "before = known[0] + np.rint(",
        "the packets of Matroska that lie before time 0 are shown first",
        ("video_time_stamps",),
    ),
    Mutation(
        "joined_recordings_are_shown_over_each_other",
        f"{VIDEO}/timeline.py",
        "parts.append(part - part.min() + end)",
        "parts.append(part)",
        "a recording that is joined to another is shown after it",
        ("video_time_stamps", "video"),
    ),
    Mutation(
        "undecodable_frames_are_not_counted",
        f"{VIDEO}/decoding.py",
        "result.lost = max(refused, total - count)",
        "result.lost = 0",
        "`lost` says how many frames of a damaged file do not decode",
        ("video_decoding", "video"),
    ),
    Mutation(
        "frames_before_the_first_key_are_not_counted",
        f"{VIDEO}/decoding.py",
        "left_out = at - (count - 1)",
        "left_out = 0",
        "`lost` counts the frames before the first key frame, for which decoders raise no error",
        ("video_time_stamps",),
    ),
    Mutation(
        "pixels_are_taken_for_square",
        f"{VIDEO}/decoding.py",
        "aspect = float(stream.sample_aspect_ratio or 1)",
        "aspect = 1.0",
        "a frame is as wide as players show it",
        ("video_decoding", "video"),
    ),
    Mutation(
        "turned_frames_are_mirrored",
        f"{VIDEO}/decoding.py",
        "pixels, a, d = pixels.transpose(1, 0, 2), c, b",
        "pixels, a, d = pixels.transpose(1, 0, 2), b, c",
        "a frame is upright, whichever way the camera was held",
        ("video_decoding", "video"),
    ),
    Mutation(
        "decoded_frames_are_cut_off_instead_of_rounded",
        f"{VIDEO}/frames.py",
        "np.rint(array * 255).astype(np.uint8)",
        "(array * 255).astype(np.uint8)",
        "frames of floats are the same as the bytes that they were made of",
        ("frames",),
    ),
    Mutation(
        "a_picture_lies_on_its_side",
        f"{VIDEO}/frames.py",
        'ImageOps.exif_transpose(frames).convert("RGB")',
        'frames.convert("RGB")',
        "a list of pictures is shown upright, as the camera's note says",
        ("frames", "video"),
    ),
    # -- hub, records -------------------------------------------------------------------------------------------------
    Mutation(
        "a_pinned_tag_is_moved",
        "hub_upload/publishing.py",
        "    if tag in remote.tags:\n",
        "    if False:\n",
        "a tag that users may have pinned is not given again",
        ("publish",),
    ),
    Mutation(
        "files_of_others_are_deleted",
        "hub_upload/publishing.py",
        "    if foreign and not options.force and not options.pr:\n",
        "    if False:\n",
        "publishing deletes only what an earlier publication wrote",
        ("publish",),
    ),
    Mutation(
        "trained_weights_are_replaced",
        "hub_upload/publishing.py",
        "if remote.files.get(path, sha) != sha]:",
        "if False]:",
        "weights that were trained since a publication stay",
        ("publish",),
    ),
    Mutation(
        "a_commit_goes_over_anothers",
        "hub_upload/publishing.py",
        "        parent_commit=parent,\n",
        "",
        "publishing stops if the repo changed in the meantime",
        ("publish",),
    ),
    Mutation(
        "what_the_repo_holds_is_sent_again",
        "hub_upload/publishing.py",
        "([sha256] if is_weights else [sha256, git_hash(file.read_bytes())])",
        "()",
        "files that the repo already holds are left out of the commit",
        ("publish",),
    ),
    Mutation(
        "a_save_goes_over_users_files",
        "src/vidcom2/shipping/shipped_code.py",
        "if lexists(target / name) and not _is_same(target / name, written.get(name))]",
        "if False]",
        "saving a model refuses a folder with other files of the names of its code",
        ("hub_repos", "shipped_code"),
    ),
    Mutation(
        "a_folder_that_is_made_is_made_again",
        f"{RECORDS}/whole_files.py",
        "    _remove_leftovers(target)\n",
        "",
        "two processes do not make one folder, and a killed one leaves nothing behind",
        ("whole_files", "convert_llava_video"),
    ),
    Mutation(
        "the_last_of_two_keys_counts",
        f"{RECORDS}/jsonl.py",
        "    if len(found) < len(pairs):\n",
        "    if False:\n",
        "a line that gives a key twice is refused",
        ("many", "evaluation"),
    ),
    # -- command line -------------------------------------------------------------------------------------------------
    Mutation(
        "the_answer_to_another_request_is_kept",
        f"{RECORDS}/run_record.py",
        "        if before.given != now.given:\n",
        "        if False:\n",
        "a run is not continued with other requests or questions under the same ids",
        ("many", "evaluation"),
    ),
    Mutation(
        "the_answer_about_another_video_is_kept",
        f"{RECORDS}/run_record.py",
        "        if video_changed(before.video_file, now.video_file):\n",
        "        if False:\n",
        "a run is not continued if a video was replaced under its name",
        ("many", "evaluation"),
    ),
    Mutation(
        "a_bug_is_shown_as_a_mistake_of_the_users",
        "src/vidcom2/cli/console.py",
        '        elif type(error).__module__.partition(".")[0] != __name__.partition(".")[0]:\n',
        "        elif False:\n",
        "a bug keeps its traceback and exits with 1",
        ("cli_errors",),
    ),
]


def copy_of_the_tree(folder: Path) -> Path:
    """Copy the files that git tracks or would track. Links stay links."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def outcome(mutation: Mutation, marks: str, workers: str) -> tuple[str, str]:
    """Run one mutation. Return a word for how it ended, and the test that noticed or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as temporary:
        tree = copy_of_the_tree(Path(temporary).resolve())
        file = tree / mutation.file
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        if text.count(mutation.old) != 1:
            return "NOT FOUND", f"{text.count(mutation.old)} times in {mutation.file}: {mutation.old!r}"
        file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        environment = dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)])}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        where = [sys.executable, "-c", "import vidcom2; print(vidcom2.__file__)"]
        imported = subprocess.run(where, cwd=tree, env=environment, capture_output=True, text=True)
        if not imported.stdout.startswith(str(tree)):
            return "BROKEN", f"Python does not import the copy: {imported.stdout or imported.stderr[-300:]}"
        tests = [f"tests/test_{name}.py" for name in mutation.tests]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", marks, "--tb=no", "-p", "no:cacheprovider", "-n"]
        run = partial(subprocess.run, cwd=tree, env=environment, capture_output=True, text=True)
        try:
            ran = run([*command, workers, *tests], timeout=SECONDS_OF_A_RUN)
        except subprocess.TimeoutExpired:
            return "caught", f"the tests did not end within {SECONDS_OF_A_RUN} s"
        if ran.returncode == ALL_PASSED:
            return "MISSED", mutation.breaks
        noticed = [line.removeprefix("FAILED ") for line in ran.stdout.splitlines() if line.startswith("FAILED ")]
        if not noticed:
            return "BROKEN", (ran.stdout + ran.stderr)[-500:]
        test = noticed[0].split(" - ")[0]
        file.write_text(text, encoding="utf-8")
        if run([*command, "0", test]).returncode != ALL_PASSED:
            return "BROKEN", f"{test} does not pass without the mutation either"
        return "caught", test


def main() -> int:
    by_name = {mutation.name: mutation for mutation in MUTATIONS}
    assert len(by_name) == len(MUTATIONS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutations to run; all if none is named")
    parser.add_argument("--list", action="store_true", help="list the mutations, and whether their text is found")
    parser.add_argument("-m", default="not slow", help="which tests to run, as pytest's -m")
    parser.add_argument("-n", default="0", help="number of workers, as pytest-xdist's -n")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - by_name.keys():
        parser.error(f"{', '.join(sorted(unknown))}: no such mutation. --list names them.")
    mutations = [by_name[name] for name in arguments.names] or MUTATIONS
    if arguments.list:
        for mutation in mutations:
            file = ROOT / mutation.file
            count = file.read_text(encoding="utf-8").count(mutation.old) if file.is_file() else 0
            print(f"{mutation.name:50} {mutation.file} {'' if count == 1 else f'NOT FOUND ({count} times)'}")
        return 0
    counts: dict[str, int] = {}
    for mutation in mutations:
        start = time.monotonic()
        what, detail = outcome(mutation, arguments.m, arguments.n)
        counts[what] = counts.get(what, 0) + 1
        print(f"{what:9} {mutation.name:50} {time.monotonic() - start:5.0f} s  {detail}", flush=True)
    print(", ".join(f"{number} {what.lower()}" for what, number in sorted(counts.items())))
    return 0 if counts.keys() == {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main())
