//! A gateway's own metrics page as a wake source.
//!
//! Must not follow the page from reading to reading: that is the memory's.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use super::template::{Subject, Template};
use super::{Demand, bounded, key};
use crate::signals::exposition::{Parser, Sample, Sink};
use crate::source::Error;
use crate::source::scrape::{Scraper, Target};
use crate::source::selector::LabelName;

/// Reads one metric of one page.
#[derive(Debug, Clone)]
pub(super) struct PageReader {
    pub(super) scraper: Scraper,
    pub(super) target: Target,
    pub(super) metric: String,
    pub(super) matchers: Vec<(LabelName, Template)>,
}

/// All series of the metric that have the matchers' labels, by these labels' values, so that a
/// workload's are found without a look at all others'.
#[derive(Debug, Default)]
pub(super) struct Page {
    by_values: HashMap<Vec<String>, BTreeMap<u64, f64>>,
    exists: bool,
}

impl PageReader {
    pub(super) async fn read(&self) -> Result<Page, Error> {
        let page = self.scraper.open(&self.target).await?;
        let mut parser = Parser::new(page.format());
        let mut wanted =
            Wanted { metric: &self.metric, matchers: &self.matchers, page: Page::default() };
        let read = page.read(|chunk| match parser.push(chunk, &mut wanted) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        });
        match read.await? {
            // Every gateway has some series of its own: nothing at all proves no zero.
            ControlFlow::Continue(0) => {
                return Err(Error::BadBody { what: "empty", expected: "the gateway's metrics" });
            }
            ControlFlow::Continue(_length) => parser.finish()?,
            ControlFlow::Break(error) => return Err(error.into()),
        }
        Ok(wanted.page)
    }

    /// The series that are this workload's.
    pub(super) fn demand(&self, page: &Page, subject: &Subject<'_>) -> Result<Demand, Error> {
        let values = self.matchers.iter().map(|(_, template)| template.render(subject));
        let values: Vec<String> = values.collect::<Result<_, Error>>()?;
        bounded(Demand {
            series: page.by_values.get(&values).cloned().unwrap_or_default(),
            exists: page.exists,
            gateway_answered: true,
            partial: false,
        })
    }
}

struct Wanted<'a> {
    metric: &'a str,
    matchers: &'a [(LabelName, Template)],
    page: Page,
}

impl Sink for Wanted<'_> {
    type Wanted = ();

    fn wants(&self, name: &[u8]) -> Option<()> {
        (name == self.metric.as_bytes()).then_some(())
    }

    fn sample(&mut self, (): (), sample: Sample<'_>) {
        self.page.exists = true;
        let labels: BTreeMap<&str, _> = sample.labels.collect();
        let value_of = |(label, _): &(LabelName, Template)| {
            labels.get(label.as_str()).map(|value| value.clone().into_owned())
        };
        if let Some(values) = self.matchers.iter().map(value_of).collect::<Option<Vec<String>>>() {
            let series = self.page.by_values.entry(values).or_default();
            series.insert(key(labels.iter()), sample.value);
        }
    }

    fn declared(&mut self, (): (), _name: &str) {
        self.page.exists = true;
    }
}
