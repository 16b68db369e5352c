"""The manifests, held against the schemas of what will read them, and against each other."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import ray.autoscaler
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.toy import CLI, INPROCESS, ROOT, bits_of, environment, only_run, run_command

MANIFESTS = ROOT / "cluster" / "manifests"
CLOUDS = ("aws", "gcp")
IMAGE = f"raysim:{version('raysim')}"
KUBERNETES = "1.33"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text()))


def pinned_ray() -> str:
    found = re.search(r"^ARG RAY=(\S+)$", (MANIFESTS / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    return found.group(1)


# Ray's autoscaler ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLOUDS)
def test_cloud_files_pass_rays_own_schema(name: str) -> None:
    (config,) = documents(name)
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config | {"max_worker": 4}, schema)
    config["available_node_types"]["gpu"]["max_wokers"] = 2
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config, schema)


@pytest.mark.parametrize("name", CLOUDS)
def test_rays_launcher_takes_the_cloud_files(name: str) -> None:
    """With its defaults filled in, as `ray up` does before it asks the cloud."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    (config,) = documents(name)
    filled = prepare_config(config)
    validate_config(filled)
    types = filled["available_node_types"]
    assert types["head"]["resources"]["CPU"] == 0, "no hosts on the head"
    assert types["gpu"]["resources"]["GPU"] == 1
    assert (types["gpu"]["min_workers"], types["gpu"]["max_workers"]) == (0, 4)
    assert filled["max_workers"] >= types["gpu"]["max_workers"]


@pytest.mark.parametrize("name", CLOUDS)
def test_clouds_start_ray_with_tokens_and_a_shared_folder(name: str) -> None:
    (config,) = documents(name)
    head, worker = (
        next(line for line in config[key] if "ray start" in line)
        for key in ("head_start_ray_commands", "worker_start_ray_commands")
    )
    for line in (head, worker):
        assert shlex.split(line)[:3] == ["RAY_AUTH_MODE=token", "ray", "start"]
        known = ray_options("start")
        assert {w.split("=")[0] for w in shlex.split(line)[3:]} <= known
    assert config["file_mounts"] == {"/home/ray/.ray/auth_token": "~/.ray/auth_token"}
    assert any("/shared" in line for line in config["initialization_commands"])
    assert "--volume /shared:/shared" in config["docker"]["run_options"]


def ray_options(command: str) -> set[str]:
    """Return the options that a command of `ray` knows."""
    with warnings.catch_warnings():  # of libraries that Ray imports
        warnings.simplefilter("ignore")
        from ray.scripts.scripts import cli

    return {name for parameter in cli.commands[command].params for name in parameter.opts}


# Kubernetes ---------------------------------------------------------------------------------------

TEXT, COUNT, FLAG = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}


