"""The files in `deploy/`. `tests/vllm_engine/test_deployed_servers.py` has vLLM read their arguments."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from vidcom2.configuration.compression_settings import CompressionSettings
from vidcom2.vllm_plugin.compat import why_not

DEPLOY = Path(__file__).parents[1] / "deploy"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def server_arguments() -> dict[str, list[str]]:
    """Return the arguments of the server in each file that starts one."""
    (compose,), (deployment, _service) = documents("compose.yaml"), documents("kubernetes.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {"compose.yaml": compose["services"]["server"]["command"], "kubernetes.yaml": container["args"]}


def test_the_image_has_a_version_of_vllm_that_the_plugin_supports() -> None:
    found = re.search(r"^FROM vllm/vllm-openai:v(\S+)$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert found and why_not(found[1]) is None


def test_both_servers_have_the_same_arguments_and_settings_that_the_plugin_takes() -> None:
    compose, kubernetes = server_arguments().values()
    assert compose[1:] == kubernetes[1:]
    settings = json.loads(compose[compose.index("--hf-overrides") + 1])
    assert CompressionSettings(**settings).compression_rounding == "exact"


def test_every_address_and_time_fits_the_others() -> None:
    (compose,), (deployment, service) = documents("compose.yaml"), documents("kubernetes.yaml")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    (port,) = container["ports"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert service["spec"]["ports"][0]["targetPort"] == port["containerPort"] == 8000
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": port["containerPort"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}
    (scrape,) = documents("prometheus.yaml")[0]["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": ["server:8000"]}] and "server" in compose["services"]
    draining = int(container["args"][container["args"].index("--shutdown-timeout") + 1])
    assert draining < pod["spec"]["terminationGracePeriodSeconds"]
    assert draining < int(compose["services"]["server"]["stop_grace_period"].removesuffix("s"))
