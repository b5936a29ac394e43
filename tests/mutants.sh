#!/usr/bin/env bash
# Mutation testing of the decision core with the core's own tests: tests/mutants.sh [SHARD/OF]
#
# The core is pure and stands on nothing else of the crate, so it is copied into a crate of its own,
# which builds in seconds. How long a shard takes has not been measured yet. Needs cargo-mutants
# (cargo install cargo-mutants). Results: target/mutants/SHARD-OF/mutants.out.
set -euo pipefail
cd "$(dirname "$0")/.."
SHARD=${1:-0/8}
OUT=target/mutants/${SHARD/\//-}
FIXTURES=${GHOSTSCALER_FIXTURES:-$PWD/../shared/fixtures}
rm -rf "$OUT"; mkdir -p "$OUT/core/src"
cp -r src/decision src/decision.rs loadgen/src/duration.rs "$OUT/core/src/"
cp Cargo.lock "$OUT/core/"
dependency() { grep -E "^$1 = " Cargo.toml | head -1; }
{
  printf '[package]\nname = "core"\nversion = "0.0.0"\nedition = "2024"\n\n[workspace]\n\n'
  printf '[dependencies]\n'; for name in serde thiserror; do dependency $name; done
  printf '\n[dev-dependencies]\n'; for name in proptest serde_json; do dependency $name; done
  printf '\n[profile.dev]\nopt-level = 1\ndebug = false\n'
} >"$OUT/core/Cargo.toml"
printf '//! The decision core, alone.\n\npub mod decision;\npub mod duration;\n' >"$OUT/core/src/lib.rs"
GHOSTSCALER_FIXTURES=$FIXTURES exec cargo mutants --dir "$OUT/core" --output "$OUT" --shard "$SHARD" --jobs 2 --timeout 120
