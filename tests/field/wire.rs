//! The cases that are about the wire: a whole scaler in this process, on real sockets.
//!
//! Must not fake anything but the other end: engines, exporters, a Prometheus, a gateway, KEDA.

mod engines;
mod gateway;
mod gpus;
mod keda;
mod prometheus;
mod scaler;
mod upstream;
#[path = "../support/wait.rs"]
mod wait;

use std::future::Future;
use std::time::Duration;

use libtest_mimic::Trial;

use wait::eventually;

/// Long enough for a machine under load, short enough to see a hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// All of them.
pub(crate) fn trials() -> Vec<Trial> {
    [engines::trials(), prometheus::trials(), gpus::trials(), gateway::trials(), keda::trials()]
        .into_iter()
        .flatten()
        .collect()
}

/// One case, on a runtime of its own.
fn trial<F>(name: &str, case: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()>,
{
    Trial::test(name, move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(soon(case()));
        Ok(())
    })
}

/// Waits for something that must come.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it comes within the patience of a test")
}
