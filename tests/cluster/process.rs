//! A program that runs in the background with its output in a file, and ends with its value.
//!
//! Must not outlive the tests, however they end.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use tokio::time::{Instant, sleep};

/// How long a program may take to end when asked to.
const END: Duration = Duration::from_secs(30);

/// The programs that run at present.
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn running() -> MutexGuard<'static, BTreeSet<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends every program and then the tests themselves when they are interrupted.
pub(crate) fn end_all_on_interrupt() {
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut terminate = signal(SignalKind::terminate()).unwrap();
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        });
        let pids: Vec<String> = running().iter().map(u32::to_string).collect();
        Command::new("kill").arg("-KILL").args(pids).status().ok();
        std::process::exit(130);
    });
}

/// A running program.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    /// Starts it; what it says is added to the file.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Process {
        let file = OpenOptions::new().create(true).append(true).open(log).unwrap();
        let error = file.try_clone().unwrap();
        Process::spawn(command.stdin(Stdio::null()).stdout(file).stderr(error))
    }

    /// Starts it with its standard output in one file and the rest in another.
    pub(crate) fn start_with_output(command: &mut Command, output: &Path, log: &Path) -> Process {
        let open = |path| OpenOptions::new().create(true).append(true).open(path).unwrap();
        Process::spawn(command.stdin(Stdio::null()).stdout(open(output)).stderr(open(log)))
    }

    fn spawn(command: &mut Command) -> Process {
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        running().insert(child.id());
        Process(child)
    }

    /// Sends a signal by its name, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let mut kill = Command::new("kill");
        // One that has ended already is as good.
        kill.args([&format!("-{name}"), &pid]).stderr(Stdio::null()).status().ok();
    }

    /// Asks it to end with a signal and waits for that.
    pub(crate) async fn end(mut self, signal: &str) {
        self.signal(signal);
        let until = Instant::now() + END;
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "{} does not end on {signal}", self.0.id());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
        running().remove(&self.0.id());
    }
}
