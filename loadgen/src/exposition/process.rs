//! What every Python process shows of itself; a page with one API server begins with it.
//!
//! Must not look at this process: the numbers are those of a plausible `vllm serve`.

use super::Server;
use super::render::{Kind, Page};

const GENERATIONS: [&str; 3] = ["0", "1", "2"];

/// What vLLM 0.32 with a tiny model showed after some requests, rounded.
const COLLECTED: [f64; 3] = [13_700.0, 2_200.0, 735.0];
const COLLECTIONS: [f64; 3] = [1_780.0, 162.0, 11.0];
const VIRTUAL_BYTES: f64 = 4_638_056_448.0;
const RESIDENT_BYTES: f64 = 1_013_428_224.0;
const OPEN_FDS: f64 = 35.0;
const MAX_FDS: f64 = 20_000.0;

/// Writes the families.
pub(super) fn write(page: &mut Page<'_>, server: &Server<'_>) {
    let collector = [
        ("python_gc_objects_collected_total", "Objects collected during gc", COLLECTED),
        (
            "python_gc_objects_uncollectable_total",
            "Uncollectable objects found during GC",
            [0.0; 3],
        ),
        (
            "python_gc_collections_total",
            "Number of times this generation was collected",
            COLLECTIONS,
        ),
    ];
    for (name, help, values) in collector {
        page.head(name, help, Kind::Counter);
        for (generation, value) in GENERATIONS.into_iter().zip(values) {
            page.sample(name, &[("generation", generation)], value);
        }
    }
    page.head("python_info", "Python platform information", Kind::Gauge);
    let version = [
        ("implementation", "CPython"),
        ("major", "3"),
        ("minor", "11"),
        ("patchlevel", "7"),
        ("version", "3.11.7"),
    ];
    page.sample("python_info", &version, 1.0);
    // A simulated process has computed for as long as its engines have stepped.
    let busy_s: f64 = server.ranks.iter().map(|rank| rank.busy_s).sum();
    let own = [
        (
            "process_virtual_memory_bytes",
            "Virtual memory size in bytes.",
            Kind::Gauge,
            VIRTUAL_BYTES,
        ),
        (
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            Kind::Gauge,
            RESIDENT_BYTES,
        ),
        (
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            Kind::Gauge,
            server.started_unix_s,
        ),
        (
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
            Kind::Counter,
            busy_s,
        ),
        ("process_open_fds", "Number of open file descriptors.", Kind::Gauge, OPEN_FDS),
        ("process_max_fds", "Maximum number of open file descriptors.", Kind::Gauge, MAX_FDS),
    ];
    for (name, help, kind, value) in own {
        page.head(name, help, kind);
        page.sample(name, &[], value);
    }
}
