"""Container files and the manifest in the examples name what there is: options, paths, port, signal, extras."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "serve"
SECTIONS = {"files", "post", "environment", "test", "runscript"}


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


def sections():
    """Return the header and the sections of the Apptainer definition."""
    text = (ROOT / "examples" / "hpc" / "trainwright.def").read_text()
    header, *parts = re.split(r"^%(\w+)\n", text, flags=re.MULTILINE)
    return header, dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_apptainer_definition():
    """Known sections whose scripts a shell can parse, a base whose torch is new enough, and extras that exist."""
    header, parts = sections()
    assert set(parts) == SECTIONS
    assert re.search(r"^Bootstrap: docker$", header, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = re.search(r"^From: pytorch/pytorch:(\d+)\.(\d+)", header, re.MULTILINE)
    # Plans need it, of which an image should be capable.
    assert (int(base[1]), int(base[2])) >= (2, 11)
    extras = re.search(r"trainwright\[([\w,]+)\]", parts["post"])[1].split(",")
    assert set(extras) <= set(project["optional-dependencies"])
    for name in SECTIONS - {"files"}:
        subprocess.run(["/bin/sh", "-n", "-c", parts[name]], check=True)


@pytest.mark.slow
def test_the_apptainer_definition_builds_as_far_as_it_goes_without_apptainer(tmp_path):
    """Its scripts run in an environment that has torch, as the base image does: torch stays, the command is there."""
    _, parts = sections()
    wheels = tmp_path / "opt" / "wheels"
    build = ["-m", "pip", "-q", "wheel", "--no-deps", "--wheel-dir", wheels, ROOT]
    subprocess.run([sys.executable, *build], check=True, capture_output=True)
    home = tmp_path / "image"
    venv.create(home, with_pip=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(home)})
    Path(packages, "base.pth").write_text(str(Path(find_spec("torch").origin).parents[1]))
    clean = {**os.environ, "PATH": f"{home}/bin:{os.environ['PATH']}", "PYTHONPATH": ""}

    def run(name, *arguments):
        script = parts[name].replace("/opt/", f"{tmp_path}/opt/")
        words = ["/bin/sh", "-c", parts["environment"] + script, name, *arguments]
        done = subprocess.run(words, env=clean, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("post")
    assert not list(Path(packages).glob("torch-*"))
    assert Path(packages, "trainwright").is_dir()
    assert "Installed" in run("test")
    assert run("runscript", "--version").startswith("trainwright ")
