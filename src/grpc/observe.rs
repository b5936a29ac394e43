//! Counts and times each call.
//!
//! Must not label by anything that a caller chooses.

use std::sync::{Arc, OnceLock};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::registry::{Caller, Rpc};

/// Buckets of the time to answer, seconds: from 10 µs, which is what memory takes, to 50 ms, which
/// is the bound.
const BUCKETS_S: [f64; 9] = [1e-5, 2.5e-5, 1e-4, 2.5e-4, 1e-3, 2.5e-3, 1e-2, 2.5e-2, 5e-2];

/// The metrics of the service. Cheap to clone; all clones count into the same numbers.
#[derive(Debug, Clone)]
pub struct RpcMetrics {
    requests: Family<RequestLabels, Counter>,
    durations: Family<RpcLabel, Histogram, fn() -> Histogram>,
    open_streams: Gauge,
    edges_sent: Counter,
    tls_reloads: Family<ResultLabel, Counter>,
    // A family, so that there is nothing to see without TLS.
    tls_expires: Family<NoLabels, Gauge>,
    cells: Arc<Cells>,
}

/// The families' members by their place, so that a call that counts takes no lock of a family and
/// hashes no label.
#[derive(Debug, Default)]
struct Cells {
    requests: [[[OnceLock<Counter>; N_CODES]; Caller::ALL.len()]; Rpc::ALL.len()],
    durations: [OnceLock<Histogram>; Rpc::ALL.len()],
}

/// gRPC's codes are 0 to 16.
const N_CODES: usize = 17;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    rpc: &'static str,
    code: &'static str,
    caller: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RpcLabel {
    rpc: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Of a metric that is there or not.
type NoLabels = [(&'static str, &'static str); 0];

impl Default for RpcMetrics {
    fn default() -> RpcMetrics {
        let metrics = RpcMetrics {
            requests: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS_S)),
            open_streams: Gauge::default(),
            edges_sent: Counter::default(),
            tls_reloads: Family::default(),
            tls_expires: Family::default(),
            cells: Arc::default(),
        };
        // From the first scrape on, so that a rate over the first failure is not lost.
        for applied in [true, false] {
            drop(metrics.tls_reloads.get_or_create(&reload(applied)));
        }
        metrics
    }
}

impl RpcMetrics {
    /// Registers all of them under the prefix `grpc`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("grpc");
        registry.register(
            "requests",
            "Calls by method, status and caller (hpa: a query of the HPA; poll: KEDA's own loop); \
             a stream counts when it ends",
            self.requests.clone(),
        );
        registry.register_with_unit(
            "request_duration",
            "Time to answer a unary call",
            Unit::Seconds,
            self.durations.clone(),
        );
        registry.register("open_streams", "Open StreamIsActive streams", self.open_streams.clone());
        registry.register(
            "edges_sent",
            "Activations pushed over StreamIsActive",
            self.edges_sent.clone(),
        );
        registry.register(
            "tls_reloads",
            "Reads of changed or unreadable TLS files: applied, or refused with the old ones kept",
            self.tls_reloads.clone(),
        );
        registry.register_with_unit(
            "tls_certificate_expiry_timestamp",
            "Until when the certificate that is served is valid",
            Unit::Seconds,
            self.tls_expires.clone(),
        );
    }

    /// Until when the certificate that is served is valid, in seconds since the Unix epoch.
    #[must_use]
    pub fn tls_expires(&self) -> Option<i64> {
        self.tls_expires.get(&[]).map(|gauge| gauge.get())
    }

    /// Notes until when the certificate that is served now is valid; `None` where that is not known.
    pub fn tls_served(&self, not_after: Option<i64>) {
        match not_after {
            Some(end) => drop(self.tls_expires.get_or_create(&[]).set(end)),
            None => drop(self.tls_expires.remove(&[])),
        }
    }

    /// How often the TLS files were read anew with this result.
    #[must_use]
    pub fn tls_reloads(&self, applied: bool) -> u64 {
        self.tls_reloads.get(&reload(applied)).map_or(0, |counter| counter.get())
    }

    /// How many calls have ended so.
    #[must_use]
    pub fn count(&self, rpc: Rpc, code: Code, caller: Caller) -> u64 {
        self.requests.get(&labels(rpc, code, caller)).map_or(0, |counter| counter.get())
    }

    /// Streams that are open now.
    #[must_use]
    pub fn open_streams(&self) -> i64 {
        self.open_streams.get()
    }

    pub(super) fn unary<T>(
        &self,
        rpc: Rpc,
        caller: Caller,
        answer: impl FnOnce() -> Result<T, Status>,
    ) -> Result<T, Status> {
        let started = Instant::now();
        let result = answer();
        let code = result.as_ref().err().map_or(Code::Ok, Status::code);
        self.ended(rpc, code, caller);
        let duration = self.cells.durations[rpc as usize]
            .get_or_init(|| self.durations.get_or_create_owned(&RpcLabel { rpc: rpc.label() }));
        duration.observe(started.elapsed().as_secs_f64());
        result
    }

    pub(super) fn ended(&self, rpc: Rpc, code: Code, caller: Caller) {
        // In the order of `Rpc::ALL`, `Caller::ALL` and gRPC's numbers, which the arrays have too.
        let cell = &self.cells.requests[rpc as usize][caller as usize][code as usize];
        cell.get_or_init(|| self.requests.get_or_create_owned(&labels(rpc, code, caller))).inc();
    }

    pub(super) fn tls_reloaded(&self, applied: bool) {
        self.tls_reloads.get_or_create(&reload(applied)).inc();
    }

    pub(super) fn stream(&self, caller: Caller) -> StreamGuard {
        self.open_streams.inc();
        StreamGuard { metrics: self.clone(), caller, code: Code::Cancelled }
    }
}

