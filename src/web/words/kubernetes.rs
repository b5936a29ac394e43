//! What Kubernetes does with an answer, and what stands in its way there, in plain words.
//!
//! Pure. Must not judge what the inventory does not say.

use crate::decision::{DEFAULT_TOLERANCE, HpaEffect, Moment, hpa_effect};
use crate::duration::format_millis;
use crate::hpa::{self, Select};
use crate::inventory::{Hpa, Inventory, Kubernetes, Room, Start, Workload};

use super::replicas;

/// What the HPA will do with `want` at `current` replicas: this one, or where none has been read
/// any, by both tolerances that it may have.
#[must_use]
pub fn hpa(current: u32, want: u32, known: Option<&Hpa>) -> String {
    // A workload of the configuration has none, and a cluster's may not be readable.
    let whose = if known.is_some() { "" } else { "none known; by default one " };
    match effect(current, want, known) {
        HpaEffect::Stays => format!("{whose}stays at {}", replicas(current)),
        HpaEffect::Goes { to } => {
            let next = known.map_or(to, |known| at_next_sync(current, to, known));
            format!("{whose}{}", goes(current, next, to, known))
        }
        HpaEffect::Keda if want == 0 => {
            "out of play at zero: KEDA deactivates the target after its cooldownPeriod".to_owned()
        }
        HpaEffect::Keda => "out of play at zero: KEDA activates the target".to_owned(),
        HpaEffect::Ignored { from, to } => {
            let whose = match known {
                Some(known) if says_tolerance(known, want > current) => {
                    format!("its {:.3} %", 100.0 * known.tolerance(want > current))
                        .replace(".000", "")
                }
                Some(_) => {
                    "the controller's 10 % (unless its flag says otherwise; the HPA has no tolerance \
                     of its own)"
                        .to_owned()
                }
                None => "the default 10 %".to_owned(),
            };
            format!(
                "inside HPA tolerance, no change: at {current} replicas {whose} ignores {from} to \
                 {to}; with `behavior` tolerance \"0\" it goes to {want}"
            )
        }
    }
}

/// What follows by the HPA's arithmetic, its policies and windows left out.
#[must_use]
pub fn effect(current: u32, want: u32, known: Option<&Hpa>) -> HpaEffect {
    let tolerance = known.map_or(DEFAULT_TOLERANCE, |known| known.tolerance(want > current));
    hpa_effect(current, want, tolerance)
}

fn says_tolerance(known: &Hpa, up: bool) -> bool {
    if up { known.says_tolerance_up } else { known.says_tolerance_down }
}

/// The count after the next sync of an HPA that has recommended nothing but the present count.
fn at_next_sync(current: u32, to: u32, known: &Hpa) -> u32 {
    let mut model = hpa::Hpa::new(known.min, known.max, known.behavior.clone());
    model.sync(Moment(0), current, current, Some(f64::from(to)), 1.0)
}

fn goes(current: u32, next: u32, to: u32, known: Option<&Hpa>) -> String {
    if next == to {
        return format!("goes from {current} to {to} at its next sync (15 s)");
    }
    if next != current {
        return format!(
            "goes from {current} to {next} at its next sync (15 s) and on to {to} as its policies \
             allow"
        );
    }
    let (way, up) = if to > current { ("up", true) } else { ("down", false) };
    let behavior = known.and_then(|known| known.behavior.clone()).unwrap_or_default();
    let rules = if up { behavior.up } else { behavior.down };
    if rules.select == Select::Disabled {
        return format!("stays at {}: steps {way} are disabled in it", replicas(current));
    }
    format!(
        "stays at {} until its window of {} for steps {way} is over",
        replicas(current),
        format_millis(rules.window_ms)
    )
}

