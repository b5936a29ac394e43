//! Traces with one request a row: Azure's, BurstGPT's and the plain form.

use std::path::Path;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::lines::{Column, Table};
use super::{Arrival, Empty, Error, Format, MOST_S};

const TIME: usize = 0;
const INPUT: usize = 1;
const OUTPUT: usize = 2;
const CACHED: usize = 3;

static AZURE: [Column; 3] = [
    Column::required("TIMESTAMP"),
    Column::required("ContextTokens"),
    Column::required("GeneratedTokens"),
];
static BURSTGPT: [Column; 3] = [
    Column::required("Timestamp"),
    Column::required("Request tokens"),
    Column::required("Response tokens"),
];
static PLAIN: [Column; 4] = [
    Column::required("t_s"),
    Column::required("input_tokens"),
    Column::required("output_tokens"),
    Column { name: "cached_tokens", aliases: &[], required: false },
];

/// How a row says when.
#[derive(Debug, Clone, Copy)]
enum Clock {
    /// Date and time; counted from the first row, once there was one.
    Date { first: Option<Timestamp> },
    /// Seconds, counted from the first row.
    SinceFirst { first_s: Option<f64> },
    /// Seconds as they are.
    Seconds,
}

/// The rows of a file.
pub(super) struct Requests {
    table: Table,
    clock: Clock,
    last_s: f64,
    n_rows: u64,
    empty: Empty,
}

impl Requests {
    pub(super) fn open(path: &Path, format: Format, empty: Empty) -> Result<Requests, Error> {
        let (columns, clock): (&'static [Column], Clock) = match format {
            Format::Azure => (&AZURE, Clock::Date { first: None }),
            Format::Burstgpt => (&BURSTGPT, Clock::SinceFirst { first_s: None }),
            Format::Csv | Format::Counts | Format::Mooncake => (&PLAIN, Clock::Seconds),
        };
        let table = Table::open(path, columns)?;
        Ok(Requests { table, clock, last_s: 0.0, n_rows: 0, empty })
    }

    fn read(&mut self) -> Result<Option<Arrival>, Error> {
        if !self.table.advance()? {
            if self.n_rows == 0 {
                return Err(self.table.lines().empty("one request a row"));
            }
            return Ok(None);
        }
        self.n_rows += 1;
        let table = &self.table;
        let row = table.row();
        let t_s = match &mut self.clock {
            Clock::Date { first } => {
                let at = date(row[TIME]).ok_or_else(|| {
                    table.fault(&row, TIME, "a date and time such as 2023-11-16 18:15:46.68")
                })?;
                at.duration_since(*first.get_or_insert(at)).as_secs_f64()
            }
            Clock::SinceFirst { first_s } => {
                let at_s = table.number(&row, TIME)?;
                at_s - *first_s.get_or_insert(at_s)
            }
            Clock::Seconds => table.number(&row, TIME)?,
        };
        if t_s > MOST_S {
            return Err(table.fault(&row, TIME, "at most 213 days after the start of the trace"));
        }
        if t_s < self.last_s {
            let expected = "no time before that of the row above; sort the file by time";
            return Err(table.fault(&row, TIME, expected));
        }
        self.last_s = t_s;
        let length = table.length(&row, [INPUT, OUTPUT, CACHED])?;
        Ok(Some(Arrival::new(t_s, self.empty.raised(length))))
    }
}

impl Iterator for Requests {
    type Item = Result<Arrival, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// A time with its offset from UTC, or without one and then in UTC.
fn date(text: &str) -> Option<Timestamp> {
    text.parse().ok().or_else(|| {
        let civil: DateTime = text.parse().ok()?;
        Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp())
    })
}
