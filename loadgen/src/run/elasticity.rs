//! How a service stood a change of its size: what no average tells.
//!
//! Pure: works on what was measured.

use serde::Serialize;

use super::measure::Outcome;
use super::plan::Plan;
use super::record::Class;

/// What is lost or held within this time of a change of the count belongs to it. A cold start
/// takes minutes, and its requests were due before the count moves.
const NEAR_S: f64 = 120.0;
/// Where less of the time is seen, what it cost is a guess.
pub(super) const LEAST_SEEN: f64 = 0.9;

/// The report's part on elasticity.
#[derive(Debug, Clone, Serialize)]
pub struct Elasticity {
    /// From the first intended start to the first text of all, in seconds. After a start at zero
    /// replicas: the whole wake.
    pub time_to_first_token_s: Option<f64>,
    /// Whether there were no replicas when the run began; `null` if they could not be seen.
    pub from_zero: Option<bool>,
    /// The longest stretch with requests open and no text for any, in seconds, as coarse as the
    /// timeline.
    pub longest_silence_s: f64,
    /// Requests that failed.
    pub lost: u64,
    /// Requests whose first token came later than the SLO allows, or had not come by the end.
    pub held: u64,
    /// Of those that failed, answers that were cut short, begun or not, as by a replica that goes.
    pub cut: u64,
    /// Request-seconds spent waiting for first tokens beyond the SLO.
    pub slo_violation_area_s: f64,
    /// The share of the time, of that with requests due, in which one was lost or held.
    pub slo_violation_time_share: Option<f64>,
    /// Changes of the number of replicas, with what was lost and held near them.
    pub scale_events: Vec<ScaleEvent>,
    /// How often the number turned from rising to falling, or back.
    pub reversals: usize,
    /// Replica-seconds while requests were due that count, as far as they were seen.
    pub replica_seconds: Option<f64>,
    /// The share of that time in which the number of replicas was seen.
    pub seen_share: Option<f64>,
    /// GPU-seconds in that time, those that were not seen in proportion, for each token of an answer
    /// within its SLO; `null` if less than nine tenths of them were seen.
    pub gpu_seconds_per_good_token: Option<f64>,
}

/// A change of the number of replicas.
#[derive(Debug, Clone, Serialize)]
pub struct ScaleEvent {
    /// When it was seen, in seconds since the start.
    pub at_s: f64,
    /// Replicas before.
    pub from: u32,
    /// Replicas after.
    pub to: u32,
    /// Requests lost for which this is the nearest change, within two minutes.
    pub lost: u64,
    /// Requests held, likewise.
    pub held: u64,
    /// Answers that were cut short nearest to this change, within two minutes.
    pub cut: u64,
    /// The longest time to first token among these, in seconds.
    pub worst_ttft_s: Option<f64>,
}