def fields(required: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


START = {"type": "object", "additionalProperties": TEXT}
POD = {"type": "object"}  # see `pods`
# The fields of ray.io/v1 that the manifests use, with the types that KubeRay 1.6 gives them; any
# other field is refused until someone has looked it up. Pods have Kubernetes' own schema.
CLUSTER_SPEC = fields(
    "headGroupSpec",
    rayVersion=TEXT,
    authOptions=fields(mode={"enum": ["disabled", "token"]}),
    enableInTreeAutoscaling=FLAG,
    autoscalerOptions=fields(idleTimeoutSeconds=COUNT),
    headGroupSpec=fields("template", rayStartParams=START, template=POD),
    workerGroupSpecs={
        "type": "array",
        "items": fields(
            "groupName template",
            groupName=TEXT,
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            rayStartParams=START,
            template=POD,
        ),
    },
)
JOB_SPEC = fields(
    "entrypoint rayClusterSpec",
    entrypoint=TEXT,
    runtimeEnvYAML=TEXT,
    backoffLimit=COUNT,
    shutdownAfterJobFinishes=FLAG,
    ttlSecondsAfterFinished=COUNT,
    rayClusterSpec=CLUSTER_SPEC,
)


def of_kuberay(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return fields(
        "apiVersion kind metadata spec",
        apiVersion={"const": "ray.io/v1"},
        kind={"const": kind},
        metadata=fields("name", name=TEXT),
        spec=spec,
    )


def cluster_spec() -> Any:
    return documents("raycluster")[1]["spec"]


def pods() -> dict[str, Any]:
    """Return the pod templates of the cluster, by group."""
    spec = cluster_spec()
    workers = {group["groupName"]: group["template"] for group in spec["workerGroupSpecs"]}
    return {"head": spec["headGroupSpec"]["template"]} | workers


@pytest.mark.parametrize(
    ("file", "kind", "spec"),
    [("raycluster", "RayCluster", CLUSTER_SPEC), ("rayjob", "RayJob", JOB_SPEC)],
)
def test_kuberay_files_have_kuberays_fields(file: str, kind: str, spec: dict[str, Any]) -> None:
    found = jsonschema.Draft202012Validator(of_kuberay(kind, spec))
    resource = documents(file)[-1]
    assert [error.message for error in found.iter_errors(resource)] == []
    resource["spec"]["headGroup"] = {}
    (error,) = found.iter_errors(resource)
    assert "'headGroup' was unexpected" in error.message


def test_the_volume_claim_has_kubernetes_fields() -> None:
    claim, _ = documents("raycluster")
    kubernetes_validate.validate(claim, KUBERNETES, strict=True)
    claim["spec"]["accessMode"] = "ReadWriteMany"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(claim, KUBERNETES, strict=True)


@pytest.mark.parametrize("group", ["head", "gpu"])
def test_pods_have_kubernetes_fields(group: str) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": group}} | pods()[group]
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)
    pod["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_a_rayjobs_cluster_is_the_raycluster() -> None:
    (job,) = documents("rayjob")
    assert job["spec"]["rayClusterSpec"] == cluster_spec()
    yaml.safe_load(job["spec"]["runtimeEnvYAML"])


def test_the_head_does_no_work_and_workers_come_and_go() -> None:
    spec = cluster_spec()
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert spec["enableInTreeAutoscaling"]
    (group,) = spec["workerGroupSpecs"]
    assert group["minReplicas"] <= group["replicas"] < group["maxReplicas"]
    assert spec["authOptions"] == {"mode": "token"}
    options = ray_options("start")
    for params in (spec["headGroupSpec"]["rayStartParams"], group["rayStartParams"]):
        assert {f"--{name}" for name in params} <= options


@pytest.mark.parametrize("group", ["head", "gpu"])
def test_pods_are_ready_when_ray_is_share_a_volume_and_are_not_root(group: str) -> None:
    spec = pods()[group]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["image"].rpartition("/")[2] == IMAGE
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (group == "gpu")
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    claims = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in spec["volumes"]}
    assert mounted == {"shared": "/shared"}
    assert claims == {"shared": documents("raycluster")[0]["metadata"]["name"]}
    for probe in ("readinessProbe", "livenessProbe"):
        compile(container[probe]["exec"]["command"][2], probe, "exec")


def test_the_rayjobs_command_is_one_that_raysim_takes() -> None:
    from methods import METHODS
    from raysim.config import load_config

    words = shlex.split(documents("rayjob")[0]["spec"]["entrypoint"])
    assert words[:3] == ["python", "-m", "raysim.run"]
    assert load_config(METHODS, overrides=words[3:]).output.dir == Path("/shared/runs")


# The image ----------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    text = (MANIFESTS / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def test_the_image_is_slim_small_in_steps_and_not_root() -> None:
    steps = instructions()
    kinds = [kind for kind, _ in steps]
    assert kinds[0] == "FROM"
    assert set(kinds) <= {"FROM", "ARG", "RUN", "COPY", "USER", "WORKDIR"}
    assert kinds.count("FROM") == 1
    assert kinds.count("RUN") <= 2
    assert dict(steps)["USER"] == "ray"
    assert not {"RUN", "COPY"} & set(kinds[kinds.index("USER") :])
    text = " ".join(text for _, text in steps)
    assert "latest" not in text
    assert "@sha256" not in text
    for command in re.findall(r"apt-get install.*?&&", text):
        assert "--no-install-recommends" in command
    assert "rm -rf /var/lib/apt/lists/*" in text
    assert all("--no-cache-dir" in c for c in re.findall(r"pip install.*", text))


def test_versions_are_those_of_the_project() -> None:
    base = re.fullmatch(r"python:(3\.\d+)-slim", instructions()[0][1])
    assert base is not None
    text = (ROOT / "pyproject.toml").read_text()
    asked = re.search(r'^requires-python = "(.+)"$', text, re.MULTILINE)
    assert asked is not None
    assert base.group(1) in SpecifierSet(asked.group(1))
    wanted = next(r for r in map(Requirement, requires("raysim") or []) if r.name == "ray")
    assert pinned_ray() in wanted.specifier
    assert cluster_spec()["rayVersion"] == pinned_ray()
    for name in CLOUDS:
        assert documents(name)[0]["docker"]["image"].rpartition("/")[2] == IMAGE
    assert f"-t {IMAGE}" in (MANIFESTS / "Dockerfile").read_text()


def test_the_image_gets_what_it_installs_and_nothing_else() -> None:
    kept = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    text = (ROOT / "pyproject.toml").read_text()
    rooms = set(re.findall(r'"(raysim|methods|cluster|tune_jobs)"', text))
    assert kept == rooms | {"pyproject.toml", "README.md", "LICENSE"}
    assert all((ROOT / name).exists() for name in kept)


# What is said about them ------------------------------------------------------------------------


def test_commands_about_clusters_name_files_and_settings_that_exist() -> None:
    from methods import METHODS
    from raysim.config import load_config

    texts = [p.read_text() for p in (ROOT / "cluster" / "README.md", *sorted(MANIFESTS.iterdir()))]
    lines = [line.strip().lstrip("#").strip() for text in texts for line in text.splitlines()]
    commands = [
        shlex.split(line, comments=True)
        for line in lines
        if line.startswith(("raysim submit", "sbatch", "kubectl apply", "ray up", "ray dashboard"))
    ]
    assert {words[0] for words in commands} == {"raysim", "sbatch", "kubectl", "ray"}
    for words in commands:
        files = [word for word in words if "/manifests/" in word]
        assert bool(files) != (words[0] == "raysim")
        assert all((ROOT / file).is_file() for file in files)
        load_config(METHODS, overrides=[word for word in words if "=" in word])


# SLURM --------------------------------------------------------------------------------------------

SLURM = MANIFESTS / "slurm.sh"


def test_the_slurm_script_parses() -> None:
    subprocess.run(["bash", "-n", str(SLURM)], check=True)
    assert os.access(SLURM, os.X_OK)


def test_shellcheck_finds_nothing_in_the_slurm_script() -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run(
        [str(shellcheck), "--severity=warning", str(SLURM)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_slurm_is_asked_for_time_to_save_and_a_second_chance() -> None:
    head = "\n".join(line for line in SLURM.read_text().splitlines() if line.startswith("#SBATCH"))
    for option in ("--requeue", "--signal=B:USR1@300", "--open-mode=append", "--nodes="):
        assert option in head


SRUN = """#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
exec "$@"
"""
SCONTROL = """#!/usr/bin/env bash
if [[ "$1" == show ]]; then printf 'one\\ntwo\\n'; else echo "$@" >> "$REQUEUED"; fi
"""


@pytest.fixture
def job() -> Iterator[int]:
    """The number of a SLURM job, whose nodes are cleared of Ray's logs at the end."""
    number = os.getpid()
    yield number
    shutil.rmtree(f"/tmp/raysim-{number}", ignore_errors=True)


def fake_slurm(folder: Path, job: int) -> dict[str, str]:
    """Return an environment whose SLURM has this machine as both of its nodes."""
    (folder / "bin").mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    path = os.pathsep.join(
        [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    return environment(
        PATH=path,
        PYTHONPATH=str(ROOT),
        REQUEUED=str(folder / "requeued"),
        SLURM_JOB_ID=str(job),
        SLURM_JOB_NODELIST="[one,two]",
        SLURM_CPUS_PER_TASK="1",
        SLURM_SUBMIT_DIR=str(folder),
    )


@pytest.mark.slow
@pytest.mark.ray
def test_a_slurm_job_saves_is_queued_again_and_goes_on(tmp_path: Path, job: int) -> None:
    """With `srun` and `scontrol` that run everything here: two Ray nodes on one machine."""
    words = [*CLI, "rounds=12", "execution.hosts=2"]
    command = [str(SLURM), *words]
    env = fake_slurm(tmp_path, job)
    runs = tmp_path / "runs" / f"slurm-{job}"
    log = tmp_path / "log"
    with log.open("w") as out:
        first = subprocess.Popen(command, env=env, stdout=out, stderr=out, cwd=tmp_path)
        try:
            deadline = time.monotonic() + 200
            while "round  3/12" not in log.read_text():
                assert first.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            first.send_signal(signal.SIGUSR1)
            assert first.wait(180) == 143, log.read_text()
        finally:
            first.terminate()
            first.wait(180)
    assert (tmp_path / "requeued").read_text() == f"requeue {job}\n"
    assert "rounds are saved" in log.read_text()
    again = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=240, cwd=tmp_path, check=False
    )
    assert again.returncode == 0, again.stderr
    assert "round  1/12" not in again.stdout
    assert "2 hosts on Ray cluster" in again.stdout
    whole = run_command(*CLI, "rounds=12", INPROCESS, f"output.dir={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole.stderr
    assert bits_of(only_run(runs)) == bits_of(only_run(tmp_path / "whole"))
    left = subprocess.run(["pgrep", "-f", f"raysim-{job}"], capture_output=True, text=True)
    assert left.stdout == "", "the job's own Ray is gone"
