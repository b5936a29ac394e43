//! Reads the configuration file, at the start and whenever it changes or SIGHUP asks for it.
//!
//! A file that cannot be used changes nothing: the old configuration stays in force. Nor does one that
//! says nothing, or nothing of workloads where there were some: a full disk or a redirected command
//! leaves such files behind, and what it would drop is what everybody is answered for.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::{self, Config, MAX_FILE_BYTES, Says};
use crate::files;
use crate::shutdown::Reloads;
use crate::telemetry::ErrorChain;
use crate::tick::Parts;

/// How often the file is looked at. A mounted ConfigMap changes by a renamed link, which a watch on
/// the file itself would miss.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Reads and validates a file, and gives its text too; no file is an empty configuration.
pub(super) fn load(path: Option<&Path>) -> anyhow::Result<(Config, Option<String>)> {
    let Some(path) = path else { return Ok((Config::default(), None)) };
    let text = read(path)?;
    Ok((parse(path, &text)?, Some(text)))
}

fn read(path: &Path) -> anyhow::Result<String> {
    files::read_text(path, MAX_FILE_BYTES)
        .with_context(|| format!("the configuration {} cannot be read", path.display()))
}

/// As [`read`], but nothing that is read only once: a pipe without a writer would be an empty file.
fn read_again(path: &Path) -> anyhow::Result<String> {
    files::read_regular_text(path, MAX_FILE_BYTES)
        .with_context(|| format!("the configuration {} cannot be read", path.display()))
}

fn parse(path: &Path, text: &str) -> anyhow::Result<Config> {
    config::parse(text).with_context(|| format!("the configuration {} is wrong", path.display()))
}

/// Applies each new good version of the file until `stop`.
pub(super) async fn follow(
    path: PathBuf,
    mut reloads: Reloads,
    (mut current, text): (Config, Option<String>),
    in_cluster: bool,
    parts: Arc<Parts>,
    stop: CancellationToken,
) {
    let mut has_workloads = !in_cluster && !current.inventory.workloads.is_empty();
    // The registry has its own copy of each.
    current.inventory = Arc::default();
    let digest = text.as_deref().map(Digest::of);
    drop(text);
    let mut looks = Looks { in_force: digest, last: digest };
    loop {
        let asked = tokio::select! {
            () = stop.cancelled() => return,
            () = reloads.next() => true,
            () = sleep(LOOK_INTERVAL) => false,
        };
        let (file, only_files) = (path.clone(), !asked);
        // A pipe or a hanging disk must hold up nobody.
        let look = move || (!only_files || file.is_file()).then(|| read_again(&file));
        let Ok(Some(read)) = tokio::task::spawn_blocking(look).await else { continue };
        if !looks.is_news(read.as_deref().ok().map(Digest::of), asked) {
            continue;
        }
        let applied = read.and_then(|text| parse(&path, &text)).and_then(|new| {
            check_meant(&new, current.says, has_workloads)?;
            let will_have = !in_cluster && !new.inventory.workloads.is_empty();
            apply(new, &mut current, in_cluster, &parts)?;
            has_workloads = will_have;
            Ok(())
        });
        parts.metrics.config_reloaded(applied.is_ok());
        match applied {
            Ok(()) => info!(file = %path.display(), "configuration applied"),
            Err(error) => warn!(error = %ErrorChain(error.as_ref()), "the old configuration stays"),
        }
    }
}

/// What the file said; nothing where it could not be read.
struct Looks {
    /// What was applied or refused last.
    in_force: Option<Digest>,
    last: Option<Digest>,
}

/// Stands for a text of megabytes that is kept only to see whether it has changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Digest(u64);

impl Digest {
    fn of(text: &str) -> Digest {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Digest(hasher.finish())
    }
}

impl Looks {
    /// Whether this is to be applied. Unasked, only what two looks have found: half of a file that is
    /// being written must not be taken for all of it.
    fn is_news(&mut self, found: Option<Digest>, asked: bool) -> bool {
        let is_settled = self.last == found;
        self.last = found;
        let is_news = asked || is_settled && self.in_force != found;
        if is_news {
            self.in_force = found;
        }
        is_news
    }
}

/// Refuses a file that says less than anybody would write who meant it.
fn check_meant(new: &Config, old: Says, has_workloads: bool) -> anyhow::Result<()> {
    let remedy = "if none are meant, write `workloads: []`";
    if new.says == Says::Nothing && old > Says::Nothing {
        bail!("it is empty: {remedy}");
    }
    if new.says == Says::NoWorkloads && has_workloads {
        bail!("it no longer says which workloads there are: {remedy}");
    }
    Ok(())
}

fn apply(new: Config, current: &mut Config, in_cluster: bool, parts: &Parts) -> anyhow::Result<()> {
    if (new.grpc_address, new.http_address) != (current.grpc_address, current.http_address) {
        warn!("listen addresses change with the next start only");
    }
    let upstreams = parts.upstreams.load();
    let upstreams = upstreams.changed_to(&new, &parts.scraper, &parts.metrics, parts.clock)?;
    parts.upstreams.store(Arc::new(upstreams));
    if !in_cluster {
        let dated = new.inventory.dated(&parts.registry.inventory(), parts.clock.now());
        parts.registry.set_inventory(Arc::new(dated));
    }
    *current = Config { inventory: Arc::default(), ..new };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_says_less_than_it_did_is_refused_unless_it_says_so() {
        let is_meant = |text: &str, old: Says, has_workloads| {
            check_meant(&config::parse(text).unwrap(), old, has_workloads).is_ok()
        };
        assert!(!is_meant("", Says::Workloads, true));
        assert!(!is_meant("# nothing\n", Says::NoWorkloads, false), "in a cluster");
        assert!(!is_meant("grpcAddress: ':1'", Says::Workloads, true));
        assert!(is_meant("workloads: []", Says::Workloads, true));
        assert!(is_meant("grpcAddress: ':1'", Says::Workloads, false), "in a cluster");
        assert!(is_meant("", Says::Nothing, false), "as it was");
    }

    #[test]
    fn half_a_file_is_not_applied_and_each_settled_change_is_once() {
        let digest = |text: &str| Some(Digest::of(text));
        let mut looks = Looks { in_force: digest("old"), last: digest("old") };
        let mut is_news = |found: &str, asked| looks.is_news(digest(found), asked);
        assert!(!is_news("old", false));
        // Emptied and written again between three looks.
        assert!(!is_news("", false));
        assert!(!is_news("new", false));
        assert!(is_news("new", false));
        assert!(!is_news("new", false), "once");
        assert!(is_news("newer", true), "asked for, at once");
        assert!(is_news("newer", true), "and as often as that");
        assert!(!is_news("newer", false));
    }
}
