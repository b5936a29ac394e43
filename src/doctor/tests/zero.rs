//! Zero, waking, cool-downs and fallbacks.

use serde_json::json;

use super::sound::{put, sound, with, with_target};
use super::{in_order, only, patched, says};
use crate::doctor::Facts;

const METADATA: &str = "/spec/triggers/0/metadata";

fn awake(mut facts: Facts) -> Facts {
    put(&mut facts.object, "/spec/minReplicaCount", json!(1));
    facts
}

#[test]
fn f25_zero_without_a_wake_source_is_told_and_the_configured_one_cures_it() {
    let broken = with(&format!("{METADATA}/wakeSource"), json!(null));
    let finding = patched("no-wake-source", &broken);
    assert!(finding.fix.patch.unwrap().command().contains("value: gateway"));
}

#[test]
fn where_no_wake_source_is_configured_one_replica_is_kept() {
    let mut broken = with(&format!("{METADATA}/wakeSource"), json!(null));
    broken.configuration = Ok(crate::config::Config::default().into());
    let finding = patched("no-wake-source", &broken);
    assert!(finding.fix.patch.unwrap().command().contains("path: /spec/minReplicaCount"));
    // Who never sleeps needs none, nor who takes it from the environment.
    let mut never = broken.clone();
    put(&mut never.object, &format!("{METADATA}/zeroAfter"), json!("never"));
    in_order(&never);
    in_order(&awake(broken));
}

#[test]
fn f25_triggers_that_read_what_is_gone_at_zero_never_wake() {
    let gone = json!([{"type": "prometheus", "metadata":
        {"query": "sum(vllm:num_requests_waiting{namespace=\"team-a\"})"}}]);
    let finding = only("no-wake-source", &with("/spec/triggers", gone));
    says(&finding, &["only a running replica"]);
    let gateway = json!([{"type": "prometheus", "metadata": {"query": "sum(gateway_queue)"}}]);
    in_order(&with("/spec/triggers", gateway));
}

#[test]
fn a_wake_source_that_is_not_configured_is_told_with_the_nearest() {
    let finding =
        patched("unknown-wake-source", &with(&format!("{METADATA}/wakeSource"), json!("gatway")));
    says(&finding, &["gatway"]);
    assert!(finding.fix.text.contains("\"gateway\""));
}

#[test]
fn a_trigger_that_only_polls_wakes_late() {
    let finding = patched("polled-wake", &with("/spec/triggers/0/type", json!("external")));
    says(&finding, &["pollingInterval is 30 s"]);
    in_order(&awake(with("/spec/triggers/0/type", json!("external"))));
}

#[test]
fn a_cool_down_of_zero_or_a_short_one_is_told() {
    // KEDA's own default, 300 s, is too short as well.
    for (given, seconds) in [(json!(0), 0), (json!(20), 20), (json!(599), 599), (json!(null), 300)]
    {
        let finding = patched("short-cooldown", &with("/spec/cooldownPeriod", given));
        says(&finding, &[&format!("cooldownPeriod is {seconds} s")]);
    }
    in_order(&with("/spec/cooldownPeriod", json!(600)));
    in_order(&with("/spec/cooldownPeriod", json!(900)));
}

#[test]
fn f32_a_cool_down_that_has_no_effect_is_told() {
    let finding = patched("idle-cooldown", &awake(with("/spec/cooldownPeriod", json!(60))));
    says(&finding, &["cooldownPeriod is 60 s", "minReplicaCount 1", "no effect"]);
    assert!(finding.fix.text.contains("ghostHold"));
    in_order(&awake(sound()));
}

#[test]
fn an_idle_count_that_has_no_effect_is_told() {
    let broken = awake(with("/spec/idleReplicaCount", json!(0)));
    let finding = patched("idle-count-without-effect", &broken);
    says(&finding, &["idleReplicaCount is 0 with minReplicaCount 1", "no effect"]);
    assert!(finding.fix.text.contains("minReplicaCount 0"));
}

#[test]
fn a_running_target_without_an_initial_cool_down_is_told() {
    let broken = with("/spec/initialCooldownPeriod", json!(null));
    let finding = patched("no-initial-cooldown", &broken);
    says(&finding, &["initialCooldownPeriod is 0 s"]);
    // One that sleeps, or that KEDA has seen active, loses nothing.
    let mut asleep = broken.clone();
    put(asleep.target.as_mut().unwrap(), "/spec/replicas", json!(0));
    in_order(&asleep);
    let mut active = broken;
    put(&mut active.object, "/status/lastActiveTime", json!("2026-01-01T00:00:00Z"));
    in_order(&active);
}

#[test]
fn f34_a_start_longer_than_the_slo_is_told_before_zero_is() {
    let mut broken = with(&format!("{METADATA}/sloTtft"), json!("30s"));
    let finding = patched("cold-start-above-slo", &broken);
    says(&finding, &["a cold start takes 4m", "sloTtft is 30s"]);
    broken.cold_start_ms = Ok(30_000);
    in_order(&broken);
}

#[test]
fn a_fallback_of_zero_is_none() {
    let broken = with("/spec/fallback", json!({"failureThreshold": 3, "replicas": 0}));
    patched("fallback-of-zero", &broken);
}

#[test]
fn a_fallback_that_cannot_fire_is_told() {
    let fallback = json!({"failureThreshold": 3, "replicas": 3});
    let with_fallback = || with("/spec/fallback", fallback.clone());
    in_order(&with_fallback());
    let unbounded = with("/spec/fallback", json!({"replicas": 3}));
    says(&patched("fallback-never-fires", &unbounded), &["no failureThreshold"]);
    let mut shadow = with_fallback();
    put(&mut shadow.object, &format!("{METADATA}/mode"), json!("shadow"));
    says(&patched("fallback-never-fires", &shadow), &["mode is shadow"]);
    for (target, said) in [(json!("2.5"), "is 2.5"), (json!(null), "is missing")] {
        let mut formula = with_fallback();
        let modifiers = json!({"formula": "a + b", "target": "2"});
        put(&mut formula.object, "/spec/advanced/scalingModifiers", modifiers);
        in_order(&formula);
        put(&mut formula.object, "/spec/advanced/scalingModifiers/target", target);
        says(&patched("fallback-never-fires", &formula), &[said]);
    }
}

#[test]
fn f49_a_fallback_below_the_usual_count_is_told() {
    let fallback = json!({"failureThreshold": 3, "replicas": 3});
    let mut broken = with_target("/spec/replicas", json!(8));
    put(&mut broken.object, "/spec/fallback", fallback);
    let finding = patched("fallback-below-usual", &broken);
    says(&finding, &["fallback.replicas is 3", "8 run"]);
    put(broken.target.as_mut().unwrap(), "/spec/replicas", json!(3));
    in_order(&broken);
}
