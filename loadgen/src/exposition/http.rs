//! What a server's HTTP layer counts about the exchanges that have ended, and how it shows them:
//! the families of `prometheus-fastapi-instrumentator`.
//!
//! Must not know any path: which exchanges are counted is the caller's choice.

use super::render::{Kind, Page};

/// Bounds of `http_request_duration_highr_seconds`.
const FINE_S: [f64; 21] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0,
    7.5, 10.0, 30.0, 60.0,
];
/// Bounds of `http_request_duration_seconds`.
const COARSE_S: [f64; 3] = [0.1, 0.5, 1.0];

const REQUESTS_HELP: &str = "Total number of requests by method, status and handler.";
const FINE_HELP: &str = "Latency with many buckets but no API specific labels. Made for more \
    accurate percentile calculations. ";
const COARSE_HELP: &str = "Latency with only few buckets by handler. Made to be only used if \
    aggregation by handler is important. ";
const REQUEST_SIZE_HELP: &str = "Content length of incoming requests by handler. Only value of \
    header is respected. Otherwise ignored. No percentile calculated. ";
const RESPONSE_SIZE_HELP: &str = "Content length of outgoing responses by handler. Only value of \
    header is respected. Otherwise ignored. No percentile calculated. ";

/// An exchange that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    /// The path of the route.
    pub handler: &'static str,
    /// The method.
    pub method: &'static str,
    /// The status that was sent.
    pub status: u16,
    /// The request's content length; 0 without one.
    pub request_bytes: u64,
    /// The response's content length; 0 if it was streamed.
    pub response_bytes: u64,
    /// From the request's head to the end of the response, in seconds.
    pub duration_s: f64,
    /// When it ended, in seconds since the Unix epoch.
    pub ended_unix_s: f64,
}

/// Exchanges so far. Rows stand in the order in which they were first needed.
#[derive(Debug, Clone, Default)]
pub struct Http {
    fine: Durations<21>,
    started_unix_s: f64,
    routes: Vec<Route>,
    counts: Vec<Count>,
    arrivals: Vec<(&'static str, &'static str, u64)>,
}

#[derive(Debug, Clone)]
struct Route {
    handler: &'static str,
    method: &'static str,
    since_unix_s: f64,
    exchanges: u64,
    request_bytes: u64,
    response_bytes: u64,
    coarse: Durations<3>,
}

#[derive(Debug, Clone)]
struct Count {
    handler: &'static str,
    method: &'static str,
    class: u16,
    since_unix_s: f64,
    exchanges: u64,
}

/// Exchanges by bucket, the infinite one left out, with their sum.
#[derive(Debug, Clone)]
struct Durations<const N: usize> {
    cumulated: [u64; N],
    count: u64,
    sum_s: f64,
}

impl<const N: usize> Default for Durations<N> {
    fn default() -> Durations<N> {
        Durations { cumulated: [0; N], count: 0, sum_s: 0.0 }
    }
}

impl<const N: usize> Durations<N> {
    fn observe(&mut self, bounds: &[f64; N], duration_s: f64) {
        for (count, bound) in self.cumulated.iter_mut().zip(bounds) {
            *count += u64::from(duration_s <= *bound);
        }
        self.count += 1;
        self.sum_s += duration_s;
    }
}

impl Http {
    /// Nothing counted yet, by a process that started then (seconds since the Unix epoch).
    #[must_use]
    pub fn new(started_unix_s: f64) -> Http {
        Http { started_unix_s, ..Http::default() }
    }

    /// Counts a request that has come in.
    pub fn arrive(&mut self, endpoint: &'static str, method: &'static str) {
        let same = |known: &(&str, &str, u64)| known.0 == endpoint && known.1 == method;
        find_or_push(&mut self.arrivals, same, || (endpoint, method, 0)).2 += 1;
    }

    /// Requests that have come in, by path and method.
    pub(super) fn arrivals(&self) -> &[(&'static str, &'static str, u64)] {
        &self.arrivals
    }

