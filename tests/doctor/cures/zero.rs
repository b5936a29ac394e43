//! Zero, waking, cool-downs and fallbacks.

use serde_json::json;

use super::{Case, pasted};
use crate::doctor::world::World;

/// A world that may sleep, but for one key.
fn asleep(world: &World, key: &str, value: serde_json::Value) {
    world.put_to_sleep();
    world.object(|it| it["spec"][key] = value);
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        // With a wake source to name, and without one.
        pasted("no-wake-source", |world| {
            world.put_to_sleep();
            world.object(|it| {
                let metadata = &mut it["spec"]["triggers"][0]["metadata"];
                metadata.as_object_mut().unwrap().remove("wakeSource");
            });
        }),
        pasted("no-wake-source", |world| {
            world.object(|it| it["spec"]["minReplicaCount"] = json!(0));
        }),
        pasted("unknown-wake-source", |world| {
            world.put_to_sleep();
            world.metadata("wakeSource", "gatway");
        }),
        pasted("polled-wake", |world| {
            world.put_to_sleep();
            world.object(|it| it["spec"]["triggers"][0]["type"] = json!("external"));
        }),
        pasted("short-cooldown", |world| asleep(world, "cooldownPeriod", json!(300))),
        pasted("idle-cooldown", |world| {
            world.object(|it| it["spec"]["cooldownPeriod"] = json!(60));
        }),
        pasted("idle-count-without-effect", |world| {
            world.object(|it| it["spec"]["idleReplicaCount"] = json!(0));
        }),
        pasted("no-initial-cooldown", |world| asleep(world, "initialCooldownPeriod", json!(0))),
        pasted("cold-start-above-slo", |world| {
            world.put_to_sleep();
            world.metadata("sloTtft", "2s");
        }),
        pasted("fallback-of-zero", |world| fall_back(world, 0)),
        pasted("fallback-below-usual", |world| fall_back(world, 2)),
        pasted("fallback-never-fires", |world| {
            fall_back(world, 3);
            world.metadata("mode", "shadow");
        }),
    ]
}

fn fall_back(world: &World, replicas: u32) {
    let fallback = json!({"failureThreshold": 3, "replicas": replicas});
    world.object(|it| it["spec"]["fallback"] = fallback);
}
