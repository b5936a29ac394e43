//! Answers of Prometheus, and what only looks like one.

use proptest::prelude::*;

use super::*;

fn data(result_type: &str, result: &str) -> String {
    format!(r#"{{"status":"success","data":{{"resultType":"{result_type}","result":{result}}}}}"#)
}

fn decode(body: &str) -> Result<Answer, Error> {
    answer(body.as_bytes())
}

fn at(millis: i64, value: f64) -> Sample {
    Sample { at: Moment(millis), value }
}

#[test]
fn a_matrix_keeps_each_samples_own_time() {
    let series = r#"[{"metric":{"pod":"a","__name__":"q"},
        "values":[[1700000000,"1"],[1700000015.781,"2.5e1"]]}]"#;
    let answer = decode(&data("matrix", series)).unwrap();
    let [series] = answer.series.as_slice() else { panic!("{answer:?}") };
    assert_eq!(series.samples, [at(1_700_000_000_000, 1.0), at(1_700_000_015_781, 25.0)]);
    assert_eq!(series.labels.get("pod"), Some("a"));
    assert_eq!(series.labels.get("__name__"), Some("q"));
    assert_eq!(series.labels.get("p"), None);
    let names: Vec<&str> = series.labels.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["__name__", "pod"]);
}

#[test]
fn a_vector_and_a_scalar_have_one_sample_each() {
    let vector = decode(&data("vector", r#"[{"metric":{},"value":[1,"3"]}]"#)).unwrap();
    assert_eq!(vector.series[0].samples, [at(1_000, 3.0)]);
    let scalar = decode(&data("scalar", r#"[1.5,"4"]"#)).unwrap();
    assert_eq!(
        scalar.series,
        [Series { labels: Labels::default(), samples: vec![at(1_500, 4.0)] }]
    );
}

#[test]
fn values_that_are_no_finite_number_arrive_as_what_they_are() {
    let answer = decode(&data(
        "matrix",
        r#"[{"metric":{},"values":[[1,"NaN"],[2,"+Inf"],[3,"-Inf"],[4,"1e308"]]}]"#,
    ));
    let values: Vec<f64> = answer.unwrap().series[0].samples.iter().map(|s| s.value).collect();
    assert!(values[0].is_nan());
    assert_eq!(values[1..], [f64::INFINITY, f64::NEG_INFINITY, 1e308]);
}

#[test]
fn warnings_and_infos_are_counted() {
    let body = data("vector", "[]").replacen('{', r#"{"warnings":["a","b"],"infos":["c"],"#, 1);
    let answer = decode(&body).unwrap();
    assert_eq!(answer.warnings, 2);
}

#[test]
fn native_histograms_are_passed_over() {
    let matrix = data("matrix", r#"[{"metric":{},"histograms":[[1,{"count":"1"}]]}]"#);
    assert!(decode(&matrix).unwrap().series[0].samples.is_empty());
    let vector = data("vector", r#"[{"metric":{},"histogram":[1,{"count":"1"}]}]"#);
    assert!(decode(&vector).unwrap().series.is_empty());
}

#[test]
fn what_does_not_have_the_shape_is_a_bad_body() {
    for body in [
        "".to_owned(),
        "null".to_owned(),
        "[]".to_owned(),
        r#"{"status":"success"}"#.to_owned(),
        r#"{"status":"odd","data":{"resultType":"vector","result":[]}}"#.to_owned(),
        r#"{"data":{"resultType":"vector","result":[]}}"#.to_owned(),
        data("vector", "[]") + "x",
        data("table", "[]"),
        data("string", r#"[1,"a"]"#),
        data("vector", "{}"),
        data("vector", r#"[{"value":[1,"1"]}]"#),
        data("vector", r#"[{"metric":{},"value":[1,1]}]"#),
        data("vector", r#"[{"metric":{},"value":[1,"one"]}]"#),
        data("vector", r#"[{"metric":{},"value":[1,""]}]"#),
        data("vector", r#"[{"metric":{},"value":[1]}]"#),
        data("vector", r#"[{"metric":{},"value":[1,"1",2]}]"#),
        data("vector", r#"[{"metric":{},"value":["1","1"]}]"#),
        data("vector", r#"[{"metric":{},"value":[-1,"1"]}]"#),
        data("vector", r#"[{"metric":{},"value":[1e300,"1"]}]"#),
        data("vector", r#"[{"metric":{"a":1},"value":[1,"1"]}]"#),
        data("matrix", &"[".repeat(100_000)),
    ] {
        let error = decode(&body).unwrap_err();
        let start: String = body.chars().take(80).collect();
        assert!(matches!(error, Error::BadBody { .. }), "{start}: {error:?}");
    }
}

#[test]
fn too_many_series_are_refused_rather_than_cut() {
    let series = |n: usize| {
        let one = r#"{"metric":{},"values":[]}"#;
        decode(&data("matrix", &format!("[{}]", vec![one; n].join(","))))
    };
    assert_eq!(series(MAX_SERIES).unwrap().series.len(), MAX_SERIES);
    let error = series(MAX_SERIES + 1).unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: 100_000, unit: "series" }), "{error:?}");
}

proptest! {
    #[test]
    fn any_bytes_give_an_answer_or_an_error(
        position in 0_usize..200,
        bytes in proptest::collection::vec(any::<u8>(), 0..8),
    ) {
        let mut body = data("matrix", r#"[{"metric":{"a":"b"},"values":[[1,"2"]]}]"#).into_bytes();
        let position = position.min(body.len());
        let end = (position + bytes.len()).min(body.len());
        body.splice(position..end, bytes);
        // Whatever is taken for a sample has a time that can be counted in milliseconds.
        for series in answer(&body).map(|answer| answer.series).unwrap_or_default() {
            prop_assert!(series.samples.iter().all(|sample| sample.at.0 >= 0));
        }
    }
}
