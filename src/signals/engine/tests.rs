use super::*;
use crate::signals::fixtures;

mod captured;

/// Reads a page in one piece at moment 0.
fn read(page: &[u8]) -> Result<EnginePage, PageError> {
    read_as(page, &Filter::default(), Format::Text)
}

fn read_as(page: &[u8], filter: &Filter, format: Format) -> Result<EnginePage, PageError> {
    let mut reader = EngineReader::new(filter).with_format(format);
    reader.push(page)?;
    reader.finish(Moment(0))
}

fn sample(page: &str) -> EngineSample {
    read(page.as_bytes()).unwrap().sample
}
