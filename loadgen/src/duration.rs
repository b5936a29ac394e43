//! Durations as people write them: `90`, `90s`, `5m`, `1h`, `250ms`, `1h30m`; a bare number is seconds.
//!
//! Pure text; used by flags, configuration and trigger metadata alike.

use std::fmt;

/// Parses a duration into milliseconds.
///
/// Units are `ms`, `s`, `m`, `h`, `d`, each at most once and from large to small. A bare number
/// is seconds. Fractions are allowed (`1.5h`).
///
/// # Errors
///
/// When the text is empty, has a sign, an unknown unit, or means more than ten years.
pub fn parse_millis(text: &str) -> Result<u64, Error> {
    const TEN_YEARS_MS: f64 = 10.0 * 365.0 * 86_400_000.0;
    let text = text.trim();
    if text.is_empty() {
        return Err(Error);
    }
    let mut total_ms = 0.0;
    let mut rest = text;
    let mut smallest_unit_ms = f64::INFINITY;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit_ms = match unit {
            "ms" => 1.0,
            "s" => 1_000.0,
            // Only alone: `1h30` is more likely a slip than thirty seconds.
            "" if smallest_unit_ms.is_infinite() => 1_000.0,
            "m" => 60_000.0,
            "h" => 3_600_000.0,
            "d" => 86_400_000.0,
            _ => return Err(Error),
        };
        if unit_ms >= smallest_unit_ms {
            return Err(Error);
        }
        smallest_unit_ms = unit_ms;
        let number: f64 = number.parse().map_err(|_not_a_number| Error)?;
        total_ms += number * unit_ms;
        rest = tail;
    }
    if !total_ms.is_finite() || total_ms > TEN_YEARS_MS {
        return Err(Error);
    }
    // In range: 0 ≤ total ≤ ten years in milliseconds, far below 2^53.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "range checked just above"
    )]
    Ok(total_ms.round() as u64)
}

/// Writes a duration the way [`parse_millis`] reads it, in its two largest units.
#[must_use]
pub fn format_millis(millis: u64) -> String {
    const UNITS: [(u64, &str); 5] =
        [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")];
    let mut rest = millis;
    let mut parts = String::new();
    let mut n_parts = 0;
    for (unit_ms, name) in UNITS {
        let count = rest / unit_ms;
        if count == 0 {
            if n_parts > 0 {
                break;
            }
            continue;
        }
        // Milliseconds beside a larger unit are noise to a reader.
        if name == "ms" && n_parts > 0 {
            break;
        }
        parts.push_str(&format!("{count}{name}"));
        rest %= unit_ms;
        n_parts += 1;
        if n_parts == 2 {
            break;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts }
}

/// The text is no duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a duration such as 90, 90s, 5m or 1h")
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [
            ("90", 90_000),
            ("90s", 90_000),
            (" 5m ", 300_000),
            ("1h", 3_600_000),
            ("250ms", 250),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("0", 0),
            ("2d", 172_800_000),
        ] {
            assert_eq!(parse_millis(text), Ok(millis), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in [
            "", " ", "-5s", "+5s", "5 m", "m", "5w", "5mm", "1m1h", "5s5s", "1h30", "NaN", "inf",
            "1e3", "0x10", "1,5s", "99999d", "..5s", "٣s",
        ] {
            assert_eq!(parse_millis(text), Err(Error), "{text}");
        }
    }

    #[test]
    fn formatting_is_read_back() {
        for millis in [0, 1, 999, 1_000, 61_000, 3_600_000, 5_400_000, 90_000_000] {
            assert_eq!(parse_millis(&format_millis(millis)), Ok(millis), "{millis}");
        }
        assert_eq!(format_millis(3_661_001), "1h1m");
    }
}
