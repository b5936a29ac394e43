//! Logs of the process: text or JSON lines on stderr, filtered by a directive.
//!
//! Must not decide what is logged elsewhere, and must not be set up twice in one process.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt as _;

pub use loadgen::stdio::ErrorChain;

/// What is logged unless told otherwise. The Kubernetes client reports each retry of an outage on its
/// own; `cluster` says it once, with the cause.
pub const DEFAULT_FILTER: &str = "info,kube_client=off,kube_runtime=off";

/// How a log line looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For a person: time, level, message, fields.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter directive is not one.
    #[error("log filter `{directive}` is none such as `info` or `ghostscaler=debug,info`")]
    Filter {
        /// As given.
        directive: String,
        /// What the parser says.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Another subscriber is already in place.
    #[error("logging is already set up")]
    AlreadySet(#[source] tracing_subscriber::util::TryInitError),
}

/// Sends the process's logs to stderr, so that stdout stays free for results.
///
/// `directive` follows `tracing`'s filter syntax (`info`, `ghostscaler=debug,info`).
///
/// # Errors
///
/// When the directive cannot be parsed or a subscriber is already in place.
pub fn init(format: Format, directive: &str) -> Result<(), Error> {
    let filter = EnvFilter::try_new(directive)
        .map_err(|source| Error::Filter { directive: directive.to_owned(), source })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match format {
        Format::Text => builder.finish().try_init(),
        Format::Json => builder.json().flatten_event(true).finish().try_init(),
    }
    .map_err(Error::AlreadySet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_is_refused_with_the_directive_in_the_text() {
        let error = init(Format::Text, "ghostscaler=loud").unwrap_err();
        let text = ErrorChain(&error).to_string();
        assert!(text.contains("`ghostscaler=loud`"), "{text}");
        assert_eq!(text.matches("expected").count(), 1, "{text}");
    }
}
