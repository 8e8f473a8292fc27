"""Runs every command and snippet of some pages as a user of the wheel does: in an empty folder, without the checkout.

    python examples.py README.md docs/quick_start.md docs/quick_start.ipynb

What would need a network has a stand-in. A model that is named is the bundled toy of its architecture, and `clip.mp4`
is the clip that comes with it. Left out, and printed, is what cannot run beside a wheel: installing, the tests, vLLM
(which the step `vllm` runs) and publishing.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import vidcom2
from vidcom2.toys import DEMO_VIDEO, TOYS

LEFT_OUT = re.compile(r"\bpip install|\bpytest\b|\bvllm\b|--engine|\bpublish\b|\bgit clone|\bdocker\b")
MODEL = re.compile(r"""((?:--model[ =]|\bload\(|\bmodel=)["']?)([\w.-]+/[\w./-]+)""")  # its name, a Hub id or a folder


def examples(page: Path) -> Iterator[tuple[str, str]]:
    """Yield what a page shows, in order: `python` with a snippet, or `command` with a line."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] == "code":
                yield "python", "".join(cell["source"])
        return
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        if language == "python":
            yield "python", block
        elif language in ("bash", "sh", "text"):
            for line in block.replace("\\\n", " ").splitlines():
                for command in line.split(" && "):
                    # What `run` shows ends with a line such as "vidcom2 at 25 %: same answer".
                    if re.match(r"(vidcom2(?! at )|vllm|pip|uv|pytest|docker|git) ", command):
                        yield "command", command.partition(" #")[0].strip()


def offline(code: str) -> str:
    """Put the toys into the places of models that would be downloaded."""

    def toy(match: re.Match[str]) -> str:
        return match[1] + str(TOYS["qwen3_vl" if "qwen3" in match[2].lower() else "llava_onevision"].folder)

    return MODEL.sub(toy, code)


def run(command: str) -> None:
    """Run a command. The demo is asked for its page, and ended."""
    program, *arguments = shlex.split(command)
    started = [str(Path(sys.executable).with_name(program)), *arguments]
    if arguments[0] != "demo":
        subprocess.run(started, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            shown = next(line for line in server.stdout if "http://" in line)
            urlopen(re.findall(r"http://[\w.:]+", shown)[0]).read()
        finally:
            server.terminate()


def main(pages: list[Path]) -> None:
    assert "site-packages" in str(vidcom2.__file__), vidcom2.__file__
    for page in pages:
        # Each has a folder of its own, since commands don't replace what those of another page wrote.
        folder = Path(tempfile.mkdtemp(dir="."))
        shutil.copy(DEMO_VIDEO, folder / "clip.mp4")
        os.chdir(folder)
        namespace: dict[str, object] = {}
        for kind, code in examples(page):
            first = f"{page.name}: {code.strip().splitlines()[0]}"
            if LEFT_OUT.search(code) and page.suffix != ".ipynb":  # the notebook installs only where nothing is
                print(f"left out of {first}")
                continue
            print(first, flush=True)
            if kind == "python":
                exec(compile(offline(code), first, "exec"), namespace)
            else:
                run(offline(code))
        os.chdir("..")


if __name__ == "__main__":
    pages = [Path(page).resolve() for page in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main(pages)
        os.chdir("/")
