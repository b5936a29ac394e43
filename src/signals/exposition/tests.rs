//! Pages as written, as cut, and as nobody should write them.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Everything that a page says, as owned data. Wants names that do not start with `skip`.
#[derive(Debug, Default, Clone, PartialEq)]
struct Heard {
    samples: Vec<Series>,
    declared: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
struct Series {
    name: String,
    labels: Vec<(String, String)>,
    /// As bits, so that NaN is equal to itself.
    value: u64,
    at_ms: Option<i64>,
}

impl Sink for Heard {
    type Wanted = ();

    fn wants(&self, name: &[u8]) -> Option<()> {
        (!name.starts_with(b"skip")).then_some(())
    }

    fn sample(&mut self, (): (), sample: Sample<'_>) {
        self.samples.push(Series {
            name: sample.name.to_owned(),
            labels: sample.labels.map(|(k, v)| (k.to_owned(), v.into_owned())).collect(),
            value: sample.value.to_bits(),
            at_ms: sample.at_ms,
        });
    }

    fn declared(&mut self, (): (), name: &str) {
        self.declared.push(name.to_owned());
    }
}

fn read_in<'a>(chunks: impl IntoIterator<Item = &'a [u8]>, format: Format) -> Result<Heard, Error> {
    let mut heard = Heard::default();
    let mut parser = Parser::new(format);
    for chunk in chunks {
        parser.push(chunk, &mut heard)?;
    }
    parser.finish()?;
    Ok(heard)
}

fn read(page: &[u8]) -> Result<Heard, Error> {
    read_in([page], Format::Text)
}

fn series(name: &str, labels: &[(&str, &str)], value: f64) -> Series {
    let labels = labels.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
    Series { name: name.to_owned(), labels, value: value.to_bits(), at_ms: None }
}

fn samples(page: &str) -> Vec<Series> {
    read(page.as_bytes()).unwrap().samples
}

