#!/usr/bin/env bash
# Passes all the tests on a fresh machine: installs what they need, then runs them.
set -euo pipefail
cd "$(dirname "$0")/.."
bash tests/setup.sh
exec cargo test --workspace --locked "$@"
