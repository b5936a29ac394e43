//! Captured pages of real servers, for tests.
//!
//! They lie outside the repository: a test whose page is absent says so and passes.

use std::path::PathBuf;

/// The page at `path` below the directory that `GHOSTSCALER_FIXTURES` names, by default the sibling
/// `shared/fixtures` of the repository; `None`, and a line that says so, where it is absent.
pub(super) fn page(path: &str) -> Option<Vec<u8>> {
    #[expect(clippy::disallowed_methods, reason = "a test has no flags to read the path from")]
    let root = std::env::var("GHOSTSCALER_FIXTURES").map_or_else(
        |_unset| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/fixtures"),
        PathBuf::from,
    );
    let file = root.join(path);
    match std::fs::read(&file) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            println!("skipped: {} cannot be read ({error})", file.display());
            None
        }
    }
}
