#!/usr/bin/env bash
# The cluster's tests: builds what they run on, then runs them.
#
#   tests/cluster/run.sh [NAME] [--list]     all, or those whose names contain NAME
#   tests/cluster/run.sh [NAME] --ignored    the long ones: side_by_side, as_simulated, fleet
#
# Programs are taken from $GHOSTSCALER_CLUSTER_BIN, else from the PATH, else built by Go (build.sh): a
# quarter of an hour on two cores the first time, nothing after that.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

if [ -z "${GHOSTSCALER_CLUSTER_BIN:-}" ]; then
    GHOSTSCALER_CLUSTER_BIN=$("$here/build.sh") || { [ $? = 3 ] && exit 0 || exit 1; }
    export GHOSTSCALER_CLUSTER_BIN
fi

cd "$here/../.."
cargo build --locked --workspace --bins
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if cargo test --locked --test cluster -- "$@" | tee "$log"; then
    exit 0
fi
# The loop runs in real time: a machine that stood still for some seconds is no fault of it. What
# fails twice is one.
failed=$(sed -nE 's/^test ([a-z0-9_]+) +\.\.\. FAILED$/\1/p' "$log")
[ -n "$failed" ] || exit 1
for name in $failed; do
    echo "== once more: $name"
    cargo test --locked --test cluster -- --exact --include-ignored "$name"
done
