//! Numbers and label values as the dialects write them.
//!
//! Must not know any metric.

use std::fmt::Write as _;

use super::dialects::Numbers;

/// Appends a number.
pub(super) fn push_number(out: &mut String, value: f64, numbers: Numbers) {
    if value.is_nan() {
        out.push_str("NaN");
    } else if value.is_infinite() {
        out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else {
        match numbers {
            Numbers::Python => push_python(out, value),
            Numbers::Shortest => {
                // Writing to a string cannot fail.
                let _infallible = write!(out, "{value}");
            }
            Numbers::SixDigits => push_six_digits(out, value),
        }
    }
}

/// As C's `%g` does.
fn push_six_digits(out: &mut String, value: f64) {
    let digits = format!("{value:.5e}");
    let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if (-4..6).contains(&exponent) {
        let decimals = usize::try_from(5 - exponent).unwrap_or(0);
        out.push_str(&trimmed(&format!("{value:.decimals$}")));
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let mantissa = trimmed(mantissa);
        let _infallible = write!(out, "{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
}

/// As `prometheus_client` does: Python's `repr`, but with Go's exponent from a million on, whose
/// digits it pads with one zero whatever follows.
fn push_python(out: &mut String, value: f64) {
    let start = out.len();
    // Writing to a string cannot fail.
    let _infallible = write!(out, "{value:?}");
    let digits = out.split_off(start);
    if let Some((mantissa, exponent)) = digits.split_once('e') {
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        let _infallible = write!(out, "{mantissa}e{sign}{exponent:0>2}");
        return;
    }
    match digits.split_once('.') {
        Some((whole, fraction)) if value > 0.0 && whole.len() > 6 => {
            let (first, rest) = whole.split_at(1);
            let mantissa = format!("{first}.{rest}{fraction}");
            let mantissa = mantissa.trim_end_matches(['0', '.']);
            let _infallible = write!(out, "{mantissa}e+0{}", whole.len() - 1);
        }
        Some(_) | None => out.push_str(&digits),
    }
}

/// Appends `name="value"` with what the format escapes.
pub(super) fn push_label(out: &mut String, name: &str, value: &str) {
    out.push_str(name);
    out.push_str("=\"");
    if value.contains(['\\', '"', '\n']) {
        out.push_str(&value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n"));
    } else {
        out.push_str(value);
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_python_client() {
        for (value, text) in [
            (0.0, "0.0"),
            (31.0, "31.0"),
            (0.000_2, "0.0002"),
            (0.000_01, "1e-05"),
            (0.000_976_681_723_843_242_4, "0.0009766817238432424"),
            (100_000.0, "100000.0"),
            (1_000_000.0, "1e+06"),
            (1_013_428_224.0, "1.013428224e+09"),
            (1_795_964_584.532_142, "1.795964584532142e+09"),
            (12_345_678_901.0, "1.2345678901e+010"),
            (1e16, "1e+16"),
            (f64::INFINITY, "+Inf"),
            (f64::NAN, "NaN"),
        ] {
            let mut out = String::new();
            push_number(&mut out, value, Numbers::Python);
            assert_eq!(out, text);
        }
    }

    #[test]
    fn other_numbers_are_those_of_c_streams_and_of_rust() {
        for (value, six_digits, shortest) in [
            (0.0, "0", "0"),
            (31.0, "31", "31"),
            (0.5, "0.5", "0.5"),
            (1.0 / 3.0, "0.333333", "0.3333333333333333"),
            (0.000_012_345_678, "1.23457e-05", "0.000012345678"),
            (999_999.0, "999999", "999999"),
            (999_999.6, "1e+06", "999999.6"),
            (1_234_567.0, "1.23457e+06", "1234567"),
            (12_345_678_901.0, "1.23457e+10", "12345678901"),
            (f64::INFINITY, "+Inf", "+Inf"),
        ] {
            for (numbers, text) in [(Numbers::SixDigits, six_digits), (Numbers::Shortest, shortest)]
            {
                let mut out = String::new();
                push_number(&mut out, value, numbers);
                assert_eq!(out, text);
            }
        }
    }

    #[test]
    fn label_values_are_escaped() {
        let mut out = String::new();
        push_label(&mut out, "model_name", "a\"b\\c\nd");
        assert_eq!(out, r#"model_name="a\"b\\c\nd""#);
    }
}