/// Works it out.
#[must_use]
pub fn elasticity(outcome: &Outcome, total: &Class, plan: &Plan) -> Elasticity {
    let record = &outcome.record;
    let changes = outcome.replicas.changes();
    let mut events = scale_events(changes);
    let width_s = record.timeline.width_s();
    let (mut held, mut cut, mut bins_due, mut bins_bad) = (0, 0, 0_u32, 0_u32);
    let (mut in_flight, mut silence, mut longest_silence) = (0_u64, 0_u32, 0_u32);
    for (t_s, bin) in record.timeline.bins() {
        held += bin.late;
        bins_due += u32::from(bin.scheduled > 0);
        bins_bad += u32::from(bin.failed + bin.late > 0);
        let is_silent = in_flight > 0 && bin.events == 0 && bin.completed == 0;
        silence = if is_silent { silence + 1 } else { 0 };
        longest_silence = longest_silence.max(silence);
        in_flight = (in_flight + bin.sent).saturating_sub(bin.ended);
        cut += bin.cut;
        if bin.failed + bin.late + bin.cut == 0 {
            continue;
        }
        let middle_s = t_s + width_s / 2.0;
        let nearest = events
            .iter_mut()
            .min_by(|a, b| (a.at_s - middle_s).abs().total_cmp(&(b.at_s - middle_s).abs()))
            .filter(|event| (event.at_s - middle_s).abs() <= NEAR_S);
        if let Some(event) = nearest {
            event.lost += bin.failed;
            event.held += bin.late;
            event.cut += bin.cut;
            if bin.worst_ttft_s > 0.0 {
                let worst_s = event.worst_ttft_s.unwrap_or(0.0).max(bin.worst_ttft_s);
                event.worst_ttft_s = Some(worst_s);
            }
        }
    }
    let (mut replica_s, mut seen_s) = (0.0, 0.0);
    for load_s in &outcome.loads_s {
        let (taken_s, of_s) = outcome.replicas.replica_seconds(load_s.clone());
        (replica_s, seen_s) = (replica_s + taken_s, seen_s + of_s);
    }
    let seen_share = (seen_s > 0.0).then(|| (seen_s / outcome.span_s).min(1.0));
    Elasticity {
        time_to_first_token_s: record
            .first_text_s
            .zip(record.first_due_s)
            .map(|(first_s, due_s)| first_s - due_s),
        from_zero: changes.first().and_then(|(_, count)| count.map(|count| count == 0)),
        longest_silence_s: f64::from(longest_silence) * width_s,
        lost: total.n_errors(),
        held,
        cut,
        slo_violation_area_s: total.violation_s,
        slo_violation_time_share: (bins_due > 0).then(|| f64::from(bins_bad) / f64::from(bins_due)),
        reversals: reversals(&events),
        scale_events: events,
        replica_seconds: seen_share.map(|_| replica_s),
        seen_share,
        gpu_seconds_per_good_token: seen_share
            .filter(|share| *share >= LEAST_SEEN && total.good_output_tokens > 0)
            .map(|share| {
                replica_s / share * plan.gpus_per_replica / total.good_output_tokens as f64
            }),
    }
}

/// The changes of the count. One that was not seen in between is told when the next was.
fn scale_events(changes: &[(f64, Option<u32>)]) -> Vec<ScaleEvent> {
    let mut seen = changes.iter().filter_map(|(at_s, count)| Some((*at_s, (*count)?)));
    let mut last = seen.next().map(|(_, count)| count);
    seen.filter_map(|(at_s, to)| {
        let from = last.replace(to).filter(|from| *from != to)?;
        Some(ScaleEvent { at_s, from, to, lost: 0, held: 0, cut: 0, worst_ttft_s: None })
    })
    .collect()
}

fn reversals(events: &[ScaleEvent]) -> usize {
    let turns = |pair: &&[ScaleEvent]| matches!(pair, [a, b] if (a.to > a.from) != (b.to > b.from));
    events.windows(2).filter(turns).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_failed_hides_no_change() {
        let events = |changes: &[(f64, Option<u32>)]| -> Vec<(u32, u32)> {
            scale_events(changes).iter().map(|event| (event.from, event.to)).collect()
        };
        assert_eq!(events(&[(0.0, Some(1)), (2.0, None), (4.0, Some(3))]), [(1, 3)]);
        assert!(events(&[(0.0, None), (1.0, Some(2)), (5.0, None), (6.0, Some(2))]).is_empty());
        assert_eq!(events(&[(0.0, Some(0)), (1.0, Some(2)), (2.0, Some(0))]), [(0, 2), (2, 0)]);
        assert!(events(&[]).is_empty());
    }
    #[test]
    fn a_count_that_goes_up_and_down_reverses_each_time() {
        let turned = |counts: &[u32]| {
            let changes = counts.iter().enumerate().map(|(at, count)| (at as f64, Some(*count)));
            reversals(&scale_events(&changes.collect::<Vec<_>>()))
        };
        assert_eq!(turned(&[1, 2, 3, 5]), 0);
        assert_eq!(turned(&[1, 3, 2, 1, 4]), 2);
        assert_eq!(turned(&[1]), 0);
    }
}
