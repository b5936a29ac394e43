#!/usr/bin/env bash
# Mutation testing of the decision core with the core's own tests.
#
#   tests/mutants.sh 3/64            the fourth of 64 shards
#   tests/mutants.sh 0/2 ghost.rs    the first half of one file's mutants
#   tests/mutants.sh 0/1 --list      what would be mutated; further arguments go to cargo-mutants
#   TIMEOUT_S=300 JOBS=2 tests/mutants.sh 3/64
#
# The core is pure and stands on nothing else of the crate, so it is copied into a crate of its own.
# Runs at the lowest priority. Needs cargo-mutants (cargo install cargo-mutants). Results:
# target/mutants/[FILE/]N-OF/mutants.out; mutants that survive and change no answer: tests/mutants.md.
#
# Not mutated: the tests, and the texts for people (reason/text.rs).
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ! ${1:-} =~ ^[0-9]+/[0-9]+$ ]]; then
  sed -n '2,13s/^# \{0,1\}//p' "$0" >&2
  exit 64
fi
SHARD=$1; shift
FILE=
if [[ ${1:--} != -* ]]; then FILE=$1; shift; fi
NAME=${FILE:+${FILE%.rs}/}${SHARD/\//-}
OUT=$PWD/target/mutants/$NAME
rm -rf "$OUT"; mkdir -p "$OUT/core/src"
cp -r src/decision src/decision.rs loadgen/src/duration.rs "$OUT/core/src/"
cp Cargo.lock "$OUT/core/"
dependency() { grep -E "^$1 = " Cargo.toml | head -1; }
{
  printf '[package]\nname = "core"\nversion = "0.0.0"\nedition = "2024"\n\n[workspace]\n\n'
  printf '[dependencies]\n'; for name in serde thiserror; do dependency $name; done
  printf '\n[dev-dependencies]\n'; for name in proptest serde_json; do dependency $name; done
  printf '\n[profile.dev]\nopt-level = 1\ndebug = false\n\n[profile.dev.package."*"]\nopt-level = 3\n'
} >"$OUT/core/Cargo.toml"
printf '//! The decision core, alone.\n\npub mod decision;\npub mod duration;\n' >"$OUT/core/src/lib.rs"
export GHOSTSCALER_FIXTURES=${GHOSTSCALER_FIXTURES:-$PWD/../shared/fixtures}
exec nice -n 19 cargo mutants --dir "$OUT/core" --output "$OUT" --shard "$SHARD" \
  --sharding round-robin --jobs "${JOBS:-1}" --timeout "${TIMEOUT_S:-120}" --build-timeout 300 \
  --file "src/decision/${FILE:-**}" --exclude 'src/decision/reason/text.rs' --exclude '**/tests/**' \
  --colors never "$@" -- --lib
