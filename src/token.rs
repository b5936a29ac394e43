//! A file with a token, read anew at each use, so that a rotated one counts at once.
//!
//! Must not know what the token is for, nor let it out.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Mutex;

use crate::files::{self, MAX_KEY_BYTES};

/// A token file; clones share its one reader.
#[derive(Debug, Clone)]
pub(crate) struct TokenFile {
    path: PathBuf,
    turn: Arc<Mutex<()>>,
}

impl TokenFile {
    pub(crate) fn new(path: PathBuf) -> TokenFile {
        TokenFile { path, turn: Arc::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What the file holds now, up to [`MAX_KEY_BYTES`]. A disk may hang, so that whoever asks has to
    /// have a deadline; however many ask of one that hangs, one thread does.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is larger.
    pub(crate) async fn read(&self) -> io::Result<Vec<u8>> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            files::read(&path, MAX_KEY_BYTES)
        });
        read.await.map_err(io::Error::other).flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// A file whose reader waits for as long as the value lives, as on a disk that hangs.
    fn hanging(dir: &tempfile::TempDir) -> (PathBuf, std::fs::File) {
        let path = dir.path().join("token");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let writer = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        (path, writer)
    }

    #[tokio::test]
    async fn a_file_that_hangs_takes_one_thread_however_many_ask() {
        let dir = tempfile::tempdir().unwrap();
        let (path, writer) = hanging(&dir);
        let file = TokenFile::new(path);
        for _ in 0..20 {
            timeout(Duration::from_millis(10), file.read()).await.unwrap_err();
        }
        assert_eq!(
            Arc::strong_count(&file.turn),
            2,
            "besides the file itself, one read that hangs"
        );
        // When the disk comes back, so does the token.
        drop(writer);
        std::fs::remove_file(file.path()).unwrap();
        std::fs::write(file.path(), "token").unwrap();
        let read = timeout(Duration::from_secs(30), file.read()).await.unwrap();
        assert_eq!(read.unwrap(), b"token");
    }
}
