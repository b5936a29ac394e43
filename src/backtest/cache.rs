//! What has been fetched, in files of a directory, so that nothing is asked for twice.
//!
//! Must not fail a run: what cannot be read is fetched again, what cannot be written is not kept.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::span::Span;
use crate::decision::Moment;
use crate::files;
use crate::source::prometheus::{Labels, Sample, Series};

/// Goes up when the form of a file changes.
const VERSION: u32 = 1;
/// Largest file that is read: twice the largest answer of Prometheus.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// A directory of answers.
#[derive(Debug, Clone)]
pub struct Cache {
    dir: PathBuf,
}

/// What an answer is known by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Key {
    version: u32,
    url: String,
    query: String,
    from_ms: i64,
    to_ms: i64,
    step_ms: u64,
}

/// A file: its second line. The first is the checksum of the second.
#[derive(Serialize, Deserialize)]
struct Entry {
    key: Key,
    series: Vec<Kept>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    labels: Labels,
    /// Milliseconds, as differences to the one before.
    at: Vec<i64>,
    /// `null` where it is no JSON number, which nothing here could use.
    values: Vec<Option<f64>>,
}

impl Key {
    pub(super) fn new(url: &str, query: &str, span: &Span) -> Key {
        Key {
            version: VERSION,
            url: url.to_owned(),
            query: query.to_owned(),
            from_ms: span.from.0,
            to_ms: span.to.0,
            step_ms: span.step_ms,
        }
    }
}

impl Cache {
    /// The cache in this directory, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn open(dir: &Path) -> std::io::Result<Cache> {
        fs::create_dir_all(dir)?;
        Ok(Cache { dir: dir.to_owned() })
    }

    /// The answer, if it is kept whole.
    pub(super) fn read(&self, key: &Key) -> Option<Vec<Series>> {
        let text = files::read_text(&self.path(key), MAX_BYTES).ok()?;
        let (sum, body) = text.split_once('\n')?;
        if sum != checksum(body) {
            return None;
        }
        let entry: Entry = serde_json::from_str(body).ok()?;
        (entry.key == *key).then(|| entry.series.into_iter().map(Kept::into_series).collect())
    }

    /// Keeps an answer. The file is there whole or not at all.
    pub(super) fn write(&self, key: &Key, series: &[Series]) -> std::io::Result<()> {
        let entry =
            Entry { key: key.clone(), series: series.iter().map(Kept::of_series).collect() };
        let body = serde_json::to_string(&entry)?;
        let path = self.path(key);
        // Two runs at once write two files; the later one stays.
        let new = path.with_extension(format!("{}.new", std::process::id()));
        fs::write(&new, format!("{}\n{body}", checksum(&body)))?;
        fs::rename(new, path)
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.dir.join(format!("{}.json", hash_of(key)))
    }
}

impl Kept {
    fn of_series(series: &Series) -> Kept {
        let mut before = 0;
        let mut at = Vec::with_capacity(series.samples.len());
        for sample in &series.samples {
            at.push(sample.at.0 - before);
            before = sample.at.0;
        }
        let values = series.samples.iter().map(|sample| Some(sample.value)).collect();
        Kept { labels: series.labels.clone(), at, values }
    }

    fn into_series(self) -> Series {
        let mut at = 0_i64;
        let samples = self.at.iter().zip(&self.values).map(|(after, value)| {
            at = at.saturating_add(*after);
            Sample { at: Moment(at), value: value.unwrap_or(f64::NAN) }
        });
        let samples = samples.collect();
        Series { labels: self.labels, samples }
    }
}

fn hash_of(key: &Key) -> String {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Tells a damaged file from a whole one; nobody is kept from forging one.
fn checksum(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series() -> Vec<Series> {
        let labels: Labels = serde_json::from_str(r#"{"pod":"a","__name__":"x"}"#).unwrap();
        let values = [1.5, 0.1, 1e300, -3.0];
        let at = |i: usize| Moment(1_762_041_600_000 + 15_000 * i64::try_from(i).unwrap());
        let samples = values.iter().enumerate();
        let samples = samples.map(|(i, &value)| Sample { at: at(i), value }).collect();
        vec![Series { labels, samples }]
    }

    fn key(query: &str) -> Key {
        Key::new("http://a", query, &Span::new(Moment(0), Moment(60_000), Some(15_000)))
    }

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(&dir.path().join("deep/er")).unwrap();
        assert_eq!(cache.read(&key("up")), None);
        cache.write(&key("up"), &series()).unwrap();
        assert_eq!(cache.read(&key("up")), Some(series()));
        assert_eq!(cache.read(&key("down")), None);
    }

    #[test]
    fn a_damaged_file_is_no_answer() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        cache.write(&key("up"), &series()).unwrap();
        let path = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        let whole = fs::read_to_string(&path).unwrap();
        let half: String = whole.chars().take(whole.len() / 2).collect();
        for damaged in [half, whole.replace("1.5", "2.5"), String::new()] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(cache.read(&key("up")), None);
        }
        fs::write(&path, whole).unwrap();
        assert_eq!(cache.read(&key("up")), Some(series()));
    }
}
