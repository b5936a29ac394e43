//! Prometheus's JSON as series of samples.
//!
//! Pure. Must not repeat text of an answer in an error, or take a number for what is none.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::EXPECTED;
use crate::decision::Moment;
use crate::source::{Error, QueryFault};

/// Most series of one answer: 50 namespaces of 40 pods with 50 series each.
pub(super) const MAX_SERIES: usize = 100_000;

/// What a query gave.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// The series; a scalar is one without labels.
    pub series: Vec<Series>,
    /// Warnings that came with it: the answer may be partial.
    pub warnings: usize,
    /// When it was sent, to the second, by the clock of whoever sent it: the answer's `Date`.
    pub told_at: Option<Moment>,
}

/// One series.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its labels, the metric's name among them as `__name__`.
    pub labels: Labels,
    /// Its samples, oldest first. Values may be NaN or infinite.
    pub samples: Vec<Sample>,
}

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// When it was taken, by Prometheus's clock.
    pub at: Moment,
    /// Its value; NaN and infinities are possible.
    pub value: f64,
}

/// Labels, sorted by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Vec<(Box<str>, Box<str>)>);

impl Labels {
    /// The value of a label; `None` if the series does not have it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let index = self.0.binary_search_by(|(have, _)| (**have).cmp(name)).ok()?;
        self.0.get(index).map(|(_, value)| &**value)
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// The same without those that `drop` names.
    #[must_use]
    pub fn without(mut self, drop: impl Fn(&str) -> bool) -> Labels {
        self.0.retain(|(name, _)| !drop(name));
        self
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// Decodes an answer with status 200.
pub(super) fn answer(body: &[u8]) -> Result<Answer, Error> {
    let bad = |what| Error::BadBody { what, expected: EXPECTED };
    let envelope: Envelope =
        serde_json::from_slice(body).map_err(|_syntax| bad("not JSON of this shape"))?;
    if envelope.status != Status::Success {
        return Err(query_fault(200, envelope.error_type));
    }
    let series = match envelope.data.ok_or_else(|| bad("without data"))? {
        Data::Vector(Bounded { items, whole }) => {
            check_series(whole)?;
            items
                .into_iter()
                .filter_map(|item| {
                    Some(Series { labels: item.metric, samples: vec![item.value?.0] })
                })
                .collect()
        }
        Data::Matrix(Bounded { items, whole }) => {
            check_series(whole)?;
            items
                .into_iter()
                .map(|item| Series {
                    labels: item.metric,
                    samples: item.values.into_iter().map(|sample| sample.0).collect(),
                })
                .collect()
        }
        Data::Scalar(sample) => {
            vec![Series { labels: Labels::default(), samples: vec![sample.0] }]
        }
        Data::String(_) => return Err(bad("a string")),
    };
    Ok(Answer { series, warnings: envelope.warnings.len(), told_at: None })
}

/// Names the fault of an answer with another status.
pub(super) fn fault(status: u16, body: &[u8]) -> Error {
    let error_type =
        serde_json::from_slice::<Envelope>(body).ok().and_then(|envelope| envelope.error_type);
    query_fault(status, error_type)
}

fn query_fault(status: u16, error_type: Option<ErrorType>) -> Error {
    let fault = match (error_type, status) {
        (Some(ErrorType::BadData), _) | (None, 400) => QueryFault::BadQuery,
        (Some(ErrorType::Execution), _) | (None, 422) => QueryFault::Execution,
        (Some(ErrorType::Timeout | ErrorType::Canceled), _) | (None, 504) => QueryFault::Timeout,
        (Some(ErrorType::Unavailable), _) | (None, 503) => QueryFault::Unavailable,
        (Some(ErrorType::Other) | None, _) => QueryFault::Other,
    };
    Error::Query { status, fault }
}

fn check_series(whole: bool) -> Result<(), Error> {
    if whole { Ok(()) } else { Err(Error::TooLarge { limit: MAX_SERIES as u64, unit: "series" }) }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    status: Status,
    #[serde(default)]
    data: Option<Data>,
    #[serde(default)]
    error_type: Option<ErrorType>,
    #[serde(default)]
    warnings: Vec<IgnoredAny>,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Status {
    Success,
    Error,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ErrorType {
    BadData,
    Execution,
    Timeout,
    Canceled,
    Unavailable,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
enum Data {
    Vector(Bounded<VectorItem>),
    Matrix(Bounded<MatrixItem>),
    Scalar(RawSample),
    String(IgnoredAny),
}

#[derive(Deserialize)]
struct VectorItem {
    metric: Labels,
    /// Absent where the sample is a native histogram, which nothing here reads.
    value: Option<RawSample>,
}

#[derive(Deserialize)]
struct MatrixItem {
    metric: Labels,
    /// Absent where all samples are native histograms.
    #[serde(default)]
    values: Vec<RawSample>,
}

/// A list of which no more than [`MAX_SERIES`] items are kept.
struct Bounded<T> {
    items: Vec<T>,
    whole: bool,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Bounded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
            type Value = Bounded<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of series")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Bounded<T>, A::Error> {
                let mut items = Vec::new();
                while items.len() < MAX_SERIES {
                    match list.next_element()? {
                        Some(item) => items.push(item),
                        None => return Ok(Bounded { items, whole: true }),
                    }
                }
                let mut whole = true;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    whole = false;
                }
                Ok(Bounded { items, whole })
            }
        }
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

/// `[seconds, "value"]`.
struct RawSample(Sample);

impl<'de> Deserialize<'de> for RawSample {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawSample, D::Error> {
        let (seconds, Number(value)) = <(f64, Number)>::deserialize(deserializer)?;
        let millis = (seconds * 1_000.0).round();
        // 2^53: beyond it a float is no exact count of milliseconds (and the year is 287396).
        if !(0.0..9_007_199_254_740_992.0).contains(&millis) {
            return Err(de::Error::custom("a timestamp out of range"));
        }
        #[expect(clippy::cast_possible_truncation, reason = "range checked just above")]
        Ok(RawSample(Sample { at: Moment(millis as i64), value }))
    }
}

/// A float as a string, as Go writes it.
struct Number(f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number as a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                text.parse().map(Number).map_err(|_not_a_number| E::custom("not a number"))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Labels, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Labels;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("labels")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(8));
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                pairs.sort_unstable();
                Ok(Labels(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

#[cfg(test)]
mod tests;
