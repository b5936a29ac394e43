//! How many replicas there are, seen from outside once a second.
//!
//! Must not act on it. A question that fails is a gap, never a zero.

use std::ops::Range;
use std::time::Duration;

use super::target::{Page, Target};

const PERIOD: Duration = Duration::from_secs(1);
const ANSWER_LIMIT: Duration = Duration::from_millis(900);
/// A count that changes more often than this is noise; memory stays bounded.
const MOST_CHANGES: usize = 10_000;

/// Where the number is seen.
#[derive(Debug, Clone)]
pub enum Source {
    /// A page that tells it.
    Page(Page),
    /// How many targets answer `/health` with 200.
    Health(Vec<Target>),
}

impl Source {
    async fn count(&self) -> Option<u32> {
        match self {
            Source::Page(page) => {
                let asked = tokio::time::timeout(ANSWER_LIMIT, page.get()).await;
                match asked {
                    Ok(Ok((200, body))) => replicas_in(&body),
                    Ok(Ok(_) | Err(_)) | Err(_) => None,
                }
            }
            Source::Health(targets) => {
                let asked = targets.iter().map(|target| async {
                    let path = target.path("/health");
                    let asked = tokio::time::timeout(ANSWER_LIMIT, target.get(&path)).await;
                    u32::from(matches!(asked, Ok(Ok((200, _)))))
                });
                Some(futures_util::future::join_all(asked).await.into_iter().sum())
            }
        }
    }
}

/// The number in a page: alone, in a Kubernetes `Scale`, as `replicas`, or in the answer of a
/// Prometheus query.
fn replicas_in(body: &[u8]) -> Option<u32> {
    const PLACES: [&str; 4] =
        ["/status/replicas", "/replicas", "/data/result/0/value/1", "/data/result/1"];
    let json: serde_json::Value = serde_json::from_slice(body).ok()?;
    let found = std::iter::once(&json).chain(PLACES.iter().filter_map(|place| json.pointer(place)));
    found
        .filter_map(|value| match value.as_str() {
            Some(text) => text.parse().ok(),
            None => value.as_f64(),
        })
        .find(|count| (0.0..=1e6).contains(count))
        .map(|count| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "0 to a million, see above"
            )]
            let count = count.round() as u32;
            count
        })
}

/// What was seen: each entry holds until the next. `None`: not seen.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    changes: Vec<(f64, Option<u32>)>,
}

impl Seen {
    /// Notes a count.
    pub fn note(&mut self, t_s: f64, count: Option<u32>) {
        let is_new = self.changes.last().is_none_or(|(_, last)| *last != count);
        if is_new && self.changes.len() < MOST_CHANGES {
            self.changes.push((t_s, count));
        }
    }

    /// The counts with their times.
    #[must_use]
    pub fn changes(&self) -> &[(f64, Option<u32>)] {
        &self.changes
    }

    /// Replica-seconds of a stretch of the run, and for how many of its seconds they were seen.
    #[must_use]
    pub fn replica_seconds(&self, within_s: Range<f64>) -> (f64, f64) {
        let ends = self.changes.iter().skip(1).map(|(t_s, _)| *t_s).chain([f64::INFINITY]);
        let mut sums = (0.0, 0.0);
        for ((t_s, count), end_s) in self.changes.iter().zip(ends) {
            let span_s = (end_s.min(within_s.end) - t_s.max(within_s.start)).max(0.0);
            if let Some(count) = count {
                sums.0 += f64::from(*count) * span_s;
                sums.1 += span_s;
            }
        }
        sums
    }
}

/// Looks once a second, for ever.
pub(super) async fn watch(
    source: &Source,
    now_s: impl Fn() -> f64,
    mut note: impl FnMut(f64, Option<u32>),
) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let count = source.count().await;
        note(now_s(), count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_found_in_every_usual_page() {
        for (body, count) in [
            ("3", Some(3)),
            ("3\n", Some(3)),
            (r#"{"replicas": 4}"#, Some(4)),
            (r#"{"kind":"Scale","spec":{"replicas":5},"status":{"replicas":2}}"#, Some(2)),
            (
                r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1.5,"7"]}]}}"#,
                Some(7),
            ),
            (r#"{"status":"success","data":{"resultType":"scalar","result":[1.5,"6"]}}"#, Some(6)),
            (r#"{"status":"success","data":{"result":[]}}"#, None),
            ("NaN", None),
            ("-1", None),
            ("", None),
            ("<html>", None),
        ] {
            assert_eq!(replicas_in(body.as_bytes()), count, "{body}");
        }
    }

    #[test]
    fn what_was_not_seen_is_neither_zero_nor_counted() {
        let mut seen = Seen::default();
        for (t_s, count) in
            [(0.0, Some(1)), (1.0, Some(1)), (10.0, Some(3)), (20.0, None), (30.0, Some(0))]
        {
            seen.note(t_s, count);
        }
        assert_eq!(seen.changes().len(), 4);
        assert_eq!(seen.replica_seconds(0.0..50.0), (10.0 + 30.0, 40.0));
        assert_eq!(seen.replica_seconds(5.0..15.0), (5.0 + 15.0, 10.0));
        assert_eq!(seen.replica_seconds(22.0..28.0), (0.0, 0.0));
    }
}
