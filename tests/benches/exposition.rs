//! Throughput of the metric-page reader on a page captured from vLLM 0.32 with a queue.
//!
//! `lines` only finds the line ends: the ceiling of any reader of lines. `skip` wants no name, as a
//! page of another program; `engine` makes the whole sample, in one piece and in the pieces in
//! which a body arrives.

use std::hint::black_box;
use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ghostscaler::decision::Moment;
use ghostscaler::signals::engine::{EngineReader, Filter};
use ghostscaler::signals::exposition::{Parser, Sample, Sink};

/// Where the captured pages are; see `GHOSTSCALER_FIXTURES`.
const FIXTURES: &str = match option_env!("GHOSTSCALER_FIXTURES") {
    Some(path) => path,
    None => concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/fixtures"),
};

/// A TCP segment's payload.
const SMALL_CHUNK_BYTES: usize = 1_448;
/// A buffer of an HTTP client.
const LARGE_CHUNK_BYTES: usize = 16_384;

struct WantsNothing;

impl Sink for WantsNothing {
    type Wanted = ();

    fn wants(&self, _name: &[u8]) -> Option<()> {
        None
    }

    fn sample(&mut self, (): (), _sample: Sample<'_>) {}

    fn declared(&mut self, (): (), _name: &str) {}
}

fn read_engine(page: &[u8], chunk_bytes: usize) {
    let filter = Filter::default();
    let mut reader = EngineReader::new(&filter);
    for chunk in page.chunks(chunk_bytes) {
        reader.push(black_box(chunk)).expect("a captured page is readable");
    }
    black_box(reader.finish(Moment(0)).expect("a captured page is an engine's"));
}

fn exposition(c: &mut Criterion) {
    let path = Path::new(FIXTURES).join("vllm/metrics-queued.txt");
    let page = std::fs::read(path).expect("GHOSTSCALER_FIXTURES names the captured pages");
    let mut group = c.benchmark_group("exposition");
    group.throughput(Throughput::Bytes(page.len() as u64));
    group.bench_function("lines", |b| {
        b.iter(|| memchr::memchr_iter(b'\n', black_box(&page)).count());
    });
    group.bench_function("skip", |b| {
        b.iter(|| {
            let mut parser = Parser::default();
            parser.push(black_box(&page), &mut WantsNothing).expect("a captured page is readable");
            parser.finish().expect("a captured page is whole");
        });
    });
    group.bench_function("engine", |b| b.iter(|| read_engine(&page, page.len())));
    group.bench_function("engine_in_16_kib", |b| b.iter(|| read_engine(&page, LARGE_CHUNK_BYTES)));
    group.bench_function("engine_in_segments", |b| {
        b.iter(|| read_engine(&page, SMALL_CHUNK_BYTES));
    });
    group.finish();
}

criterion_group!(benches, exposition);
criterion_main!(benches);
