//! The warm schedule: replicas kept warm between two cron times in a time zone.
//!
//! Pure: the moment is an argument. Only a parse looks a time zone up, in jiff's database.
//!
//! Cron times are civil times. Where a clock change skips one, it counts as passed; where a clock
//! change repeats one, only its first pass counts.

use cronexpr::Crontab;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::decision::Moment;

/// The most windows of one schedule.
pub const MAX_WINDOWS: usize = 8;

/// The most replicas that a window may ask for; the decision clamps to the workload's maximum.
pub const MAX_REPLICAS: u32 = 10_000;

/// A parsed `warmSchedule`: windows separated by `|`, each like
/// `start=0 8 * * 1-5; end=0 18 * * 1-5; timezone=Europe/Berlin; replicas=2`.
///
/// `timezone` defaults to UTC, `replicas` to 1.
#[derive(Debug, Clone)]
pub struct WarmSchedule {
    text: Box<str>,
    windows: Vec<Window>,
}

impl PartialEq for WarmSchedule {
    fn eq(&self, other: &WarmSchedule) -> bool {
        self.text == other.text
    }
}

impl WarmSchedule {
    /// Parses a schedule.
    ///
    /// # Errors
    ///
    /// Names the part that is wrong.
    pub fn parse(text: &str) -> Result<WarmSchedule, Error> {
        let windows = text.split('|').map(Window::parse).collect::<Result<Vec<_>, _>>()?;
        if windows.len() > MAX_WINDOWS {
            return Err(Error::TooManyWindows);
        }
        Ok(WarmSchedule { text: text.into(), windows })
    }

    /// Replicas to keep warm at `now`: the largest of all windows that are open or open within
    /// `lead_ms`; 0 outside of all. Changes at whole minutes only, apart from the lead.
    #[must_use]
    pub fn replicas_at(&self, now: Moment, lead_ms: u64) -> u32 {
        let open = self.windows.iter().filter(|window| window.is_open(now, lead_ms));
        open.map(|window| window.replicas).max().unwrap_or(0)
    }
}

impl std::fmt::Display for WarmSchedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// What is wrong with a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More windows than [`MAX_WINDOWS`].
    #[error("expected at most {MAX_WINDOWS} windows")]
    TooManyWindows,
    /// Not `key=value`, an unknown key, or a key given twice.
    #[error("expected start, end, timezone and replicas, each once, as key=value separated by ;")]
    BadPart,
    /// `start` or `end` is missing, no cron expression, or never comes.
    #[error("expected `{0}` to be a cron expression of five fields that some day matches")]
    BadCron(&'static str),
    /// The window would never be open.
    #[error("expected `start` and `end` to differ")]
    Empty,
    /// The time zone is not known.
    #[error("expected `timezone` to be a name of the time zone database such as Europe/Berlin")]
    BadTimezone,
    /// The replica count is no number in range.
    #[error("expected `replicas` to be an integer from 1 to {MAX_REPLICAS}")]
    BadReplicas,
}

/// From each match of `start` to the next match of `end`.
#[derive(Debug, Clone)]
struct Window {
    // Both are evaluated on civil times written as UTC, so that no clock change hides a match.
    start: Crontab,
    end: Crontab,
    timezone: TimeZone,
    replicas: u32,
}

impl Window {
    fn parse(text: &str) -> Result<Window, Error> {
        let (mut start, mut end, mut timezone, mut replicas) = (None, None, None, None);
        for part in text.split(';') {
            let (key, value) = part.split_once('=').ok_or(Error::BadPart)?;
            let slot = match key.trim() {
                "start" => &mut start,
                "end" => &mut end,
                "timezone" => &mut timezone,
                "replicas" => &mut replicas,
                _ => return Err(Error::BadPart),
            };
            if slot.replace(value.trim()).is_some() {
                return Err(Error::BadPart);
            }
        }
        let replicas = match replicas {
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().map_err(|_not_a_number| Error::BadReplicas)?
            }
            Some(_) => return Err(Error::BadReplicas),
            None => 1,
        };
        if !(1..=MAX_REPLICAS).contains(&replicas) {
            return Err(Error::BadReplicas);
        }
        let timezone = TimeZone::get(timezone.unwrap_or("UTC"))
            .map_err(|_not_in_the_database| Error::BadTimezone)?;
        if start.is_some() && start == end {
            return Err(Error::Empty);
        }
        Ok(Window {
            start: crontab(start, "start")?,
            end: crontab(end, "end")?,
            timezone,
            replicas,
        })
    }

    fn is_open(&self, now: Moment, lead_ms: u64) -> bool {
        let Ok(instant) = Timestamp::from_millisecond(now.0) else { return false };
        let civil = self.civil_at(instant);
        let Some(next_start) = next(&self.start, civil) else { return false };
        // Between a start and its end, the end comes before the next start.
        if next(&self.end, civil).is_some_and(|next_end| next_end < next_start) {
            return true;
        }
        self.timezone
            .to_timestamp(next_start)
            .is_ok_and(|start| Moment(start.as_millisecond()).millis_since(now) <= lead_ms)
    }

    /// The latest civil time reached by `instant`: where the clock was put back, the civil times
    /// that come again have already been.
    fn civil_at(&self, instant: Timestamp) -> DateTime {
        let civil = self.timezone.to_datetime(instant);
        let before_change = self.timezone.preceding(instant).next().map(|change| {
            self.timezone.to_datetime(change.timestamp() - jiff::SignedDuration::from_millis(1))
        });
        before_change.map_or(civil, |before| civil.max(before))
    }
}

