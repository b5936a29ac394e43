//! `kubectl` of the cluster, as a person would use it.
//!
//! Must not be used in a loop: a call takes a tenth of a second of a core.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The program and whose rights it has.
#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    pub(crate) program: PathBuf,
    pub(crate) kubeconfig: PathBuf,
}

impl Kubectl {
    /// Runs it; what it says either way.
    pub(crate) fn try_run(&self, words: &[&str]) -> Result<String, String> {
        said(self.command(words).output().unwrap())
    }

    /// Runs it; it must do what it is told.
    pub(crate) fn run(&self, words: &[&str]) -> String {
        self.try_run(words).unwrap_or_else(|error| panic!("kubectl {}: {error}", words.join(" ")))
    }

    /// Runs it with a text as its input.
    pub(crate) fn try_run_with(&self, words: &[&str], input: &str) -> Result<String, String> {
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        said(child.wait_with_output().unwrap())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(words);
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        command
    }
}

fn said(output: Output) -> Result<String, String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}
