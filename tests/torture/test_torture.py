"""scripts/torture, short and whole; both run at night, with `pytest -m slow`."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.command import ROOT

SHORT = {"commands": 8, "kills": 1, "corruptions": 6, "races": 1, "disks": 2, "sent": 6}
SHORT |= {"folders": 6, "spellings": 30, "searches": 8}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, /proc and limits of Linux")
@pytest.mark.slow
@pytest.mark.parametrize("numbers", [SHORT, {}], ids=["short", "whole"])
def test_torture(numbers: dict[str, int], tmp_path: Path) -> None:
    words = [word for kind, number in numbers.items() for word in (f"--{kind}", str(number))]
    jobs = ["--jobs", "1"] if numbers else []
    command = [sys.executable, str(ROOT / "scripts" / "torture"), "--seed", "suite", *jobs, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
