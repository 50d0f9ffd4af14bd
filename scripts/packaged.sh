#!/bin/sh
# Build the sdist and the wheel, install the wheel in a fresh environment without any extra, and use it: packaged.sh PYTHON
# What a user gets has the SQL, the templates and the types, and runs without what only the tests need.
set -eu

python=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$python" -m venv "$folder/build"
"$folder/build/bin/python" -m pip install -qq build
"$folder/build/bin/python" -m build --outdir "$folder/dist" . >/dev/null

"$python" -m venv "$folder/clean"
"$folder/clean/bin/python" -m pip install -qq --constraint constraints.txt "$folder"/dist/*.whl
cd "$folder"
export SETTLED_HOME="$folder/home"
clean/bin/settled --version
clean/bin/settled db migrate >/dev/null
clean/bin/settled actions list
clean/bin/python - <<'END'
from importlib.resources import files

from settled import Ledger, action, perform


@action(risk="non_idempotent_write", remote="opaque", identity=("order",))
def refund(order: str) -> dict[str, str]:
    """Refund an order."""
    return {"receipt": "RF-1"}


with Ledger.connect() as ledger:
    assert perform(refund, ["A-1"], ledger=ledger, thread_id="t").receipt == "RF-1"
held = files("settled")
for name in ("py.typed", "runtime/server/templates", "runtime/server/static", "runtime/chat/static", "state/sql/work.sql"):
    assert held.joinpath(name).is_file() or held.joinpath(name).is_dir(), f"the wheel lacks {name}"
print("the wheel is whole")
END
clean/bin/settled db stop
