"""`make PYTHON=...` uses that interpreter or says why not; it never carries on with another one."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_python_that_does_not_run_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    """Also where an environment is there already."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").symlink_to(Path(os.__file__).parents[2] / "bin/python3")
    command = ["sh", "scripts/venv.sh", str(venv), "dev"]
    environment = {**os.environ, "PYTHON": str(tmp_path / "python9")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"PYTHON={tmp_path / 'python9'} does not run, or is older than Python 3.11.\n"
    assert [entry.name for entry in venv.rglob("*")] == ["bin", "python"]


def test_make_looks_again_where_the_version_differs(tmp_path: Path) -> None:
    """A finished environment is brought up to date when another version is asked for, and left alone otherwise."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    for folder, version in ((venv / "bin", "3.11"), (tmp_path, "3.11")):
        (folder / "python").write_text(f"#!/bin/sh\necho {version}\n")
        (folder / "python").chmod(0o755)
    for stamp in (".demo", ".dev"):
        (venv / stamp).touch()
        os.utime(venv / stamp, (2**32, 2**32))  # newer than everything it depends on
    assert "venv.sh" not in planned(venv, tmp_path / "python")
    (tmp_path / "python").write_text("#!/bin/sh\necho 3.13\n")
    assert "venv.sh" in planned(venv, tmp_path / "python")


def planned(venv: Path, python: Path) -> str:
    command = ["make", "-n", "check", f"VENV={venv}", f"PYTHON={python}"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