    /// Counts an exchange.
    pub fn record(&mut self, exchange: &Exchange) {
        let Exchange { handler, method, duration_s, ended_unix_s, .. } = *exchange;
        self.fine.observe(&FINE_S, duration_s);
        let same = |known: &Route| known.handler == handler && known.method == method;
        let route = find_or_push(&mut self.routes, same, || Route {
            handler,
            method,
            since_unix_s: ended_unix_s,
            exchanges: 0,
            request_bytes: 0,
            response_bytes: 0,
            coarse: Durations::default(),
        });
        route.exchanges += 1;
        route.request_bytes += exchange.request_bytes;
        route.response_bytes += exchange.response_bytes;
        route.coarse.observe(&COARSE_S, duration_s);
        let class = exchange.status / 100;
        let same = |known: &Count| {
            known.handler == handler && known.method == method && known.class == class
        };
        let count = find_or_push(&mut self.counts, same, || Count {
            handler,
            method,
            class,
            since_unix_s: ended_unix_s,
            exchanges: 0,
        });
        count.exchanges += 1;
    }

    /// Writes the families.
    pub(super) fn write(&self, page: &mut Page<'_>) {
        let statuses: Vec<String> =
            self.counts.iter().map(|count| format!("{}xx", count.class)).collect();
        let labels: Vec<_> = self
            .counts
            .iter()
            .zip(&statuses)
            .map(|(count, status)| {
                [("handler", count.handler), ("method", count.method), ("status", status.as_str())]
            })
            .collect();
        let rows = || self.counts.iter().zip(&labels);
        page.head("http_requests_total", REQUESTS_HELP, Kind::Counter);
        for (count, labels) in rows() {
            page.sample("http_requests_total", labels, count.exchanges as f64);
        }
        if page.created("http_requests", REQUESTS_HELP, !self.counts.is_empty()) {
            for (count, labels) in rows() {
                page.sample("http_requests_created", labels, count.since_unix_s);
            }
        }
        self.write_sizes(page, "http_request_size_bytes", REQUEST_SIZE_HELP, |r| r.request_bytes);
        self.write_sizes(page, "http_response_size_bytes", RESPONSE_SIZE_HELP, |r| {
            r.response_bytes
        });
        let name = "http_request_duration_highr_seconds";
        page.head(name, FINE_HELP, Kind::Histogram);
        write_durations(page, name, &[], &FINE_S, &self.fine);
        if page.created(name, FINE_HELP, true) {
            page.sample("http_request_duration_highr_seconds_created", &[], self.started_unix_s);
        }
        let name = "http_request_duration_seconds";
        page.head(name, COARSE_HELP, Kind::Histogram);
        for route in &self.routes {
            let labels = [("handler", route.handler), ("method", route.method)];
            write_durations(page, name, &labels, &COARSE_S, &route.coarse);
        }
        if page.created(name, COARSE_HELP, !self.routes.is_empty()) {
            for route in &self.routes {
                let labels = [("handler", route.handler), ("method", route.method)];
                page.sample("http_request_duration_seconds_created", &labels, route.since_unix_s);
            }
        }
    }

    fn write_sizes(
        &self,
        page: &mut Page<'_>,
        name: &str,
        help: &str,
        bytes: impl Fn(&Route) -> u64,
    ) {
        let (count, sum) = (format!("{name}_count"), format!("{name}_sum"));
        page.head(name, help, Kind::Summary);
        for route in &self.routes {
            let labels = [("handler", route.handler)];
            page.sample(&count, &labels, route.exchanges as f64);
            page.sample(&sum, &labels, bytes(route) as f64);
        }
        if page.created(name, help, !self.routes.is_empty()) {
            let created = format!("{name}_created");
            for route in &self.routes {
                page.sample(&created, &[("handler", route.handler)], route.since_unix_s);
            }
        }
    }
}

fn write_durations<const N: usize>(
    page: &mut Page<'_>,
    name: &str,
    labels: &[(&str, &str)],
    bounds: &[f64; N],
    durations: &Durations<N>,
) {
    let finite = bounds.iter().copied().zip(durations.cumulated);
    let buckets = finite.chain([(f64::INFINITY, durations.count)]);
    page.histogram(name, labels, buckets, durations.sum_s);
}

fn find_or_push<T>(
    items: &mut Vec<T>,
    same: impl Fn(&T) -> bool,
    new: impl FnOnce() -> T,
) -> &mut T {
    let index = items.iter().position(same).unwrap_or_else(|| {
        items.push(new());
        items.len() - 1
    });
    &mut items[index]
}
