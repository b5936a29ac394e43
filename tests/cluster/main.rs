//! The whole loop on a real control plane: traffic, queue, scrape, decision, KEDA, the HPA, the
//! scheduler, Ready; nothing is stood in for but the kubelets and the GPUs.
//!
//! Must not run by itself: `tests/cluster/run.sh` says where the programs are. One cluster serves all
//! scenarios; each has a namespace, a scaler and a gateway of its own, and those that break a part of
//! the cluster run with none but each other.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests are not inside of test functions, where these are allowed"
)]

mod api_front;
mod asker;
mod engines;
mod fleet;
mod gateway;
mod kubectl;
mod load;
mod names;
mod objects;
mod operator;
mod pair;
mod plane;
#[path = "../support/ports.rs"]
mod ports;
mod process;
mod prometheus;
mod relay;
mod rooms;
mod scaler;
mod scenarios;
mod scene;
mod timeline;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

use plane::Plane;
use rooms::{Room, Rooms};
use scenarios::{SCENARIOS, Scenario};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each waits much more than it computes, but the control plane is shared.
    arguments.test_threads.get_or_insert(6);
    let selected = |name: &str, is_long: bool| {
        let matches = |filter: &String| {
            if arguments.exact { name == filter.as_str() } else { name.contains(filter.as_str()) }
        };
        let is_due = arguments.include_ignored || arguments.ignored == is_long;
        is_due
            && arguments.filter.as_ref().is_none_or(matches)
            && !arguments.skip.iter().any(matches)
    };
    let runs = SCENARIOS.iter().any(|scenario| selected(scenario.name, scenario.is_long));
    let plane = if runs && !arguments.list {
        process::end_all_on_interrupt();
        match Plane::start() {
            Ok(plane) => Some(Arc::new(plane)),
            Err(missing) => {
                println!("skipped: the cluster's tests: {missing}");
                return ExitCode::SUCCESS;
            }
        }
    } else {
        None
    };
    let rooms = Arc::new(Rooms::default());
    let mut trials: Vec<Trial> =
        SCENARIOS.iter().map(|scenario| trial(scenario, plane.clone(), &rooms)).collect();
    trials.push(fleet::trial());
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Those that break a part of the cluster have it to themselves, one fault after the other.
fn trial(scenario: &'static Scenario, plane: Option<Arc<Plane>>, rooms: &Arc<Rooms>) -> Trial {
    let rooms = Arc::clone(rooms);
    Trial::test(scenario.name, move || {
        let plane = plane.ok_or_else(|| Failed::from("no cluster was started"))?;
        let room = if scenario.breaks { Room::Broken } else { Room::Whole };
        let _guest = rooms.enter(room);
        scene::play(scenario, &plane);
        Ok(())
    })
    .with_ignored_flag(scenario.is_long)
}
