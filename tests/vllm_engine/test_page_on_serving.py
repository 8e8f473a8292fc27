"""The snippet of docs/serving.md answers, with a tiny local repo in place of the Hub's."""

import re
from pathlib import Path

import pytest
from engines import CASES_BY_NAME, KEPT, Served
from make_clips import write_clip

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


def test_the_snippet_for_vllm_answers(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    served = Served.saved(tmp_path / "repo", CASES_BY_NAME["llava_onevision"], **KEPT)
    write_clip(tmp_path / "clip.mp4", [i / 2 for i in range(8)])
    (snippet,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    snippet = snippet.replace("org/llava-ov-vidcom2", str(tmp_path / "repo")).replace("/videos", str(tmp_path))
    snippet = snippet.replace("LLM(", "LLM(max_model_len=1024, kv_cache_memory_bytes=2**26, enforce_eager=True, model=")
    names: dict = {}
    exec(compile(snippet, str(PAGE), "exec"), names)
    (answer,) = names["answers"]
    video = answer.prompt_token_ids.count(served.model.config.video_token_id)
    assert 0 < video < served.case.scored_tokens and answer.outputs[0].text in capsys.readouterr().out
