//! The methods of KEDA's contract over the registry.
//!
//! Must not wait: each unary method is one look-up and one load, run to its end in one go, so that
//! an error takes no longer than a value. A slow error can cost a target all its replicas.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::convert;
use super::observe::{RpcMetrics, StreamGuard};
use crate::decision::Answer;
use crate::listen::Asking;
use crate::proto::external_scaler_server::ExternalScaler;
use crate::proto::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, ScaledObjectRef,
};
use crate::registry::{self, Caller, OpenStream, Registry, Rpc};

/// The service. It is shared by all connections.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) registry: Registry,
    pub(super) metrics: RpcMetrics,
    /// Cancelled when the streams shall end.
    pub(super) streams_end: CancellationToken,
    /// How long a stream lives, before its own jitter.
    pub(super) stream_age: Duration,
}

type SpecStream = tokio_stream::Empty<Result<GetMetricSpecResponse, Status>>;
type ActiveStream = Pin<Box<dyn Stream<Item = Result<IsActiveResponse, Status>> + Send>>;

#[tonic::async_trait]
impl ExternalScaler for Service {
    type StreamIsActiveStream = ActiveStream;
    type StreamMetricSpecStream = SpecStream;

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        self.unary(Rpc::GetMetricSpec, &request, |scaled_object, caller| {
            // Noted if it can be, answered whatever it says: KEDA shows this method's errors to
            // nobody, and asks it before all others.
            drop(self.lookup(scaled_object, caller, Rpc::GetMetricSpec));
            Ok(convert::metric_spec())
        })
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        self.unary(Rpc::GetMetrics, &request, |request, caller| {
            let scaled_object = convert::check_ref(request.scaled_object_ref.as_ref())?;
            convert::check_metric_name(&request.metric_name)?;
            let (want, _) = self.answer(scaled_object, caller, Rpc::GetMetrics)?;
            Ok(convert::metrics(want))
        })
    }

    async fn is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<IsActiveResponse>, Status> {
        self.unary(Rpc::IsActive, &request, |scaled_object, caller| {
            let scaled_object = convert::check_ref(Some(scaled_object))?;
            let (_, active) = self.answer(scaled_object, caller, Rpc::IsActive)?;
            Ok(convert::active(active))
        })
    }

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<ActiveStream>, Status> {
        let caller = caller(&request);
        let opened = guarded(|| {
            let scaled_object = convert::check_ref(Some(request.get_ref()))?;
            self.lookup(scaled_object, caller, Rpc::StreamIsActive)
                .map_err(|error| convert::lookup_error(&error))
        });
        let tracker = opened.inspect_err(|status| {
            self.metrics.ended(Rpc::StreamIsActive, status.code(), caller);
        })?;
        let push = Push {
            activity: tracker.open_stream(),
            lifetime: Box::pin(tokio::time::sleep(jittered(self.stream_age))),
            streams_end: self.streams_end.clone(),
            observed: self.metrics.stream(caller),
        };
        Ok(Response::new(Box::pin(futures_util::stream::unfold(push, Push::next))))
    }

    async fn stream_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<SpecStream>, Status> {
        let status = Status::unimplemented("the target never changes: GetMetricSpec says it");
        self.metrics.ended(Rpc::StreamMetricSpec, status.code(), caller(&request));
        Err(status)
    }
}

impl Service {
    fn unary<Q, A>(
        &self,
        rpc: Rpc,
        request: &Request<Q>,
        answer: impl FnOnce(&Q, Caller) -> Result<A, Status>,
    ) -> Result<Response<A>, Status> {
        let caller = caller(request);
        let answer = || guarded(|| answer(request.get_ref(), caller));
        self.metrics.unary(rpc, caller, answer).map(Response::new)
    }

    fn lookup(
        &self,
        scaled_object: &ScaledObjectRef,
        caller: Caller,
        rpc: Rpc,
    ) -> Result<std::sync::Arc<registry::Tracker>, registry::Error> {
        let ScaledObjectRef { namespace, name, scaler_metadata } = scaled_object;
        self.registry.lookup(namespace, name, scaler_metadata, caller, rpc)
    }

    /// The wanted count and the activity, of one published answer.
    fn answer(
        &self,
        scaled_object: &ScaledObjectRef,
        caller: Caller,
        rpc: Rpc,
    ) -> Result<(u32, bool), Status> {
        match self.lookup(scaled_object, caller, rpc) {
            Ok(tracker) => match tracker.published.load().answer {
                Answer::Value { want, active } => Ok((want, active)),
                Answer::Unavailable { why } => Err(convert::unavailable(why)),
            },
            // Where zero is allowed, a failing HPA query beside a waiting poll makes KEDA take the
            // poll for "inactive, no error", and a cooldown later the target is at zero. So the
            // HPA keeps what is there; the polls' error is the one that users see.
            Err(registry::Error::Refused { min: 0, spec: Some(spec), .. })
                if caller == Caller::Hpa && spec > 0 =>
            {
                Ok((spec, true))
            }
            Err(error) => Err(convert::lookup_error(&error)),
        }
    }
}