/// What of Kubernetes matters to whoever looks at a workload, one sentence each; `answered` is the
/// count that KEDA is given.
#[must_use]
pub fn cluster(
    workload: &Workload,
    inventory: &Inventory,
    answered: Option<u32>,
    now: Moment,
) -> Vec<String> {
    let kubernetes = &workload.kubernetes;
    let mut sentences: Vec<String> = kubernetes
        .devices
        .iter()
        .map(|(name, count)| devices(name, *count, inventory.room.get(name)))
        .collect();
    sentences.extend(pauses(kubernetes, workload.paused));
    sentences.extend(refused(workload));
    if kubernetes.is_cut {
        sentences.push(
            "there are more pods than are kept, and some of this namespace are left out: its count \
             is unknown and nothing goes down; give --namespace for fewer"
                .to_owned(),
        );
    }
    if kubernetes.rollout_until.is_some_and(|until| until <= now) {
        sentences.push(
            "pods of two revisions stand beside each other and none has moved for long: no rollout \
             any more, so steps down go on"
                .to_owned(),
        );
    }
    for rival in &kubernetes.rivals {
        sentences.push(format!(
            "{rival} scales the same target: two autoscalers fight, so delete one of them"
        ));
    }
    // Until the first step of an autoscaler the file that made the target is its writer too.
    if let Some(writer) = &kubernetes.writer
        && answered != workload.replicas.spec
    {
        sentences.push(format!(
            "{writer} has set the target's replicas by itself: take them out of its file, or it \
             and the HPA undo each other"
        ));
    }
    sentences
}

/// What the API server refuses of it, with its reason.
#[must_use]
pub fn refused(workload: &Workload) -> Option<String> {
    let (replicas, refusal) = (workload.replicas, workload.kubernetes.refusal.as_ref()?);
    Some(format!(
        "{} of the {} ordered are refused by the API server: {refusal}",
        replicas.unschedulable,
        replicas.spec.unwrap_or(0)
    ))
}

fn devices(name: &str, count: u32, room: Option<&Room>) -> String {
    let room = match room {
        Some(Room { allocatable, requested: Some(requested) }) => {
            let free = allocatable.saturating_sub(*requested);
            format!("; {free} of {allocatable} are free on the nodes that take pods")
        }
        Some(Room { allocatable, requested: None }) => {
            format!("; the nodes that take pods have {allocatable}")
        }
        None => String::new(),
    };
    format!("a replica asks for {count} {name}{room}")
}

fn pauses(kubernetes: &Kubernetes, paused: bool) -> Vec<String> {
    let pauses = kubernetes.pauses;
    let mut sentences = Vec::new();
    if pauses.scale_in {
        sentences.push("paused-scale-in: nothing goes down, whatever is answered".to_owned());
    }
    if pauses.scale_out {
        sentences.push("paused-scale-out: nothing goes up, whatever is answered".to_owned());
    }
    if pauses.is_disputed {
        let (annotated, remedy) = if paused {
            ("paused and its condition says the contrary", "set")
        } else {
            ("not paused and its condition says that it is", "set and remove")
        };
        sentences.push(format!(
            "the ScaledObject is {annotated}: KEDA has missed the change, so {remedy} the annotation \
             autoscaling.keda.sh/paused once more"
        ));
    }
    sentences
}

