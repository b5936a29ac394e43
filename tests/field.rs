//! What went wrong for people who scale GPU inference: each reported case under its own id.
//!
//! Must not bend an expectation to what the scaler does: a case that fails is a fault of the scaler,
//! or stands against the design, and then its file says so.
//!
//! The cases are those of themes A (flapping, hysteresis, HPA arithmetic), B (missing, stale and
//! wrong metrics), C (scale to zero and cold start), D (KEDA and external scalers), F (what to
//! scale on), G (safe scale-down, readiness, nodes), H (capacity that lags, quota), I (several pods or
//! models), J (rollouts, ownership) and K (security and tenancy) of a survey of public reports. Where
//! they stand:
//!
//! - `tests/traces/`: told as data, one file a case (`found-…`: faults that were found here), replayed
//!   through trigger metadata, freshness, observation and decision (`field/trace.rs` has the form).
//! - `field/wire/`: about the wire, against a whole scaler on real sockets.
//! - [`suite::ELSEWHERE`]: tested beside the part that they are about; so are second halves
//!   ([`suite::HALVES`]).
//! - [`suite::WAITING`]: not to be decided yet; shown as ignored, with what they wait for.
//!
//! Of F39, the loss of one of two scalers is `pair_leader_killed` of `tests/cluster`; of F110, what a server
//! that demands certificates does is `f13_…` of `tests/grpc/operations.rs` and `pair_tls`; of F43, a whole
//! operator that comes back is `pair_herd`.
//!
//! Of some a second half waits as well:
//!
//! | id | half | waits for |
//! |---|---|---|
//! | F03 | `simulate` prints the sum of two dampers, as `doctor` does | a model of the user's HPA in `simulate` |
//! | F38 | a report of ghosts that says "asleep, memory freed" of a sleeper | `fleet` |
//! | F49 | with the behaviour that `doctor` advises the count stays | KEDA and a second trigger in `tests/cluster` |
//! | F62 | power near idle as further evidence, a class of ghost of its own | `fleet` |

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are not inside of test functions, where this is allowed"
)]

#[path = "field/suite.rs"]
mod suite;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    libtest_mimic::run(&Arguments::from_args(), suite::trials()).exit_code()
}