#[test]
fn label_soup_is_read_as_written() {
    for (line, labels) in [
        ("m 1", &[][..]),
        ("m{} 1", &[]),
        ("m{ } 1", &[]),
        ("m {a=\"b\"} 1", &[("a", "b")]),
        ("\t m{a=\"b\"}\t1 ", &[("a", "b")]),
        ("m{a=\"b\",} 1", &[("a", "b")]),
        ("m{a = \"b\" , c=\"d\"}1", &[("a", "b"), ("c", "d")]),
        ("m{a=\"\"} 1", &[("a", "")]),
        (
            r#"m{a="q\"q",b="s\\",c="l\nl",d="\x"} 1"#,
            &[("a", "q\"q"), ("b", "s\\"), ("c", "l\nl"), ("d", "\\x")],
        ),
        (r#"m{a="} 2",b="{,=}"} 1"#, &[("a", "} 2"), ("b", "{,=}")]),
        ("m{a=\"# EOF\"} 1", &[("a", "# EOF")]),
        ("m{a=\"日本\"} 1", &[("a", "日本")]),
        ("m{\"a.b\"=\"c\"} 1", &[("a.b", "c")]),
        ("{\"m\"} 1", &[]),
        ("{\"m\",a=\"b\"} 1", &[("a", "b")]),
        ("{ \"m\" , a=\"b\"} 1", &[("a", "b")]),
    ] {
        assert_eq!(samples(&format!("{line}\n")), [series("m", labels, 1.0)], "{line}");
    }
}

#[test]
fn values_are_read_in_each_spelling() {
    for (text, value) in [
        ("3", 3.0),
        ("3.0", 3.0),
        ("-1", -1.0),
        ("+3", 3.0),
        ("1.7959645845327606e+09", 1_795_964_584.532_760_6),
        ("1e308", 1e308),
        ("1e999", f64::INFINITY),
        ("+Inf", f64::INFINITY),
        ("-Inf", f64::NEG_INFINITY),
        ("Inf", f64::INFINITY),
        ("NaN", f64::NAN),
        ("9223372036854775794", 9_223_372_036_854_775_794.0),
        // Text instead of a number is not a number, whatever follows it.
        ("ERROR - FAILED TO CONVERT TO STRING", f64::NAN),
        ("1,5", f64::NAN),
    ] {
        assert_eq!(samples(&format!("m {text}\n")), [series("m", &[], value)], "{text}");
    }
}

#[test]
fn timestamps_are_milliseconds_in_text_and_seconds_in_openmetrics() {
    let at_ms = |line: &str, format| {
        let page = format!("{line}\n# EOF\n");
        read_in([page.as_bytes()], format).map(|heard| heard.samples[0].at_ms)
    };
    assert_eq!(at_ms("m 1 1795964584532", Format::Text), Ok(Some(1_795_964_584_532)));
    assert_eq!(at_ms("m 1 1795964584.532", Format::OpenMetrics), Ok(Some(1_795_964_584_532)));
    assert_eq!(at_ms("m 1 -1", Format::Text), Ok(Some(-1)));
    for (line, format) in [
        ("m 1 1795964584.532", Format::Text),
        ("m 1 soon", Format::Text),
        ("m 1 2 3", Format::Text),
        ("m 1 NaN", Format::OpenMetrics),
        ("m 1 1e300", Format::OpenMetrics),
    ] {
        assert!(matches!(at_ms(line, format), Err(Error::Syntax { line: 1, .. })), "{line}");
    }
}

#[test]
fn exemplars_are_passed_over() {
    for line in ["m 1 # {trace_id=\"x\"} 0.5", "m 1 12 # {trace_id=\"x\"} 0.5 1795964584.5"] {
        let heard = read_in([format!("{line}\n# EOF\n").as_bytes()], Format::OpenMetrics).unwrap();
        assert_eq!(heard.samples[0].value, 1.0_f64.to_bits(), "{line}");
    }
}

#[test]
fn comments_declare_names_and_say_nothing_else() {
    let page = "# HELP a A help. # TYPE b gauge\n# TYPE a gauge\n# UNIT a seconds\n\n   \n\
                # TYPE skip_me counter\n#TYPE c gauge\n# TYPE\td gauge\n# note\n#\n";
    let heard = read(page.as_bytes()).unwrap();
    assert_eq!(heard, Heard { declared: vec!["a".to_owned()], samples: Vec::new() });
}

#[test]
fn carriage_returns_and_blank_lines_do_not_matter() {
    let page = "# TYPE a gauge\r\na{x=\"y\"} 1\r\n\r\nb 2\r\n";
    let heard = read(page.as_bytes()).unwrap();
    assert_eq!(heard.samples, [series("a", &[("x", "y")], 1.0), series("b", &[], 2.0)]);
    assert_eq!(heard.declared, ["a"]);
}

#[test]
fn lines_that_nobody_wants_are_not_looked_into() {
    let page = b"skip{broken 1\nskip_more\xff\xfe\nskip 1 2 3 4\nm 1\n";
    assert_eq!(read(page).unwrap().samples, [series("m", &[], 1.0)]);
}

#[test]
fn a_wanted_line_that_is_broken_is_an_error() {
    for line in [
        "m",
        "m{",
        "m{a",
        "m{a}",
        "m{a=}",
        "m{a=b} 1",
        "m{a=\"b} 1",
        "m{a=\"b\\\"} 1",
        "m{a=\"b\"",
        "m{a=\"b\" c=\"d\"} 1",
        "m{=\"b\"} 1",
        "m{,} 1",
        "m{a-b=\"c\"} 1",
        "m{a=\"b\"}",
        "m{\"a=\"b\"} 1",
    ] {
        let result = read(format!("skip 1\n{line}\n").as_bytes());
        assert!(matches!(result, Err(Error::Syntax { line: 2, .. })), "{line}: {result:?}");
    }
    assert_eq!(read(b"m{a=\"\xff\"} 1\n"), Err(Error::NotUtf8 { line: 1 }));
}

#[test]
fn what_is_no_metrics_page_is_refused() {
    for page in [
        &b"<!DOCTYPE html>\n<html></html>\n"[..],
        b"<html>",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\n",
        b"\xef\xbb\xbfm 1\n",
        b"\x00\n",
        b"[1]\n",
        b"\"text\"\n",
        b"m 1\n502 Bad Gateway\n",
    ] {
        let error = read(page).unwrap_err();
        assert!(matches!(error, Error::NotMetrics { .. }), "{error:?}");
        assert_eq!(error.why(), Why::BadBody);
    }
}

#[test]
fn a_page_that_is_cut_off_is_an_error_and_not_a_shorter_page() {
    let page = b"# TYPE a gauge\na{x=\"y\"} 18\n";
    for end in 1..page.len() {
        let cut = &page[..end];
        let whole = cut.ends_with(b"\n");
        assert_eq!(read(cut).is_ok(), whole, "{end}");
    }
    assert_eq!(read(b"").unwrap(), Heard::default());
    let open = b"# TYPE a gauge\na{x=\"y\"} 18\n# EOF\n";
    for end in 0..open.len() {
        let result = read_in([&open[..end]], Format::OpenMetrics);
        // The newline behind `# EOF` is optional.
        assert_eq!(result.is_ok(), end == open.len() - 1, "{end}: {result:?}");
    }
    assert_eq!(
        read_in([&b"# EOF\nm 1\n"[..]], Format::OpenMetrics),
        Err(Error::AfterEnd { line: 2 })
    );
    assert!(read_in([&b"# EOF\n\n"[..]], Format::OpenMetrics).is_ok());
}

#[test]
fn an_endless_line_is_refused_before_it_is_kept() {
    for prefix in ["m{a=\"", "skip", "# HELP "] {
        let mut heard = Heard::default();
        let mut parser = Parser::default();
        let chunk = prefix.repeat(1_000);
        let error = loop {
            if let Err(error) = parser.push(chunk.as_bytes(), &mut heard) {
                break error;
            }
        };
        assert_eq!(error, Error::LineTooLong { line: 1 });
        assert_eq!(error.why(), Why::TooLarge);
        assert!(parser.partial.capacity() <= 2 * MAX_LINE_BYTES);
        // The error stands.
        assert_eq!(parser.push(b"\nm 1\n", &mut heard), Err(error));
        assert_eq!(parser.finish(), Err(error));
    }
    let mut longest = vec![b'#'; MAX_LINE_BYTES];
    longest.push(b'\n');
    assert!(read(&longest).is_ok());
    longest.insert(0, b'#');
    assert_eq!(read(&longest), Err(Error::LineTooLong { line: 1 }));
}

#[test]
fn bounds_hold_for_labels_series_and_bytes() {
    let page = |n_labels: usize| {
        let labels: Vec<_> = (0..n_labels).map(|i| format!("l{i}=\"v\"")).collect();
        read(format!("m{{{}}} 1\n", labels.join(",")).as_bytes()).map(|heard| heard.samples.len())
    };
    assert_eq!(page(MAX_LABELS), Ok(1));
    assert_eq!(page(MAX_LABELS + 1), Err(Error::TooManyLabels { line: 1 }));
    let page = |n_series: usize| read("m 1\n".repeat(n_series).as_bytes()).map(drop);
    assert_eq!(page(MAX_SERIES), Ok(()));
    assert_eq!(page(MAX_SERIES + 1), Err(Error::TooManySeries));
    // 50 MB of lines that nobody wants.
    let chunk = "skip_this_bucket{le=\"0.1\"} 1\n".repeat(1_000);
    let chunks = std::iter::repeat_n(chunk.as_bytes(), 50_000_000 / chunk.len());
    assert_eq!(read_in(chunks, Format::Text), Err(Error::PageTooLong));
}

#[test]
fn nothing_is_allocated_for_lines_that_nobody_wants() {
    let mut heard = Heard::default();
    let mut parser = Parser::default();
    let page = "# HELP skip help\n# TYPE skip counter\nskip{a=\"b\\n\"} 1 2\nskip 2\n".repeat(100);
    parser.push(page.as_bytes(), &mut heard).unwrap();
    // The buffer for a partial line is all that a parser owns on the heap, and it was not needed.
    assert_eq!(parser.partial.capacity(), 0);
    assert_eq!(parser.n_series, 0);
}

/// A page with its samples, made from parts that a real one can have.
fn page() -> impl Strategy<Value = (String, Vec<Series>)> {
    let name = "[a-z_:][a-z0-9_:]{0,12}";
    let value = prop_oneof![any::<f64>(), Just(0.0), (0..1_000_000_i32).prop_map(f64::from)];
    let labels = prop::collection::btree_map("[a-z_][a-z0-9_]{0,6}", ".{0,8}", 0..5);
    let entry = (name, labels, value, prop::option::of(any::<i32>()), any::<bool>());
    prop::collection::vec(entry, 0..20).prop_map(|entries| {
        let mut page = String::new();
        let mut samples = Vec::new();
        for (name, labels, value, at_ms, comment) in entries {
            if comment {
                page += &format!("# HELP {name} some \\n help\n# TYPE {name} gauge\n");
            }
            page += &name;
            page += &label_text(&labels);
            page += &match value {
                nan if nan.is_nan() => " NaN".to_owned(),
                number => format!(" {number:?}"),
            };
            if let Some(at_ms) = at_ms {
                page += &format!(" {at_ms}");
            }
            page.push('\n');
            let value = if value.is_nan() { f64::NAN } else { value };
            samples.push(Series {
                name,
                labels: labels.into_iter().collect(),
                value: value.to_bits(),
                at_ms: at_ms.map(i64::from),
            });
        }
        samples.retain(|series| !series.name.starts_with("skip"));
        (page, samples)
    })
}

fn label_text(labels: &BTreeMap<String, String>) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let escape =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let parts: Vec<_> = labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escape(v))).collect();
    format!("{{{}}}", parts.join(","))
}

proptest! {
    #[test]
    fn a_written_page_is_read_back((page, samples) in page()) {
        prop_assert_eq!(read(page.as_bytes()).unwrap().samples, samples);
    }

    #[test]
    fn where_a_page_is_cut_into_chunks_does_not_matter(
        (page, _) in page(),
        junk in prop::collection::vec(any::<u8>(), 0..6),
        at in any::<prop::sample::Index>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let mut page = page.into_bytes();
        let at = at.index(page.len() + 1);
        page.splice(at..at, junk);
        let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(page.len() + 1)).collect();
        ends.sort_unstable();
        ends.push(page.len());
        let mut chunks = Vec::new();
        let mut start = 0;
        for end in ends {
            chunks.push(&page[start..end]);
            start = end;
        }
        for format in [Format::Text, Format::OpenMetrics] {
            prop_assert_eq!(read_in(chunks.clone(), format), read_in([&page[..]], format));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(&b"m{}\"\\=,#\n\r 1e.-NaInf"[..])],
            0..200,
        ),
    ) {
        for format in [Format::Text, Format::OpenMetrics] {
            let _either = read_in([&bytes[..]], format);
            let _either = read_in(bytes.chunks(1), format);
        }
    }
}
