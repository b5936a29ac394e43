//! A gateway's own metrics page as a wake source.
//!
//! Must not follow the page from reading to reading: that is the memory's.

use std::collections::BTreeMap;
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

/// All series of the metric.
#[derive(Debug)]
pub(super) struct Page {
    series: Vec<(BTreeMap<String, String>, f64)>,
    exists: bool,
}

impl PageReader {
    pub(super) async fn read(&self) -> Result<Page, Error> {
        let page = self.scraper.open(&self.target).await?;
        let mut parser = Parser::new(page.format());
        let mut wanted =
            Wanted { metric: &self.metric, page: Page { series: Vec::new(), exists: false } };
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
        let mut expected = Vec::with_capacity(self.matchers.len());
        for (label, template) in &self.matchers {
            expected.push((label.as_str(), template.render(subject)?));
        }
        let is_ours = |labels: &BTreeMap<String, String>| {
            expected.iter().all(|(label, value)| labels.get(*label) == Some(value))
        };
        let ours = page.series.iter().filter(|(labels, _)| is_ours(labels));
        bounded(Demand {
            series: ours.map(|(labels, value)| (key(labels.iter()), *value)).collect(),
            exists: page.exists,
            gateway_answered: true,
            partial: false,
        })
    }
}

struct Wanted<'a> {
    metric: &'a str,
    page: Page,
}

impl Sink for Wanted<'_> {
    type Wanted = ();

    fn wants(&self, name: &[u8]) -> Option<()> {
        (name == self.metric.as_bytes()).then_some(())
    }

    fn sample(&mut self, (): (), sample: Sample<'_>) {
        let labels =
            sample.labels.map(|(name, value)| (name.to_owned(), value.into_owned())).collect();
        self.page.series.push((labels, sample.value));
        self.page.exists = true;
    }

    fn declared(&mut self, (): (), _name: &str) {
        self.page.exists = true;
    }
}
