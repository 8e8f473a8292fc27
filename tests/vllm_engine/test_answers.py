"""vLLM generates the same greedy float32 tokens as the Transformers class from the same repo, in each family."""

import pytest
from engines import METADATA, RATIO, WIDTH, Served, image, requests_of


def test_greedy_tokens_are_those_of_the_transformers_class(served: Served) -> None:
    for kind, asked in requests_of(served.case).items():
        request = served.request(**asked)
        assert served.answers(request) == served.expected(request), kind


def test_the_prompt_has_no_tokens_beyond_those_that_stay(served: Served) -> None:
    case = served.case
    whole = served.inputs(served.request())["input_ids"].shape[1]
    for ratio in (None, 0.1, 0.25, 0.5, 1.0):
        (output,) = served.outputs(served.request(ratio=ratio))
        assert len(output.prompt_token_ids) == whole - case.scored_tokens + case.kept(ratio)


def test_the_text_of_a_prompt_is_that_of_transformers(served: Served) -> None:
    served.check_text_of_prompts()


def test_sixteen_mixed_requests_at_once_get_the_answers_they_get_one_by_one(served: Served) -> None:
    kinds = list(requests_of(served.case).values())
    mixed = [served.request(text=f"What is number {i}?", **kinds[i % len(kinds)]) for i in range(16)]
    together = served.answers(*mixed)
    assert together == [served.answers(each)[0] for each in mixed]
    assert together == served.expected(*mixed)
    assert len({tuple(each) for each in together}) > 4


def test_a_second_question_reuses_the_cached_video(served: Served) -> None:
    """The prompts share a prefix that ends behind the video, so its tokens are not computed again."""
    for ratio in (RATIO, 0.6):
        first, second = (served.request(text, (7,), ratio=ratio) for text in ("What is it?", "What is it not, then?"))
        assert served.answers(first) == served.expected(first)
        (output,) = served.outputs(second)
        if served.case.scored_tokens * ratio > 40:
            assert output.num_cached_tokens > 0
        assert [list(output.outputs[0].token_ids)] == served.expected(second)


def test_frames_of_other_sizes_are_refused_before_the_engine_sees_them(served: Served) -> None:
    """In the middle of a step, the error would stop the engine for everybody."""
    request = served.request()
    if served.case.name == "internvl":
        request["mm_processor_kwargs"] = {"do_resize": False}
        reason = "makes frames of 112 × 140 pixels, but the model's vision tower takes 84 × 84"
    elif served.case.name == "gemma4":
        frames = [image(0), image(1).resize((WIDTH, WIDTH))]
        request["multi_modal_data"] = {"video": [(frames, {**METADATA, "frames_indices": [0, 1]})]}
        reason = "The frames of a video have different sizes"
    else:
        pytest.skip("its tower takes any size, or test_kept_state.py asks it")
    with pytest.raises(Exception, match=reason):
        served.answers(request)
    assert served.answers(served.request()) == served.expected(served.request())
