#!/usr/bin/env bash
# Train with OpenRLHF's own code, without a GPU: run.sh FOLDER WHEEL [options of OpenRLHF]. README.md says more.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1 wheel=$2
shift 2
python=${PYTHON:-python3}
mkdir -p "$folder"
"$python" - "$wheel" "$folder/wheel" <<'PY'
import pathlib, sys, zipfile
wheel, into = sys.argv[1:]
for name in zipfile.ZipFile(wheel).namelist():
    place = pathlib.Path(into, name.partition(".data/purelib/")[2] or name)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(zipfile.ZipFile(wheel).read(name))
PY
PYTHONPATH=$here/shim:$folder/wheel${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH RAY_AUTH_MODE=disabled
[ -d "$folder/model" ] || "$python" "$here/make_assets.py" "$folder"
# shellcheck disable=SC2086 # the prefix is several words
exec ${PREFIX:-} "$python" -W ignore "$here/start.py" "$folder" "$@"
