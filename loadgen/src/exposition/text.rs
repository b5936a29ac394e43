//! Numbers and label values as Python's client library writes them.
//!
//! Must not know any metric.

use std::fmt::Write as _;

/// Appends a number as `prometheus_client` does: Python's `repr`, but with Go's exponent from a
/// million on, whose digits it pads with one zero whatever follows.
pub(super) fn push_number(out: &mut String, value: f64) {
    if value.is_nan() {
        out.push_str("NaN");
        return;
    }
    if value.is_infinite() {
        out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
        return;
    }
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
            push_number(&mut out, value);
            assert_eq!(out, text);
        }
    }

    #[test]
    fn label_values_are_escaped() {
        let mut out = String::new();
        push_label(&mut out, "model_name", "a\"b\\c\nd");
        assert_eq!(out, r#"model_name="a\"b\\c\nd""#);
    }
}