fn crontab(text: Option<&str>, which: &'static str) -> Result<Crontab, Error> {
    let text = text.filter(|text| text.split_whitespace().count() == 5);
    let text = text.ok_or(Error::BadCron(which))?;
    let crontab = cronexpr::parse_crontab(&format!("{text} UTC"))
        .map_err(|_not_a_crontab| Error::BadCron(which))?;
    // Some date is needed to see whether any is matched; the search covers four years from it.
    next(&crontab, jiff::civil::date(2024, 1, 1).at(0, 0, 0, 0)).ok_or(Error::BadCron(which))?;
    Ok(crontab)
}

fn next(crontab: &Crontab, civil: DateTime) -> Option<DateTime> {
    let as_utc = TimeZone::UTC.to_timestamp(civil).ok()?;
    Some(crontab.find_next(as_utc).ok()?.datetime())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFICE: &str = "start=0 8 * * 1-5; end=0 18 * * 1-5; timezone=Europe/Berlin; replicas=2";

    fn at(text: &str) -> Moment {
        Moment(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    fn replicas(schedule: &str, moment: &str, lead_ms: u64) -> u32 {
        WarmSchedule::parse(schedule).unwrap().replicas_at(at(moment), lead_ms)
    }

    #[test]
    fn a_window_is_open_from_its_start_to_just_before_its_end() {
        // Monday 2026-03-02; Berlin is UTC+1 in winter.
        for (moment, expected) in [
            ("2026-03-02T06:59:59Z", 0),
            ("2026-03-02T07:00:00Z", 2),
            ("2026-03-02T16:59:59Z", 2),
            ("2026-03-02T17:00:00Z", 0),
            ("2026-02-28T10:00:00Z", 0),
            ("2026-03-01T10:00:00Z", 0),
        ] {
            assert_eq!(replicas(OFFICE, moment, 0), expected, "{moment}");
        }
    }

    #[test]
    fn the_floor_begins_one_lead_early_and_ends_on_time() {
        let lead_ms = 10 * 60_000;
        for (moment, expected) in [
            ("2026-03-02T06:49:59Z", 0),
            ("2026-03-02T06:50:00Z", 2),
            ("2026-03-02T06:57:00Z", 2),
            ("2026-03-02T17:00:00Z", 0),
        ] {
            assert_eq!(replicas(OFFICE, moment, lead_ms), expected, "{moment}");
        }
    }

    #[test]
    fn a_lead_longer_than_the_window_leaves_no_gap_before_it() {
        let short = "start=0 8 * * *; end=5 8 * * *";
        for minute in 50..=59 {
            let moment = format!("2026-03-02T07:{minute}:00Z");
            assert_eq!(replicas(short, &moment, 10 * 60_000), 1, "{moment}");
        }
    }

    #[test]
    fn the_largest_of_several_open_windows_counts() {
        let two = "start=0 8 * * *; end=0 18 * * *; replicas=2 \
                   | start=0 12 * * *; end=0 13 * * *; replicas=5";
        assert_eq!(replicas(two, "2026-03-02T11:30:00Z", 0), 2);
        assert_eq!(replicas(two, "2026-03-02T12:30:00Z", 0), 5);
        assert_eq!(replicas(two, "2026-03-02T19:00:00Z", 0), 0);
    }

    #[test]
    fn a_window_over_midnight_stays_open() {
        let night = "start=0 22 * * *; end=0 6 * * *; timezone=Europe/Berlin";
        assert_eq!(replicas(night, "2026-03-02T23:30:00Z", 0), 1);
        assert_eq!(replicas(night, "2026-03-03T04:59:00Z", 0), 1);
        assert_eq!(replicas(night, "2026-03-03T05:00:00Z", 0), 0);
    }

    #[test]
    fn office_hours_follow_the_civil_clock_over_a_change() {
        // Berlin goes from UTC+1 to UTC+2 on Sunday 2026-03-29.
        assert_eq!(replicas(OFFICE, "2026-03-27T06:30:00Z", 0), 0);
        assert_eq!(replicas(OFFICE, "2026-03-30T05:59:59Z", 0), 0);
        assert_eq!(replicas(OFFICE, "2026-03-30T06:00:00Z", 0), 2);
        // The lead is real time, also over the change.
        let early = "start=0 3 29 3 *; end=0 6 29 3 *; timezone=Europe/Berlin";
        assert_eq!(replicas(early, "2026-03-29T00:49:00Z", 10 * 60_000), 0);
        assert_eq!(replicas(early, "2026-03-29T00:50:00Z", 10 * 60_000), 1);
    }

    #[test]
    fn a_time_that_the_clock_skips_counts_as_passed() {
        // 02:30 does not exist in Berlin on 2026-03-29: 02:00 is followed by 03:00 at 01:00 UTC.
        let ends_in_gap = "start=0 20 * * *; end=30 2 * * *; timezone=Europe/Berlin";
        assert_eq!(replicas(ends_in_gap, "2026-03-28T22:00:00Z", 0), 1);
        assert_eq!(replicas(ends_in_gap, "2026-03-29T00:59:00Z", 0), 1);
        assert_eq!(replicas(ends_in_gap, "2026-03-29T01:00:00Z", 0), 0);
        let starts_in_gap = "start=30 2 * * *; end=0 5 * * *; timezone=Europe/Berlin";
        assert_eq!(replicas(starts_in_gap, "2026-03-29T00:59:00Z", 0), 0);
        assert_eq!(replicas(starts_in_gap, "2026-03-29T01:00:00Z", 0), 1);
    }

    #[test]
    fn a_time_that_the_clock_repeats_counts_once() {
        // 02:00..03:00 comes twice in Berlin on 2026-10-25: at 00:00 and at 01:00 UTC.
        let starts_in_fold = "start=30 2 * * *; end=0 5 * * *; timezone=Europe/Berlin";
        for (moment, expected) in [
            ("2026-10-25T00:29:00Z", 0),
            ("2026-10-25T00:30:00Z", 1),
            ("2026-10-25T01:10:00Z", 1),
            ("2026-10-25T03:59:00Z", 1),
            ("2026-10-25T04:00:00Z", 0),
        ] {
            assert_eq!(replicas(starts_in_fold, moment, 0), expected, "{moment}");
        }
        let ends_in_fold = "start=0 20 * * *; end=30 2 * * *; timezone=Europe/Berlin";
        assert_eq!(replicas(ends_in_fold, "2026-10-25T00:29:00Z", 0), 1);
        assert_eq!(replicas(ends_in_fold, "2026-10-25T01:10:00Z", 0), 0);
    }

    #[test]
    fn what_is_no_schedule_is_refused_with_its_part() {
        for (text, error) in [
            ("", Error::BadPart),
            ("start=0 8 * * *", Error::BadCron("end")),
            ("end=0 8 * * *", Error::BadCron("start")),
            ("start=0 8 * *; end=0 9 * * *", Error::BadCron("start")),
            ("start=0 8 * * *; end=0 9 * * * UTC", Error::BadCron("end")),
            ("start=61 8 * * *; end=0 9 * * *", Error::BadCron("start")),
            ("start=0 8 30 2 *; end=0 9 * * *", Error::BadCron("start")),
            ("start=0 8 * * *; end=0 8 * * *", Error::Empty),
            ("start=0 8 * * *; end=0 9 * * *; timezone=Berlin", Error::BadTimezone),
            ("start=0 8 * * *; end=0 9 * * *; timezone=", Error::BadTimezone),
            ("start=0 8 * * *; end=0 9 * * *; replicas=0", Error::BadReplicas),
            ("start=0 8 * * *; end=0 9 * * *; replicas=+1", Error::BadReplicas),
            ("start=0 8 * * *; end=0 9 * * *; replicas=", Error::BadReplicas),
            ("start=0 8 * * *; end=0 9 * * *; replicas=99999999999", Error::BadReplicas),
            ("start=0 8 * * *; end=0 9 * * *; size=1", Error::BadPart),
            ("start=0 8 * * *; start=0 8 * * *; end=0 9 * * *", Error::BadPart),
            ("start=0 8 * * *; end=0 9 * * *;", Error::BadPart),
        ] {
            assert_eq!(WarmSchedule::parse(text), Err(error), "{text}");
        }
        let many = ["start=0 8 * * *; end=0 9 * * *"; MAX_WINDOWS + 1].join("|");
        assert_eq!(WarmSchedule::parse(&many), Err(Error::TooManyWindows));
    }
}