/// Counts one open stream, and its end when dropped: `Cancelled` unless it was ended from here.
#[derive(Debug)]
pub(super) struct StreamGuard {
    metrics: RpcMetrics,
    caller: Caller,
    code: Code,
}

impl StreamGuard {
    pub(super) fn edge_sent(&self) {
        self.metrics.edges_sent.inc();
    }

    pub(super) fn ended(mut self) {
        self.code = Code::Ok;
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        // Who no longer sees it open finds it counted.
        self.metrics.ended(Rpc::StreamIsActive, self.code, self.caller);
        self.metrics.open_streams.dec();
    }
}

fn reload(applied: bool) -> ResultLabel {
    ResultLabel { result: if applied { "applied" } else { "refused" } }
}

fn labels(rpc: Rpc, code: Code, caller: Caller) -> RequestLabels {
    RequestLabels { rpc: rpc.label(), code: code_label(code), caller: caller.label() }
}

fn code_label(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g1_g4_calls_are_counted_and_timed_by_method_code_and_caller() {
        let metrics = RpcMetrics::default();
        let mut registry = Registry::with_prefix("ghostscaler");
        metrics.register(&mut registry);
        let ok = || Ok::<_, Status>(1);
        let unavailable = || Err::<(), _>(Status::unavailable("x"));
        assert_eq!(metrics.unary(Rpc::GetMetrics, Caller::Hpa, ok).unwrap(), 1);
        assert!(metrics.unary(Rpc::IsActive, Caller::Poll, unavailable).is_err());
        let open = metrics.stream(Caller::Poll);
        metrics.stream(Caller::Poll).ended();
        drop(metrics.stream(Caller::Poll));
        open.edge_sent();

        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).unwrap();
        for line in [
            "ghostscaler_grpc_requests_total{rpc=\"GetMetrics\",code=\"OK\",caller=\"hpa\"} 1",
            "ghostscaler_grpc_requests_total{rpc=\"IsActive\",code=\"UNAVAILABLE\",caller=\"poll\"} 1",
            "ghostscaler_grpc_requests_total{rpc=\"StreamIsActive\",code=\"OK\",caller=\"poll\"} 1",
            "ghostscaler_grpc_requests_total{rpc=\"StreamIsActive\",code=\"CANCELLED\",caller=\"poll\"} 1",
            "ghostscaler_grpc_request_duration_seconds_count{rpc=\"GetMetrics\"} 1",
            "ghostscaler_grpc_open_streams 1",
            "ghostscaler_grpc_edges_sent_total 1",
            "ghostscaler_grpc_tls_reloads_total{result=\"applied\"} 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}