/// The parts of a start.
#[must_use]
pub fn start(start: &Start) -> String {
    format!(
        "{} to find a node, {} to pull, {} to load",
        format_millis(start.schedule_ms),
        format_millis(start.pull_ms),
        format_millis(start.load_ms)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hpa::{Behavior, Change, Limit, Rules};
    use crate::inventory::{Devices, Pauses};
    use crate::web::fixtures::workload;

    fn read(behavior: Option<Behavior>, says: bool) -> Hpa {
        Hpa {
            name: "keda-hpa-llm".into(),
            min: 1,
            max: 40,
            behavior,
            says_tolerance_up: says,
            says_tolerance_down: says,
        }
    }

    fn with_tolerance(tolerance: f64) -> Behavior {
        let both = Behavior::pass_through(40);
        let rules = |rules| Rules { tolerance, ..rules };
        Behavior { up: rules(both.up), down: rules(both.down) }
    }

    #[test]
    fn f02_f118_the_dead_band_is_named_where_it_acts() {
        assert_eq!(
            hpa(10, 11, None),
            "inside HPA tolerance, no change: at 10 replicas the default 10 % ignores 9 to 11; \
             with `behavior` tolerance \"0\" it goes to 11"
        );
        assert_eq!(
            hpa(9, 10, None),
            "none known; by default one goes from 9 to 10 at its next sync (15 s)"
        );
        assert_eq!(hpa(3, 3, None), "none known; by default one stays at 3 replicas");
        for (current, want, text) in [(1, 0, "KEDA deactivates"), (0, 1, "KEDA activates")] {
            assert!(hpa(current, want, None).contains(text), "{}", hpa(current, want, None));
        }
    }

    #[test]
    fn the_tolerance_that_was_read_is_named_with_its_source() {
        let own = read(Some(with_tolerance(0.0)), true);
        assert_eq!(hpa(10, 11, Some(&own)), "goes from 10 to 11 at its next sync (15 s)");
        let five = read(Some(with_tolerance(0.05)), true);
        let said = hpa(20, 21, Some(&five));
        assert!(said.contains("at 20 replicas its 5 % ignores 19 to 21"), "{said}");
        let default = read(Some(with_tolerance(0.1)), false);
        let said = hpa(10, 11, Some(&default));
        assert!(said.contains("the controller's 10 % (unless its flag"), "{said}");
    }

    #[test]
    fn policies_windows_and_pauses_of_the_hpa_are_told() {
        let four = vec![Limit { change: Change::Pods(4), period_ms: 15_000 }];
        let mut behavior = with_tolerance(0.0);
        behavior.up.limits = four;
        behavior.down.window_ms = 300_000;
        let slow = read(Some(behavior.clone()), true);
        assert_eq!(
            hpa(10, 20, Some(&slow)),
            "goes from 10 to 14 at its next sync (15 s) and on to 20 as its policies allow"
        );
        assert_eq!(
            hpa(10, 5, Some(&slow)),
            "stays at 10 replicas until its window of 5m for steps down is over"
        );
        assert_eq!(hpa(10, 5, Some(&read(None, false))), hpa(10, 5, Some(&slow)), "the default's");
        behavior.up.select = Select::Disabled;
        assert_eq!(
            hpa(10, 20, Some(&read(Some(behavior), true))),
            "stays at 10 replicas: steps up are disabled in it"
        );
    }

    #[test]
    fn devices_are_told_with_the_room_for_more() {
        let mut workload = workload("a", "b");
        let devices = [("nvidia.com/gpu", 2), ("nvidia.com/mig-1g.10gb", 1)];
        let devices: Devices = devices.map(|(name, count)| (name.into(), count)).into();
        workload.kubernetes.devices = devices.into();
        let mut inventory = Inventory::default();
        let said = |inventory: &Inventory| cluster(&workload, inventory, Some(3), Moment(0));
        let plain =
            ["a replica asks for 2 nvidia.com/gpu", "a replica asks for 1 nvidia.com/mig-1g.10gb"];
        assert_eq!(said(&inventory), plain);
        let mut room = Room { allocatable: 72, requested: Some(60) };
        inventory.room.insert("nvidia.com/gpu".into(), room);
        let free = "; 12 of 72 are free on the nodes that take pods";
        assert_eq!(said(&inventory)[0], format!("{}{free}", plain[0]));
        room.requested = None;
        inventory.room.insert("nvidia.com/gpu".into(), room);
        assert_eq!(said(&inventory)[0], format!("{}; the nodes that take pods have 72", plain[0]));
    }

    #[test]
    fn what_stands_in_the_way_of_an_answer_is_told_with_the_remedy() {
        let mut workload = workload("a", "b");
        let said = |workload: &Workload, answered| {
            cluster(workload, &Inventory::default(), Some(answered), Moment(1_000)).join("\n")
        };
        assert_eq!(said(&workload, 3), "");
        let kubernetes = &mut workload.kubernetes;
        kubernetes.pauses = Pauses { scale_in: true, scale_out: true, is_disputed: true };
        kubernetes.rivals = ["HorizontalPodAutoscaler/by-hand".to_owned()].into();
        kubernetes.writer = Some("argocd-controller".into());
        kubernetes.refusal = Some("exceeded quota: team-a".into());
        kubernetes.is_cut = true;
        kubernetes.rollout_until = Some(Moment(1_000));
        workload.replicas.unschedulable = 2;
        let all = said(&workload, 5);
        for part in [
            "paused-scale-in: nothing goes down",
            "paused-scale-out: nothing goes up",
            "set and remove the annotation",
            "some of this namespace are left out: its count is unknown",
            "pods of two revisions stand beside each other and none has moved",
            "2 of the 3 ordered are refused by the API server: exceeded quota: team-a",
            "HorizontalPodAutoscaler/by-hand scales the same target",
            "argocd-controller has set the target's replicas",
        ] {
            assert!(all.contains(part), "{part}: {all}");
        }
        assert!(!said(&workload, 3).contains("argocd"), "3 are ordered, and 3 answered");
        workload.kubernetes.rollout_until = Some(Moment(1_001));
        assert!(!said(&workload, 3).contains("two revisions"), "a rollout, and told as its rule");
    }
}
