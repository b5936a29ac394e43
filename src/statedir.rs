//! `--state-dir`: what was learned of each workload, kept over restarts in one file.
//!
//! Must never stop a start: a file that is damaged, too large or of a newer version is set aside
//! and told, and what it held is learned again.
//!
//! The file is a header line, one JSON line a tracker, and a footer line with the number of
//! trackers and a checksum over everything before it. It is written beside the old one, synced and
//! renamed, so a crash leaves the old one or the new one, whole.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::decision::{Moment, State};
use crate::files;
use crate::inventory::{Names, WorkloadKey};
use crate::registry::TrackerKey;

/// The version of the file that this binary writes and reads.
pub const VERSION: u32 = 1;

/// Longest time between two saves.
pub const SAVE_INTERVAL_MS: u64 = 300_000;

/// Time from the start to the first save: the first ticks have been then.
const FIRST_SAVE_MS: u64 = 15_000;

/// Longest line. A state is meant to stay below 8 KiB; the 1,024 engines that it may remember take
/// some 1.2 KiB each, and as much again to spare.
const MAX_LINE_BYTES: u64 = 3 * 1024 * 1024;

/// Largest file that is read: the 50,000 trackers of the registry at 8 KiB, and as much again.
const MAX_FILE_BYTES: u64 = 800 * 1024 * 1024;

/// Most damaged files that are kept; then the last one is overwritten.
const MAX_SET_ASIDE: u32 = 9;

const FILE: &str = "state.jsonl";
const NEW_FILE: &str = "state.jsonl.new";

/// The directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be created or written to.
    #[error(
        "state directory `{}` cannot be written to: expected a directory in which this process may \
         make files",
        path.display()
    )]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The state cannot be written.
    #[error(
        "state file `{}` cannot be written: make room there, or allow this process to make files",
        path.display()
    )]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A directory that keeps states.
#[derive(Debug, Clone)]
pub struct StateDir {
    dir: PathBuf,
    /// Held while saving: there is one new file.
    saving: Arc<Mutex<()>>,
}

/// What came back at the start.
#[derive(Debug, Default)]
pub struct Restored {
    /// When it was saved; `None` when there was nothing.
    pub saved_at: Option<Moment>,
    /// The states, as they were saved.
    pub states: Vec<(TrackerKey, State)>,
    /// Why the file was set aside, if it was.
    pub damage: Option<Damage>,
}

/// What is wrong with a file that was set aside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// It is larger than any that this process could have written.
    #[error("larger than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    /// Another version wrote it.
    #[error("version {0}, expected {VERSION}")]
    Version(u32),
    /// A line is not what it should be.
    #[error("line {0} is damaged")]
    Line(u64),
    /// The end is missing.
    #[error("cut off after line {0}")]
    CutOff(u64),
    /// The checksum or the number of trackers does not fit.
    #[error("checksum or count does not fit")]
    Checksum,
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(io::ErrorKind),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    ghostscaler_state: u32,
    saved_at: Moment,
}

#[derive(Serialize)]
struct EntryOut<'a> {
    namespace: &'a str,
    name: &'a str,
    trigger: u64,
    state: &'a State,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryIn {
    namespace: String,
    name: String,
    trigger: u64,
    state: State,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Footer {
    trackers: u64,
    checksum: u64,
}

impl StateDir {
    /// Uses a directory, creating it if it is not there.
    ///
    /// # Errors
    ///
    /// When it cannot be created or written to: better told at the start than five minutes later.
    pub fn open(dir: &Path) -> Result<StateDir, Error> {
        let failed = |source| Error::Directory { path: dir.to_owned(), source };
        fs::create_dir_all(dir).map_err(failed)?;
        let new_path = dir.join(NEW_FILE);
        File::create(&new_path).and_then(|_| fs::remove_file(new_path)).map_err(failed)?;
        Ok(StateDir { dir: dir.to_owned(), saving: Arc::default() })
    }

    /// Reads what was saved. Never fails: what cannot be used is set aside with a warning.
    #[must_use]
    pub fn restore(&self) -> Restored {
        let path = self.dir.join(FILE);
        let file = match files::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Restored::default(),
            Err(error) => return self.set_aside(Damage::Unreadable(error.kind())),
        };
        match file.metadata() {
            Ok(metadata) if metadata.len() > MAX_FILE_BYTES => self.set_aside(Damage::TooLarge),
            Ok(_) => read(BufReader::new(file)).unwrap_or_else(|damage| self.set_aside(damage)),
            Err(error) => self.set_aside(Damage::Unreadable(error.kind())),
        }
    }

    /// Replaces what is saved. Blocks on the disk: call it where nothing waits.
    ///
    /// Returns the number of bytes written.
    ///
    /// # Errors
    ///
    /// When the new file cannot be written whole; the old one then stays.
    pub fn save<'a>(
        &self,
        now: Moment,
        states: impl IntoIterator<Item = (&'a TrackerKey, &'a State)>,
    ) -> Result<u64, Error> {
        // A last save can begin while another is still on its way to the disk.
        let _one = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let (path, new_path) = (self.dir.join(FILE), self.dir.join(NEW_FILE));
        let saved = write_new(&new_path, now, states)
            .and_then(|bytes| fs::rename(&new_path, &path).map(|()| bytes));
        if saved.is_err() {
            // Half a file would only take room on a disk that may have none.
            fs::remove_file(&new_path).ok();
        }
        // The rename itself must survive a power cut too.
        let synced = |bytes| File::open(&self.dir)?.sync_all().map(|()| bytes);
        saved.and_then(synced).map_err(|source| Error::Write { path, source })
    }

    fn set_aside(&self, damage: Damage) -> Restored {
        let path = self.dir.join(FILE);
        let aside = (1..=MAX_SET_ASIDE)
            .map(|n| self.dir.join(format!("{FILE}.damaged-{n}")))
            .find(|aside| !aside.exists())
            .unwrap_or_else(|| self.dir.join(format!("{FILE}.damaged-{MAX_SET_ASIDE}")));
        match fs::rename(&path, &aside) {
            Ok(()) => tracing::warn!(
                file = %path.display(), set_aside = %aside.display(), %damage,
                "saved state not used; it is learned again"
            ),
            Err(error) => tracing::warn!(
                file = %path.display(), %damage, %error,
                "saved state not used and not set aside; the next save replaces it"
            ),
        }
        Restored { damage: Some(damage), ..Restored::default() }
    }
}

