"""A Slurm for tests, on this machine: sbatch, srun, sacct and scontrol requeue, by the name that this program is called by.

The folder SLURM_STATE has a file for each job, with its state.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

STATE = Path(os.environ.get("SLURM_STATE", "."))


def install(folder: Path) -> dict[str, str]:
    """The environment in which these programs are found."""
    folder.mkdir()
    for name in ("sbatch", "srun", "sacct", "scontrol", "supervise"):
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        (folder / name).chmod(0o755)
    return {"SLURM_STATE": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}


def sbatch(script: str) -> None:
    """Queues the jobs of an array, or one; as many run at once as the array says."""
    number = 1 + len([*STATE.glob("*.asked")])
    text = Path(script).read_text(encoding="utf-8")
    (STATE / f"{number}.asked").write_text(text, encoding="utf-8")
    array = re.search(r"--array=0-(\d+)%(\d+)", text)
    last, most = (int(array[1]), int(array[2])) if array else (0, 1)
    jobs = [f"{number}_{index}" if array else str(number) for index in range(last + 1)]
    for job in jobs:
        (STATE / f"{job}.job").write_text("PENDING", encoding="utf-8")
    for lane in range(min(most, len(jobs))):
        command = ["supervise", str(number), os.getcwd(), *jobs[lane::most]]
        away = subprocess.DEVNULL
        # Elsewhere: tests that kill all that runs in a folder do not kill Slurm
        subprocess.Popen(command, cwd=STATE, start_new_session=True, stdin=away, stdout=away, stderr=away)
    print(f"Submitted batch job {number}")


def supervise(number: str, cwd: str, *jobs: str) -> None:
    """Does jobs one after another in a folder, each again as long as it asks for that."""
    for job in jobs:
        index = job.partition("_")[2]
        array = {"SLURM_ARRAY_JOB_ID": number, "SLURM_ARRAY_TASK_ID": index} if index else {}
        env = {**os.environ, "SLURM_JOB_ID": job, **array}
        state = STATE / f"{job}.job"
        again = True
        while again:
            state.write_text("RUNNING", encoding="utf-8")
            script = ["bash", str(STATE / f"{number}.asked")]
            code = subprocess.run(script, cwd=cwd, env=env, stdin=subprocess.DEVNULL).returncode
            again = state.read_text(encoding="utf-8") == "REQUEUED"
        state.write_text(f"FAILED {code}" if code else "COMPLETED", encoding="utf-8")


def srun(*arguments: str) -> None:
    """The command behind the options, whose output goes where they say."""
    output = arguments[arguments.index("--output") + 1].replace("%t", "0").replace("%j", os.environ["SLURM_JOB_ID"])
    output = output.replace("%A_%a", os.environ["SLURM_JOB_ID"])
    start = next(index for index, word in enumerate(arguments) if "python" in word)
    with open(output, "a", encoding="utf-8") as file:
        sys.exit(subprocess.run(arguments[start:], stdout=file, stderr=file).returncode)


def sacct(*arguments: str) -> None:
    print("JobID|State|NodeList")
    for state in STATE.glob("*.job"):
        print(f"{state.stem}|{state.read_text(encoding='utf-8')}|here")


def scontrol(what: str, job: str) -> None:
    assert what == "requeue"
    (STATE / f"{job}.job").write_text("REQUEUED", encoding="utf-8")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
