//! A count that somebody sets by hand, with an end: what would else stay until somebody remembers it.
//!
//! Pure: the moment is an argument.

use jiff::Timestamp;

use crate::decision::Moment;

/// The most replicas that may be asked for; the decision clamps to the workload's bounds.
const MAX_REPLICAS: u32 = 10_000;

/// A parsed `override`: `replicas=6; until=2026-12-01T08:00:00+01:00`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByHand {
    /// Replicas, 0..10,000.
    replicas: u32,
    /// When it ends.
    until: Moment,
}

impl ByHand {
    /// Parses one: a count, and the end as RFC 3339 with an offset.
    pub(super) fn parse(text: &str) -> Option<ByHand> {
        let (mut replicas, mut until) = (None, None);
        for part in text.split(';') {
            let (key, value) = part.split_once('=')?;
            let slot = match key.trim() {
                "replicas" => &mut replicas,
                "until" => &mut until,
                _ => return None,
            };
            if slot.replace(value.trim()).is_some() {
                return None;
            }
        }
        let digits = replicas?;
        let is_count = digits.bytes().all(|byte| byte.is_ascii_digit());
        let replicas = digits.parse().ok().filter(|count| is_count && *count <= MAX_REPLICAS)?;
        let until: Timestamp = until?.parse().ok()?;
        Some(ByHand { replicas, until: Moment(until.as_millisecond()) })
    }

    /// The count at `now`; `None` from its end on.
    #[must_use]
    pub fn replicas_at(&self, now: Moment) -> Option<u32> {
        (now < self.until).then_some(self.replicas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_holds_until_its_end_and_no_longer() {
        let by_hand = ByHand::parse("replicas=6; until=2026-03-02T13:00:00+01:00").unwrap();
        let noon = Moment(1_772_452_800_000);
        assert_eq!(by_hand.replicas_at(noon.minus_millis(1)), Some(6));
        assert_eq!(by_hand.replicas_at(noon), None);
        assert_eq!(ByHand::parse("until=2026-03-02T12:00:00Z;replicas=0").unwrap().replicas, 0);
    }

    #[test]
    fn what_names_no_count_or_no_moment_is_refused() {
        for text in [
            "",
            "6",
            "replicas=6",
            "until=2026-03-02T12:00:00Z",
            "replicas=6; until=tomorrow",
            "replicas=6; until=2026-03-02T12:00:00",
            "replicas=-1; until=2026-03-02T12:00:00Z",
            "replicas=10001; until=2026-03-02T12:00:00Z",
            "replicas=1; replicas=2; until=2026-03-02T12:00:00Z",
            "replicas=1; until=2026-03-02T12:00:00Z; why=x",
        ] {
            assert_eq!(ByHand::parse(text), None, "{text}");
        }
    }
}