/// Milliseconds to wait before each save: what was learned in the first minutes is most of what there
/// is, so a restart loses at most half of the process's life, and never more than five minutes.
pub fn save_intervals_ms() -> impl Iterator<Item = u64> {
    std::iter::successors(Some(FIRST_SAVE_MS), |last| Some((2 * last).min(SAVE_INTERVAL_MS)))
}

fn write_new<'a>(
    path: &Path,
    now: Moment,
    states: impl IntoIterator<Item = (&'a TrackerKey, &'a State)>,
) -> io::Result<u64> {
    let mut writer = Checked::new(BufWriter::new(File::create(path)?));
    let bytes = write(&mut writer, now, states)?;
    writer.inner.into_inner()?.sync_all()?;
    Ok(bytes)
}

/// What a file holds, as text: for wherever else states are kept.
#[must_use]
pub fn encode<'a>(
    now: Moment,
    states: impl IntoIterator<Item = (&'a TrackerKey, &'a State)>,
) -> String {
    let mut writer = Checked::new(Vec::new());
    // Memory takes everything, and what is written is text.
    drop(write(&mut writer, now, states));
    String::from_utf8(writer.inner).unwrap_or_default()
}

/// Reads what [`encode`] has written.
///
/// # Errors
///
/// When it is not whole, or of another version.
pub fn decode(text: &[u8]) -> Result<Restored, Damage> {
    read(text)
}

/// The checksum that a file carries.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    fnv(FNV_OFFSET, bytes)
}

fn write<'a, W: Write>(
    writer: &mut Checked<W>,
    now: Moment,
    states: impl IntoIterator<Item = (&'a TrackerKey, &'a State)>,
) -> io::Result<u64> {
    writer.line(&Header { ghostscaler_state: VERSION, saved_at: now })?;
    let mut trackers = 0;
    for (key, state) in states {
        let Names { namespace, name } = &*key.workload;
        writer.line(&EntryOut { namespace, name, trigger: key.trigger, state })?;
        trackers += 1;
    }
    writer.line(&Footer { trackers, checksum: writer.checksum })?;
    Ok(writer.n_bytes)
}

fn read(mut file: impl BufRead) -> Result<Restored, Damage> {
    let mut restored = Restored::default();
    let mut checksum = FNV_OFFSET;
    let (mut line, mut number, mut skipped) = (Vec::new(), 0_u64, 0_u64);
    let mut ended = false;
    loop {
        line.clear();
        let read = (&mut file).take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
        match read {
            Err(error) => return Err(Damage::Unreadable(error.kind())),
            Ok(0) if ended => return Ok(restored),
            Ok(0) => return Err(Damage::CutOff(number)),
            Ok(_) => number += 1,
        }
        if line.last() != Some(&b'\n') {
            return Err(Damage::CutOff(number));
        }
        if ended {
            return Err(Damage::Line(number));
        }
        if number == 1 {
            let header: Header =
                serde_json::from_slice(&line).map_err(|_no_header| Damage::Line(number))?;
            if header.ghostscaler_state != VERSION {
                return Err(Damage::Version(header.ghostscaler_state));
            }
            restored.saved_at = Some(header.saved_at);
        } else if let Ok(entry) = serde_json::from_slice::<EntryIn>(&line) {
            let workload = WorkloadKey::new(&entry.namespace, &entry.name);
            restored.states.push((TrackerKey { workload, trigger: entry.trigger }, entry.state));
        } else if let Ok(footer) = serde_json::from_slice::<Footer>(&line) {
            let trackers = u64::try_from(restored.states.len()).ok();
            if footer.checksum != checksum || Some(footer.trackers) != trackers.map(|n| n + skipped)
            {
                return Err(Damage::Checksum);
            }
            ended = true;
        } else {
            // The checksum tells damage; a state of another shape is that one workload's loss.
            skipped += 1;
        }
        checksum = fnv(checksum, &line);
    }
}

/// Counts and sums what is written.
struct Checked<W> {
    inner: W,
    checksum: u64,
    n_bytes: u64,
    line: Vec<u8>,
}

impl<W: Write> Checked<W> {
    fn new(inner: W) -> Checked<W> {
        Checked { inner, checksum: FNV_OFFSET, n_bytes: 0, line: Vec::new() }
    }

    fn line(&mut self, content: &impl Serialize) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, content)?;
        self.line.push(b'\n');
        self.checksum = fnv(self.checksum, &self.line);
        self.n_bytes += u64::try_from(self.line.len()).unwrap_or(u64::MAX);
        self.inner.write_all(&self.line)
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// FNV-1a, 64 bits: the file guards against a torn write and a flipped bit, not against somebody
/// who can write to the directory, so five lines do what a crate would.
fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME))
}

#[cfg(test)]
mod tests;
