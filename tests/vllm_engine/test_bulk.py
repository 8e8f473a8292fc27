"""`vidcom2 run --engine vllm` gives the rows of the Transformers engine."""

import json
from pathlib import Path
from typing import Any

import pytest
import vllm
from engines import CASES_BY_NAME, PIXELS, ROWS, Case, save_repo, save_stock_repo
from mixed_requests import BAD, mixed_requests, read_mood
from typer.testing import CliRunner
from vllm.v1.engine.exceptions import EngineDeadError

from vidcom2.bulk.many_in_vllm import VllmEngine
from vidcom2.cli.app import app
from vidcom2.errors import BUG

ENGINE_ARGS = {"enforce_eager": True, "max_model_len": 1024, "block_size": 32, "kv_cache_memory_bytes": 2**26}
# A stock repo, one whose frames have times, one whose prompt tells the times, and one whose videos are images.
REPOS = {"llava_onevision": 64, "qwen2_5_vl": 23, "llava_video": 14, "internvl": 14}


def vidcom2(*arguments: Any) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def rows(path: Path) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["id"] for line in lines}) == len(lines)
    return {line["id"]: line for line in lines}


def command(repo: Path, output: Path, requests: Path, *more: Any) -> list[Any]:
    given = ["--num-frames", 8, "--max-new-tokens", 6]
    return ["run", "--model", repo, "--requests", requests, "-o", output, *given, *more]


@pytest.mark.parametrize("name", REPOS)
def test_the_rows_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    repo, case = tmp_path / "repo", CASES_BY_NAME[name]
    processor = save_stock_repo(repo, case)[1] if name == "llava_onevision" else save_repo(repo, case)
    if name == "llava_video":
        processor.add_time_instruction = True
        processor.save_pretrained(repo)
    read_mood(repo)
    lines = [json.dumps(each) + "\n" for each in mixed_requests(tmp_path, REPOS[name])]
    (tmp_path / "requests.jsonl").write_text("".join(lines))
    expected, found = tmp_path / "transformers.jsonl", tmp_path / "vllm.jsonl"
    code, _, error = vidcom2(*command(repo, expected, tmp_path / "requests.jsonl", "--batch-size", 4))
    assert code == 3, error
    of_vllm = ("--engine", "vllm", "--engine-args", json.dumps(ENGINE_ARGS), "--batch-size", 8)
    # Only vLLM has a limit for prompts, and refuses them when the others are already running.
    lines.insert(3, json.dumps({"id": "long", "video": "0.mp4", "prompt": "What" + " now" * 300}) + "\n")
    (tmp_path / "for_vllm.jsonl").write_text("".join(lines))
    code, shown, error = vidcom2(*command(repo, found, tmp_path / "for_vllm.jsonl", *of_vllm))
    answered = sum("answer" in row for row in rows(expected).values())
    assert code == 3 and f"Answered: {answered} of {REPOS[name] + 1} requests" in shown, error
    assert answered >= REPOS[name] - len(BAD)  # a prompt with another family's placeholders is only text
    found_rows = rows(found)
    assert "maximum context length is 1024 tokens" in found_rows.pop("long")["error"]
    assert found_rows == rows(expected)
    answers = [row["answer"] for row in found_rows.values() if "answer" in row]
    assert len(answers) == answered and len(set(answers)) > 5


