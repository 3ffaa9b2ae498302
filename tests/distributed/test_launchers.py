"""The commands of docs/distributed.md that start workers, on this machine: torchrun on two hosts, SLURM, Ray Train.

SLURM's programs are replaced by short scripts, which start the tasks as srun does.
"""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fireset import ShiftedReLUNetwork
from fireset.distributed.process_group import TorchProcessGroup, joined_group
from support.launching import ENVIRONMENT

pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WORDS = "--target y --width 200 --dtype float64 --tol 0 --holdout 0 --bias 1 --max-iter 3 --quiet --json"
TRAIN = WORDS.split()
PROGRAMS = {
    "scontrol": '[ "$1 $2" = "show hostnames" ] || exit 1\necho localhost; echo second-host',
    "srun": """
[ "$1" = --kill-on-bad-exit=1 ] || exit 1
shift
for ((k = 0; k < SLURM_NTASKS; k++)); do
    SLURM_PROCID=$k SLURM_LOCALID=$((k % 2)) "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || exit 1; done
""",
    "fireset": f'exec {sys.executable} -m fireset "$@"',
}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def write_table(folder: Path) -> None:
    X = np.random.default_rng(0).standard_normal((60, 3))
    pl.DataFrame(X, schema=["a", "b", "c"]).with_columns(y=pl.Series(np.sin(X[:, 0]))).write_csv(folder / "table.csv")


def alone(folder: Path) -> np.ndarray:
    """Return the weights that one process finds."""
    command = [sys.executable, "-m", "fireset", "train", "table.csv", *TRAIN, "--out", "alone.safetensors"]
    subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, check=True, timeout=200)
    return ShiftedReLUNetwork.load(folder / "alone.safetensors").weights


def test_an_existing_group_is_used_and_not_left(monkeypatch):
    """Ray Train sets torchrun's variables and initializes the group."""
    import torch.distributed as dist
    from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with joined_group() as group:
            assert isinstance(group, TorchProcessGroup)
            assert group.size == 1
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_slurm_job(tmp_path):
    write_table(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    environment = {
        **ENVIRONMENT,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": str(free_port() - 20000),  # so that the port of the script is free
        "SLURM_JOB_NODELIST": "nodes[1-2]",
        "SLURM_NTASKS": "2",
        "SLURM_CPUS_PER_TASK": "1",
    }
    if not 0 <= int(environment["SLURM_JOB_ID"]) < 10_000:
        environment["SLURM_JOB_ID"] = "7613"
    command = [EXAMPLES / "slurm_job.sh", "table.csv", *TRAIN, "--grid", "1x2", "--out", "a model.safetensors"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["workers"], summary["grid"]) == (2, "1x2")
    found = ShiftedReLUNetwork.load(tmp_path / "a model.safetensors").weights
    np.testing.assert_allclose(found, alone(tmp_path), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_slurm_job_ends_with_an_error_of_a_worker(tmp_path):
    write_table(tmp_path)
    (tmp_path / "srun").write_text('#!/bin/bash\nSLURM_PROCID=0 SLURM_LOCALID=0 "${@:2}"\n')
    (tmp_path / "srun").chmod(0o755)
    for name in ("scontrol", "fireset"):
        (tmp_path / name).write_text(f"#!/bin/bash\n{PROGRAMS[name]}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    slurm = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n", "SLURM_NTASKS": "1"}
    command = [EXAMPLES / "slurm_job.sh", "table.csv", "--target", "no such column"]
    environment = {**ENVIRONMENT, **slurm, "PATH": path}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 2
    assert "no such column" in done.stderr


@pytest.mark.slow
def test_torchrun_on_two_hosts(tmp_path):
    write_table(tmp_path)
    words = f"--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint localhost:{free_port()} --rdzv-id 1"
    command = [sys.executable, "-m", "torch.distributed.run", *words.split(), "-m", "fireset", "train", "table.csv"]
    hosts = [
        subprocess.Popen(
            [*command, *TRAIN, "--out", "model.safetensors"],
            cwd=tmp_path,
            env={**ENVIRONMENT, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    told = [host.communicate(timeout=200) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], told
    found = ShiftedReLUNetwork.load(tmp_path / "model.safetensors").weights
    np.testing.assert_allclose(found, alone(tmp_path), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_ray_train(tmp_path):
    pytest.importorskip("ray")
    command = [sys.executable, EXAMPLES / "ray_train.py", "--rows", "300", "--width", "200"]
    done = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    (difference,) = re.findall(r"largest difference from one process: (\S+)", done.stdout)
    assert float(difference) < 1e-2
