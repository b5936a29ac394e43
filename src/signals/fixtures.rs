//! Captured pages of real servers, for tests.
//!
//! They lie outside the repository: a test whose page is absent says so past the harness's capture and
//! passes, and fails where `GHOSTSCALER_FIXTURES` says that they are there.

use std::io::Write as _;
use std::path::PathBuf;

/// The page at `path` below the directory that `GHOSTSCALER_FIXTURES` names, by default the sibling
/// `shared/fixtures` of the repository; `None`, and a line that says so, where it is absent.
pub(super) fn page(path: &str) -> Option<Vec<u8>> {
    #[expect(clippy::disallowed_methods, reason = "a test has no flags to read the path from")]
    let given = std::env::var("GHOSTSCALER_FIXTURES").ok().map(PathBuf::from);
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures");
    let file = given.clone().unwrap_or_else(beside).join(path);
    match std::fs::read(&file) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            let line = format!("skipped: {} cannot be read ({error})", file.display());
            assert!(given.is_none(), "{line}");
            // Not `eprintln`, which a passing test is not heard by.
            writeln!(std::io::stderr(), "{line}").unwrap();
            None
        }
    }
}
