"""The container file and the manifest in the examples name what the server has: options, paths, port, signal."""

import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "serve"


def test_they_fit_the_server(trainwright):
    """And each other. No image is built here."""
    yaml = pytest.importorskip("yaml")
    http = pytest.importorskip("trainwright.serve.http.app")
    docker = (EXAMPLES / "Dockerfile").read_text()
    deployment, service = yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    options = trainwright("serve", "run", "--help").out
    assert all(one in options for one in re.findall(r'"(--[a-z-]+)"', docker) + container["args"][::2])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in http.OPEN_PATHS
    port = container["ports"][0]
    assert f"EXPOSE {port['containerPort']}\n" in docker
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"] == service["spec"]["selector"]
    volumes = {one["name"] for one in pod["spec"]["volumes"]}
    assert volumes == {one["name"] for one in container["volumeMounts"]}
    assert pod["spec"]["terminationGracePeriodSeconds"] > int(container["args"][1])
    assert f"USER {pod['spec']['securityContext']['runAsUser']}\n" in docker
