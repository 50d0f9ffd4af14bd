"""The plugin as a user has it: the page docs/testing.md is run as it stands, in a folder of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "testing.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
FILES = {match[1]: block for block in BLOCKS if (match := re.match(r"# (\w+\.py)\n", block))}
TABLE = re.findall(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]


def run_pytest(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder with our plugin and no other."""
    command = [sys.executable, "-m", "pytest", "-p", "settled.testing.plugin", "-p", "no:cacheprovider", *options]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SETTLED_"))}
    given = {**clean, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=300)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_pages_tests_pass_and_leave_no_database(folder: Path, server_url: str) -> None:
    """All but the long ones."""
    before = databases(server_url)
    done = run_pytest(folder, "-k", "not killed_anywhere", SETTLED_DATABASE_URL=server_url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 2 deselected" in done.stdout
    assert not {name for name in databases(server_url) - before if name.startswith("settled_test_")}


@pytest.mark.deep
def test_the_page_does_what_it_says(folder: Path, server_url: str) -> None:
    """Its tests pass, the table is the one that is shown, and no database is left behind."""
    before = databases(server_url)
    done = run_pytest(folder, "-s", SETTLED_DATABASE_URL=server_url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    assert TABLE in done.stdout
    assert not {name for name in databases(server_url) - before if name.startswith("settled_test_")}


@pytest.mark.deep
def test_a_fault_in_the_tool_fails_the_users_test(folder: Path, server_url: str) -> None:
    """A body that sends again by itself, in the page's own tool: the table says where."""
    good = (folder / "shop.py").read_text()
    bad = good.replace('"/refunds", json=', '"/refunds", headers={"Idempotency-Key": os.urandom(8).hex()}, json=')
    assert bad != good
    (folder / "shop.py").write_text(bad)
    done = run_pytest(folder, "test_shop.py::test_killed_anywhere", SETTLED_DATABASE_URL=server_url)
    assert done.returncode == 1, done.stdout + done.stderr
    wrong = [line for line in done.stdout.splitlines() if line.endswith("2 effects instead of 1")]
    assert any("after POST /refunds is done" in line for line in wrong)


@pytest.mark.deep
def test_without_a_database_a_private_one_is_started(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """And neither it nor anything in the user's own home is left."""
    home = tmp_path_factory.mktemp("home")
    done = run_pytest(folder, "test_faults.py", HOME=str(home), SETTLED_HOME=str(home / "settled"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(home.iterdir()) == []


def test_the_plugin_imports_nothing_of_weight() -> None:
    """pytest imports it in every run of whoever has the library, also where nothing of it is used."""
    heavy = "{'langgraph', 'langchain_core', 'psycopg', 'pydantic', 'httpx2'}"
    code = f"import sys, settled.testing, settled.testing.plugin; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"


def test_every_public_name_is_there() -> None:
    """What `settled.testing` promises can be imported, and nothing else is promised."""
    import settled.testing as kit

    assert sorted(kit.__all__) == sorted(kit._MODULE_OF)
    assert all(getattr(kit, name).__class__ for name in kit.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = kit.Nothing


def databases(server_url: str) -> set[str]:
    with psycopg.connect(server_url) as connection:
        return {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
