//! Files that a person names: read whole, up to a bound, never waiting for a writer that is not there.
//!
//! Must not know what is in them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_setfl};

/// Most bytes of a token or key: the longest that servers take as a header have some 8 KiB.
pub const MAX_KEY_BYTES: u64 = 64 << 10;
/// Most bytes of certificates: all authorities of a system have some 250 KB.
pub const MAX_PEM_BYTES: u64 = 4 << 20;
/// Most bytes of a document: a rendered chart of a whole platform has some hundred kilobytes.
pub const MAX_DOCUMENT_BYTES: u64 = 20 << 20;

/// Opens a file to read it. A pipe without a writer reads as empty, rather than to wait for one.
///
/// # Errors
///
/// When it cannot be opened, or is a directory.
pub fn open(path: &Path) -> io::Result<File> {
    let no_wait = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(no_wait).open(path)?;
    if file.metadata()?.is_dir() {
        let what = "it is a directory: expected a file";
        return Err(io::Error::new(io::ErrorKind::IsADirectory, what));
    }
    // From here on a writer that is there is waited for.
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Reads a file of at most `max_bytes`.
///
/// # Errors
///
/// When it cannot be read, is a directory, or is larger.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    bounded(open(path)?, max_bytes)
}

/// Reads a text of at most `max_bytes`.
///
/// # Errors
///
/// As [`read`], and when it is not in UTF-8.
pub fn read_text(path: &Path, max_bytes: u64) -> io::Result<String> {
    text(read(path, max_bytes)?)
}

/// Reads a text of at most `max_bytes` that can be read again: not a pipe or a device, which may
/// have nothing more to give.
///
/// # Errors
///
/// As [`read_text`], and when it is no regular file.
pub fn read_regular_text(path: &Path, max_bytes: u64) -> io::Result<String> {
    let file = open(path)?;
    if !file.metadata()?.is_file() {
        let what = "it is a pipe or a device: expected a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    text(bounded(file, max_bytes)?)
}

/// Checks that a result will have a place to go, before the work that it takes. What is in the file
/// stays.
///
/// # Errors
///
/// When the file cannot be written.
pub fn check_writable(path: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).open(path).map(drop)
}

/// Whether two names are those of one file, whether or not it is there. A device or a pipe, such as
/// `/dev/null`, is none: what goes in there does not take another's place.
#[must_use]
pub fn are_same(one: &Path, other: &Path) -> bool {
    match (std::fs::metadata(one), std::fs::metadata(other)) {
        (Ok(one), Ok(other)) => {
            one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino())
        }
        (Err(_), Err(_)) => place(one).is_some_and(|one| Some(one) == place(other)),
        (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
    }
}

/// Where a file would be that is not there.
fn place(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new(".")).canonicalize().ok()?;
    Some(folder.join(path.file_name()?))
}

/// Reads what comes, up to `max_bytes`.
///
/// # Errors
///
/// When it cannot be read, or is larger.
pub fn bounded(input: impl io::Read, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let n_read = input.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if n_read as u64 > max_bytes {
        let what = format!("it has more than {max_bytes} bytes: expected a smaller file");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let what = format!("it is no text in UTF-8 from byte {at} on: expected text");
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::process::Command;

    use super::*;

    fn fault(path: &Path, max_bytes: u64) -> String {
        read_text(path, max_bytes).unwrap_err().to_string()
    }

    #[test]
    fn a_file_is_read_whole_up_to_its_bound() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"0123456789").unwrap();
        assert_eq!(read_text(file.path(), 10).unwrap(), "0123456789");
        assert_eq!(fault(file.path(), 9), "it has more than 9 bytes: expected a smaller file");
    }

    #[test]
    fn a_device_without_an_end_is_too_large_and_one_without_a_beginning_is_empty() {
        let zero = fault(Path::new("/dev/zero"), MAX_KEY_BYTES);
        assert_eq!(zero, "it has more than 65536 bytes: expected a smaller file");
        assert_eq!(read_text(Path::new("/dev/null"), 1).unwrap(), "");
    }

    #[test]
    fn a_directory_and_what_is_no_text_are_told_as_such() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(fault(dir.path(), 9), "it is a directory: expected a file");
        let file = dir.path().join("latin");
        std::fs::write(&file, b"caf\xe9").unwrap();
        assert_eq!(fault(&file, 9), "it is no text in UTF-8 from byte 3 on: expected text");
        let missing = read(&dir.path().join("none"), 9).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_is_the_same_by_every_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a"), "x").unwrap();
        std::fs::write(path("b"), "x").unwrap();
        std::fs::hard_link(path("a"), path("hard")).unwrap();
        std::os::unix::fs::symlink(path("a"), path("soft")).unwrap();
        for (one, other, expected) in [
            ("a", "a", true),
            ("a", "../a", false),
            ("a", "hard", true),
            ("soft", "hard", true),
            ("a", "b", false),
            ("a", "new", false),
            ("new", "./new", true),
            ("new", "newer", false),
            ("no/new", "no/other", false),
        ] {
            assert_eq!(are_same(&path(one), &path(other)), expected, "{one} {other}");
        }
        assert!(!are_same(Path::new("/dev/null"), Path::new("/dev/null")));
    }

    #[test]
    fn a_pipe_is_read_to_its_end_and_is_empty_without_a_writer() {
        // What a shell makes of <(command).
        let (reader, mut writer) = io::pipe().unwrap();
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        let text = std::thread::spawn(move || read_text(Path::new(&path), 9));
        writer.write_all(b"tok").unwrap();
        writer.write_all(b"en").unwrap();
        drop(writer);
        assert_eq!(text.join().unwrap().unwrap(), "token");

        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert_eq!(read_text(&fifo, 9).unwrap(), "");

        let again = read_regular_text(&fifo, 9).unwrap_err().to_string();
        assert_eq!(again, "it is a pipe or a device: expected a regular file");
        let file = dir.path().join("file");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read_regular_text(&file, 9).unwrap(), "text");
    }
}
