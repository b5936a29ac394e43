//! Mooncake's traces: a JSON object a line.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use super::lines::Lines;
use super::{Arrival, Empty, Error, Length, MOONCAKE_SEGMENT_TOKENS, MOST_S};
use crate::engine::Prefix;

/// The rows of a file.
pub(super) struct Mooncake {
    lines: Lines,
    last_ms: f64,
    n_rows: u64,
    empty: Empty,
}

#[derive(Deserialize)]
struct Row {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

impl Mooncake {
    pub(super) fn open(path: &Path, empty: Empty) -> Result<Mooncake, Error> {
        Ok(Mooncake { lines: Lines::open(path)?, last_ms: 0.0, n_rows: 0, empty })
    }

    fn read(&mut self) -> Result<Option<Arrival>, Error> {
        let lines = &mut self.lines;
        if !lines.advance()? {
            if self.n_rows == 0 {
                return Err(lines.empty("one JSON object a line"));
            }
            return Ok(None);
        }
        self.n_rows += 1;
        let row: Row = serde_json::from_str(lines.text()).map_err(|_not_a_row| {
            let expected = "a JSON object with `timestamp` in ms, `input_length`, `output_length` \
                            and a list `hash_ids`";
            lines.fault("line", lines.text(), expected)
        })?;
        if !(self.last_ms..f64::INFINITY).contains(&row.timestamp) {
            let expected = "milliseconds, not before the line above; sort the file by time";
            return Err(lines.fault("timestamp", &row.timestamp.to_string(), expected));
        }
        if row.timestamp > MOST_S * 1e3 {
            let expected = "milliseconds, at most 213 days";
            return Err(lines.fault("timestamp", &row.timestamp.to_string(), expected));
        }
        self.last_ms = row.timestamp;
        let length = Length {
            input_tokens: lines.whole_tokens("input_length", row.input_length)?,
            output_tokens: lines.whole_tokens("output_length", row.output_length)?,
            cached_tokens: 0,
        };
        let Length { input_tokens, output_tokens, .. } = self.empty.raised(length);
        let n_hashes = row.hash_ids.len();
        if n_hashes as u64 > u64::from(input_tokens.div_ceil(MOONCAKE_SEGMENT_TOKENS)) {
            let expected = "no more than one for each 512 tokens of `input_length` begun";
            return Err(lines.fault("hash_ids", &format!("{n_hashes} hashes"), expected));
        }
        let prefix = if row.hash_ids.is_empty() {
            Prefix::Unknown
        } else {
            let hashes: Arc<[u64]> = row.hash_ids.into();
            Prefix::Segments { tokens: MOONCAKE_SEGMENT_TOKENS, hashes }
        };
        Ok(Some(Arrival { t_s: row.timestamp / 1e3, input_tokens, output_tokens, prefix }))
    }
}

impl Iterator for Mooncake {
    type Item = Result<Arrival, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}
