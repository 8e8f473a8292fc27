"""vLLM reads the arguments of the servers in `deploy/`."""

import pytest
from test_deploy import server_arguments
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser


@pytest.mark.parametrize("file", server_arguments())
def test_vllm_takes_the_arguments(file: str) -> None:
    model, *arguments = server_arguments()[file]
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", model, *arguments])
    validate_parsed_serve_args(parsed)
    assert parsed.allowed_media_domains == ["media.example.com"]
    assert parsed.media_io_kwargs == {"video": {"num_frames": 32}}
    assert parsed.hf_overrides["compression_rounding"] == "exact"
    assert parsed.shutdown_timeout == 60
