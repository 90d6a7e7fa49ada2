#!/usr/bin/env bash
# Train a tiny model for two steps with verl's own trainer, on a CPU, with nothing from a network.
#   examples/verl_cpu/run.sh DIRECTORY                     inputs, metrics and checkpoint go below DIRECTORY
#   examples/verl_cpu/run.sh DIRECTORY trainer.save_freq=1 any further setting of verl
# PYTHON names the interpreter; it needs verl 0.9, as `scripts/environment verl` installs it.
set -euo pipefail

[ $# -gt 0 ] || { echo "usage: $0 DIRECTORY [SETTING=VALUE ...]" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)
shift
python=${PYTHON:-python}

export PYTHONPATH=${here%/*}${PYTHONPATH:+:$PYTHONPATH}
export VERL_PLATFORM=cpu VERL_ENGINE_DEVICE=cuda VERL_USE_EXTERNAL_MODULES=verl_cpu.device${VERL_USE_EXTERNAL_MODULES:+,$VERL_USE_EXTERNAL_MODULES} # every process of verl imports them
export VERL_FILE_LOGGER_PATH=$work/metrics.jsonl
export HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0 GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo}
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

[ -d "$work/inputs" ] || "$python" -m verl_cpu.inputs "$work/inputs"
exec "$python" -m verl.trainer.main_ppo --config-dir "$here" --config-name tiny work="$work" "$@"
