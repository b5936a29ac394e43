//! The memory of a workload: small, versioned, exact in JSON.

use super::fleet::{Fleet, REQUEST_S};
use crate::decision::State;

#[test]
fn the_state_of_one_replica_is_small() {
    let mut fleet = Fleet::new(1).learned();
    fleet.spec.max = 1;
    for step in 0..200_u32 {
        fleet.run(60.0, f64::from(step % 7) * 0.1 / REQUEST_S);
    }
    // With its lock and its counts it fits the allocator's class of 1,792 bytes; the next has 2,048.
    assert!(size_of::<State>() <= 1_792 - 24, "{}", size_of::<State>());
    let text = serde_json::to_string(&fleet.state).unwrap();
    assert!(text.len() < 8_192, "{}", text.len());
    assert_eq!(serde_json::from_str::<State>(&text).unwrap(), fleet.state);
}

#[test]
fn a_state_of_another_version_is_a_new_start() {
    let mut fleet = Fleet::new(1);
    fleet.run(60.0, 1.0);
    let text = serde_json::to_string(&fleet.state).unwrap();
    let form = |version: u32| format!("\"version\":{version}");
    let other = text.replace(&form(State::VERSION), &form(State::VERSION + 1));
    assert_ne!(text, other);
    let state: State = serde_json::from_str(&other).unwrap();
    assert_eq!(state.restored(), State::default());
    let state: State = serde_json::from_str(&text).unwrap();
    assert_eq!(state.want(), fleet.state.want());
}

#[test]
fn fields_that_a_saved_state_lacks_are_new() {
    let state: State = serde_json::from_str("{}").unwrap();
    assert_eq!(state, State::default());
}
