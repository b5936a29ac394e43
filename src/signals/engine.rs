//! An engine's page, or its series from Prometheus, as one [`EngineSample`].
//!
//! Engines and versions are recognised by the series present, never by configuration; a number
//! that the engine does not tell stays `None` and never becomes zero.

mod about;
mod fold;
mod totals;

use loadgen::series as profile;

use crate::decision::{EngineSample, Moment, Why};
use crate::signals::exposition::{self, Format, Parser, Sample, Sink};
use crate::trigger::EngineFamily;

pub use about::{About, Checked, Evidence};
pub use fold::SeriesFold;

/// What to read of what an endpoint says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only series of this model (their `model_name`; LoRA adapters count under their base model).
    /// Series without that label count always.
    pub model_name: Option<Box<str>>,
    /// Only this family; `None` takes the one whose series are there.
    pub family: Option<EngineFamily>,
}

/// Reads one page of an engine, fed in pieces.
#[derive(Debug)]
pub struct EngineReader<'f> {
    parser: Parser,
    series: PageSeries<'f>,
}

/// The series of a page, as the parser hands them on.
#[derive(Debug)]
struct PageSeries<'f>(SeriesFold<'f>);

impl<'f> EngineReader<'f> {
    /// A reader for one page in the text format.
    #[must_use]
    pub fn new(filter: &'f Filter) -> EngineReader<'f> {
        EngineReader { parser: Parser::default(), series: PageSeries(SeriesFold::new(filter)) }
    }

    /// The same reader for a page in this format.
    #[must_use]
    pub fn with_format(self, format: Format) -> EngineReader<'f> {
        EngineReader { parser: Parser::new(format), ..self }
    }

    /// Reads the next piece of the page.
    ///
    /// # Errors
    ///
    /// When the page is no metrics page or breaks a bound: the rest of it need not be fetched.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), PageError> {
        Ok(self.parser.push(chunk, &mut self.series)?)
    }

    /// Ends the page. `at` is the sample's time, unless the page has timestamps of its own.
    ///
    /// # Errors
    ///
    /// When the page was cut off or unreadable, or no known engine's sample is in it.
    pub fn finish(self, at: Moment) -> Result<EnginePage, PageError> {
        self.parser.finish()?;
        self.series.0.close(at)
    }
}

impl Sink for PageSeries<'_> {
    type Wanted = fold::Wanted;

    fn wants(&self, name: &[u8]) -> Option<fold::Wanted> {
        SeriesFold::look_up(name)
    }

    fn sample(&mut self, wanted: fold::Wanted, sample: Sample<'_>) {
        self.0.take(wanted, sample.labels, sample.value, sample.at_ms.map(Moment));
    }

    fn declared(&mut self, wanted: fold::Wanted, _name: &str) {
        self.0.declare(wanted);
    }
}

/// What an endpoint said.
#[derive(Debug, Clone, PartialEq)]
pub struct EnginePage {
    /// The engine's family.
    pub family: EngineFamily,
    /// Its numbers.
    pub sample: EngineSample,
    /// Series came in copies, as of two Prometheus or two scrape jobs: of each the newest counts.
    pub copied: bool,
}

/// Every metric name that a Prometheus query has to select for [`SeriesFold`], in each spelling.
#[must_use]
pub fn prometheus_names() -> Vec<String> {
    let mut names = Vec::new();
    for profile in profile::PROFILES {
        for name in profile.names() {
            names.extend(profile.prefixes.iter().map(|prefix| format!("{prefix}{name}")));
        }
    }
    names
}

/// The live pod that a series' `pod` label names: itself, or itself without the `-rank-N` that some
/// routers append.
#[must_use]
pub fn joined_pod(label: &str, is_live: impl Fn(&str) -> bool) -> Option<&str> {
    if is_live(label) {
        return Some(label);
    }
    let (pod, rank) = label.rsplit_once("-rank-")?;
    let numbered = !rank.is_empty() && rank.bytes().all(|b| b.is_ascii_digit());
    (numbered && is_live(pod)).then_some(pod)
}

/// Why an endpoint's page or series give no sample.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PageError {
    /// The page cannot be read.
    #[error(transparent)]
    Unreadable(#[from] exposition::Error),
    /// No series of a known engine, or none of the family asked for.
    #[error(
        "no known engine's series: expected those of vLLM, SGLang, TGI, TensorRT-LLM, Triton, \
         llama.cpp, LMDeploy or NIM"
    )]
    NoKnownSeries,
    /// Series of a router, which repeat its engines' names.
    #[error("the series are a router's, not an engine's")]
    Router,
    /// A known engine that serves another model.
    #[error("`modelName` is {wanted:?}: expected the engine's {found:?}")]
    OtherModel {
        /// The model asked for.
        wanted: Box<str>,
        /// A model that the engine serves.
        found: Box<str>,
    },
    /// An impossible load: requests waiting or running.
    #[error("`{name}` is {value}: expected a number of requests")]
    Impossible {
        /// The metric, without prefix.
        name: &'static str,
        /// Its value.
        value: f64,
    },
}

impl PageError {
    /// The reason that a reading carries.
    #[must_use]
    pub fn why(&self) -> Why {
        match self {
            PageError::Unreadable(error) => error.why(),
            PageError::NoKnownSeries | PageError::Router | PageError::OtherModel { .. } => {
                Why::NoKnownSeries
            }
            PageError::Impossible { .. } => Why::Impossible,
        }
    }
}

#[cfg(test)]
mod tests;