def test_what_a_request_raises_is_its_own_error_and_a_dead_engine_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(engine: Any, prompt: Any, output: Any) -> Any:
        if prompt.request.id == "r1":
            output.outputs[0].finish_reason = "error"
        return {}["x"] if prompt.request.id == "r2" else answer(engine, prompt, output)

    def dead(*_: Any, **__: Any) -> Any:
        raise EngineDeadError

    save_stock_repo(tmp_path / "repo", CASES_BY_NAME["llava_onevision"])
    read_mood(tmp_path / "repo")
    lines = [json.dumps(each) + "\n" for each in mixed_requests(tmp_path, 10)[:4]]
    (tmp_path / "requests.jsonl").write_text("".join(lines))
    of_vllm = ("--compression-rounding", "exact", "--engine", "vllm", "--engine-args", json.dumps(ENGINE_ARGS))
    arguments = command(tmp_path / "repo", tmp_path / "a.jsonl", tmp_path / "requests.jsonl", *of_vllm)
    answer = VllmEngine._answer
    monkeypatch.setattr(VllmEngine, "_answer", answered)
    engines, start = [], vllm.LLM
    monkeypatch.setattr(vllm, "LLM", lambda **given: engines.append(start(**given)) or engines[0])
    code, shown, error = vidcom2(*arguments)
    found = rows(tmp_path / "a.jsonl")
    assert code == 1 and "Answered: 2 of 4 requests" in shown and "1 of the errors are bugs" in error
    assert found["r1"]["error"] == "vLLM gave up this request (finish_reason 'error')."
    assert found["r2"]["error"].startswith(f"{BUG}: KeyError: 'x'")
    monkeypatch.setattr(vllm, "LLM", lambda **given: engines[0])  # which is shut down already
    monkeypatch.setattr(engines[0].llm_engine.engine_core, "shutdown", lambda: None)
    monkeypatch.setattr(start, "enqueue", dead)
    code, _, error = vidcom2(*arguments)
    assert code == 1 and "EngineDeadError" in error and len(rows(tmp_path / "a.jsonl")) == 2


def test_workers_of_ray_with_vllm_give_the_rows_of_transformers(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="it comes with the extra `ray`, which .ci/vllm leaves out to save time")
    repo, count = tmp_path / "repo", 20
    save_stock_repo(repo, CASES_BY_NAME["llava_onevision"])
    read_mood(repo)
    lines = [json.dumps(each) + "\n" for each in mixed_requests(tmp_path, count)]
    (tmp_path / "requests.jsonl").write_text("".join(lines))
    expected, found = tmp_path / "transformers.jsonl", tmp_path / "ray.jsonl"
    in_fours = ("--batch-size", 4)
    assert vidcom2(*command(repo, expected, tmp_path / "requests.jsonl", *in_fours))[0] == 3
    on_ray = (*in_fours, "--engine", "ray", "--ray-workers", 2, "--device", "cpu", "--rows-per-part", 5)
    of_vllm = (*on_ray, "--ray-engine", "vllm", "--engine-args", json.dumps(ENGINE_ARGS))
    code, shown, error = vidcom2(*command(repo, found, tmp_path / "requests.jsonl", *of_vllm))
    ray.shutdown()
    assert code == 3 and f"Answered: {count - len(BAD)} of {count} requests" in shown, error
    parts = [rows(path) for path in found.glob("part-*")]
    assert len(parts) > 3 and sum(map(len, parts)) == count
    assert {name: row for part in parts for name, row in part.items()} == rows(expected)


def test_what_the_engine_cannot_keep_to_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm, "LLM", None)
    save_stock_repo(tmp_path / "llava", CASES_BY_NAME["llava_onevision"])
    save_stock_repo(tmp_path / "not served", Case(ROWS["video_llama_3"], {**PIXELS, "patch_size": 14}, (4, 5)))
    requests, output = tmp_path / "requests.jsonl", tmp_path / "a.jsonl"
    requests.write_text('{"video": "a.mp4", "prompt": "What?"}')
    cases: list[tuple[str, list[str], str]] = [
        ("llava", ["--compression-rounding", "ceil"], "`--compression-rounding` is 'ceil'"),
        ("llava", ["--compression-method", "evs", "--vision-method", "skip_repeated"], "skip_repeated"),
        ("llava", ["--engine-args", "[1]"], "`--engine-args` is '[1]'"),
        ("llava", ["--engine-args", '{"max_num_seqs": 4}'], "holds `max_num_seqs`, which --batch-size sets"),
        ("llava", ["--engine-args", '{"hf_overrides": {"retention_ratio": 1}}'], "without settings of VidCom²"),
        ("not served", [], "vLLM has no class for this family"),
    ]
    for repo, more, message in cases:
        code, _, error = vidcom2(*command(tmp_path / repo, output, requests, "--engine", "vllm", *more))
        assert code == 2 and message in " ".join(error.split()) and not output.exists(), error