/// One StreamIsActive: `true` on opening if active, then once for each rising edge. It ends with
/// OK, which is what keeps KEDA's delay before reopening at two seconds.
#[derive(Debug)]
struct Push {
    activity: OpenStream,
    lifetime: Pin<Box<Sleep>>,
    streams_end: CancellationToken,
    observed: StreamGuard,
}

impl Push {
    async fn next(mut self) -> Option<(Result<IsActiveResponse, Status>, Push)> {
        loop {
            if self.activity.take_edge() {
                self.observed.edge_sent();
                return Some((Ok(convert::active(true)), self));
            }
            let over = tokio::select! {
                over = self.activity.changed() => over,
                () = self.lifetime.as_mut() => true,
                () = self.streams_end.cancelled() => true,
            };
            if over {
                self.observed.ended();
                return None;
            }
        }
    }
}

/// An HPA query carries the deadline of the API server's request; KEDA's own loop sets none. Either
/// keeps its connection.
fn caller<Q>(request: &Request<Q>) -> Caller {
    if let Some(asking) = request.extensions().get::<Asking>() {
        asking.note();
    }
    if request.metadata().contains_key("grpc-timeout") { Caller::Hpa } else { Caller::Poll }
}

/// Runs a method's body; a panic becomes INTERNAL and the process goes on.
fn guarded<A>(body: impl FnOnce() -> Result<A, Status>) -> Result<A, Status> {
    // What a panic can leave behind here is immutable or atomic, so it is whole.
    std::panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_panic| {
        tracing::error!("a call panicked");
        Err(Status::internal("internal error of ghostscaler: see its log"))
    })
}

/// A duration within a tenth of `base`, so that what began together does not end together.
pub(super) fn jittered(base: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    // A hasher with fresh random keys is the randomness that the standard library has.
    let random = u32::try_from(RandomState::new().hash_one(0_u8) >> 32).unwrap_or(0);
    base.mul_f64(0.9 + 0.2 * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics where a trigger's metadata is refused, in the midst of each method.
    struct Panics;

    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Panics {
        fn on_event(
            &self,
            event: &tracing::Event<'_>,
            _context: tracing_subscriber::layer::Context<'_, S>,
        ) {
            assert_ne!(*event.metadata().level(), tracing::Level::WARN, "secret detail");
        }
    }

    #[tokio::test]
    async fn c2_a_panic_in_any_method_becomes_internal() {
        let service = Service {
            registry: crate::web::fixtures::registry([crate::web::fixtures::workload("ns", "a")]),
            metrics: RpcMetrics::default(),
            streams_end: CancellationToken::new(),
            stream_age: Duration::from_secs(600),
        };
        let bad = |key: &str| ScaledObjectRef {
            name: "a".to_owned(),
            namespace: "ns".to_owned(),
            scaler_metadata: [(key.to_owned(), "x".to_owned())].into(),
        };
        let metrics = GetMetricsRequest {
            scaled_object_ref: Some(bad("b")),
            metric_name: convert::METRIC_NAME.to_owned(),
        };
        let subscriber = tracing_subscriber::layer::SubscriberExt::with(
            tracing_subscriber::Registry::default(),
            Panics,
        );
        let _panicking = tracing::subscriber::set_default(subscriber);
        let answers = [
            service.get_metric_spec(Request::new(bad("a"))).await.err(),
            service.get_metrics(Request::new(metrics)).await.err(),
            service.is_active(Request::new(bad("c"))).await.err(),
            service.stream_is_active(Request::new(bad("d"))).await.err(),
        ];
        for (method, status) in Rpc::ALL.into_iter().zip(answers) {
            let status = status.unwrap();
            assert_eq!(status.code(), tonic::Code::Internal, "{method:?}: {status}");
            assert!(!status.message().contains("secret"), "{status}");
        }
    }

    #[test]
    fn jitter_stays_within_a_tenth_and_varies() {
        let base = Duration::from_secs(600);
        let ages: Vec<_> = (0..100).map(|_| jittered(base)).collect();
        assert!(ages.iter().all(|age| (540..=660).contains(&age.as_secs())), "{ages:?}");
        assert!(ages.iter().any(|age| *age != ages[0]));
    }
}
