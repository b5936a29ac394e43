//! The wire as KEDA's operator uses it: one connection, calls in two roles, push streams.
//!
//! Judges nothing: every answer, error and silence is handed on as it came, with its time.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::proto::external_scaler_client::ExternalScalerClient;
use crate::proto::{
    GetMetricSpecResponse, GetMetricsRequest, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};

/// What KEDA 2.21 sends as its user agent; its grpc-go version tells a server which KEDA calls.
const USER_AGENT: &str = "grpc-go/1.84.0";
/// A TCP and TLS handshake takes a few round trips; the rest is for name resolution.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// After this a call counts as unanswered. KEDA itself waits for ever in the poll role; ten times
/// the hard bound of a second tells a slow answer, on a busy machine too, from none.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(10);
/// The deadline that the metrics API server gives each query of the HPA, seen as `grpc-timeout`.
const HPA_DEADLINE: Duration = Duration::from_secs(60);
/// Messages of one stream that wait to be looked at; more than that hold the server back.
const STREAM_BACKLOG: usize = 64;

/// Whom the client plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The operator's poll or reconcile: no deadline on the wire.
    Poll,
    /// A query of the HPA, through the metrics adapter: 60 s of deadline on the wire.
    Hpa,
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The scaler answered with an error of its own.
    Status(Code, String),
    /// The connection or the stream broke, so that no answer could come.
    Broken(String),
    /// Nothing came within [`CALL_LIMIT`].
    Late,
}

impl Failure {
    fn from_status(status: &Status) -> Failure {
        // Only an error that this side's transport made has a source.
        match std::error::Error::source(status) {
            Some(source) => Failure::Broken(source.to_string()),
            None => Failure::Status(status.code(), status.message().to_owned()),
        }
    }

    pub(crate) fn is(&self, code: Code) -> bool {
        matches!(self, Failure::Status(own, _) if *own == code)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Status(code, message) => {
                // A message may be of any length and from anywhere; a report shows its start.
                let start: String = message.escape_debug().take(160).collect();
                write!(f, "{} \"{start}\"", code_name(*code))
            }
            Failure::Broken(why) => write!(f, "the connection broke ({why})"),
            Failure::Late => write!(f, "no answer within {} s", CALL_LIMIT.as_secs()),
        }
    }
}

/// The name that a code has in gRPC's own documents, such as `NOT_FOUND`.
pub(crate) fn code_name(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// The outcome of a call with the time it took.
#[derive(Debug, Clone)]
pub(crate) struct Reply<T> {
    /// When the call was made.
    pub(crate) at: Instant,
    pub(crate) took: Duration,
    pub(crate) result: Result<T, Failure>,
}

/// The scaler under test: where it is and which object to ask it for.
#[derive(Debug)]
pub(crate) struct Scaler {
    endpoint: Endpoint,
    /// With ALPN demanded, as grpc-go does; `None` without TLS.
    strict_tls: Option<Endpoint>,
    pub(crate) scaled_object: ScaledObjectRef,
}

/// PEM texts for TLS.
#[derive(Debug)]
pub(crate) struct Tls {
    pub(crate) authority: String,
    /// Certificate chain and key of this client.
    pub(crate) identity: Option<(String, String)>,
}

impl Scaler {
    /// Fails if the address is no HOST:PORT or the PEM texts cannot be used.
    pub(crate) fn new(
        address: &str,
        tls: Option<&Tls>,
        scaled_object: ScaledObjectRef,
    ) -> Result<Scaler, tonic::transport::Error> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let plain = Endpoint::from_shared(format!("{scheme}://{address}"))?
            .user_agent(USER_AGENT)?
            .connect_timeout(CONNECT_LIMIT)
            .tcp_nodelay(true);
        let Some(tls) = tls else {
            return Ok(Scaler { endpoint: plain, strict_tls: None, scaled_object });
        };
        let mut config =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.authority));
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        Ok(Scaler {
            // A server without ALPN fails its own check only.
            endpoint: plain.clone().tls_config(config.clone().assume_http2(true))?,
            strict_tls: Some(plain.tls_config(config)?),
            scaled_object,
        })
    }

    pub(crate) async fn connect(&self) -> Result<Connection, Failure> {
        connect(&self.endpoint).await
    }

    /// Connects as a client that never takes any data: its streams have no window at all.
    pub(crate) async fn connect_stalled(&self) -> Result<Connection, Failure> {
        connect(&self.endpoint.clone().initial_stream_window_size(0)).await
    }

    /// Connects only if the server agrees on `h2` by ALPN; `None` without TLS.
    pub(crate) async fn connect_with_alpn(&self) -> Option<Result<Connection, Failure>> {
        match &self.strict_tls {
            Some(endpoint) => Some(connect(endpoint).await),
            None => None,
        }
    }
}

async fn connect(endpoint: &Endpoint) -> Result<Connection, Failure> {
    // The endpoint's own limit ends with TCP; a TLS or HTTP/2 handshake can hang as well.
    match timeout(CONNECT_LIMIT, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(Connection { channel }),
        Ok(Err(error)) => Err(Failure::Broken(root_cause(&error))),
        Err(_elapsed) => Err(Failure::Late),
    }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// One HTTP/2 connection. Dropping it cuts the connection with all that runs on it.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    channel: Channel,
}

impl Connection {
    pub(crate) async fn metric_spec(
        &self,
        role: Role,
        scaled_object: &ScaledObjectRef,
    ) -> Reply<Vec<MetricSpec>> {
        let request = in_role(role, scaled_object.clone());
        call(async {
            let response = self.client().get_metric_spec(request).await?;
            Ok(response.into_inner().metric_specs)
        })
        .await
    }

    pub(crate) async fn metrics(
        &self,
        role: Role,
        scaled_object: &ScaledObjectRef,
        metric_name: &str,
    ) -> Reply<Vec<MetricValue>> {
        self.raw_metrics(role, Some(scaled_object.clone()), metric_name).await
    }

    /// GetMetrics with a reference that may be missing, as no KEDA would send it.
    pub(crate) async fn raw_metrics(
        &self,
        role: Role,
        scaled_object_ref: Option<ScaledObjectRef>,
        metric_name: &str,
    ) -> Reply<Vec<MetricValue>> {
        let message = GetMetricsRequest { scaled_object_ref, metric_name: metric_name.to_owned() };
        let request = in_role(role, message);
        call(async {
            let response = self.client().get_metrics(request).await?;
            Ok(response.into_inner().metric_values)
        })
        .await
    }

    pub(crate) async fn is_active(
        &self,
        role: Role,
        scaled_object: &ScaledObjectRef,
    ) -> Reply<bool> {
        let request = in_role(role, scaled_object.clone());
        call(async {
            let response = self.client().is_active(request).await?;
            Ok(response.into_inner().result)
        })
        .await
    }

    /// One poll of one metric in KEDA's order, without its retries: spec, metrics, activity.
    pub(crate) async fn poll(
        &self,
        scaled_object: &ScaledObjectRef,
        metric_name: &str,
    ) -> Result<(), Failure> {
        self.metric_spec(Role::Poll, scaled_object).await.result?;
        self.metrics(Role::Poll, scaled_object, metric_name).await.result?;
        self.is_active(Role::Poll, scaled_object).await.result?;
        Ok(())
    }

    /// Calls a method that does not exist: the framework answers it without any handler.
    pub(crate) async fn unknown_method(&self) -> Reply<()> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(
            "/externalscaler.ExternalScaler/NoSuchMethod",
        );
        let codec = tonic_prost::ProstCodec::<ScaledObjectRef, IsActiveResponse>::default();
        let request = in_role(Role::Poll, ScaledObjectRef::default());
        call(async {
            grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
            grpc.unary(request, path, codec).await?;
            Ok(())
        })
        .await
    }

    /// The status of `service` by the standard health protocol.
    pub(crate) async fn health(&self, service: &str) -> Reply<i32> {
        let message = HealthCheckRequest { service: service.to_owned() };
        call(async {
            let mut client = HealthClient::new(self.channel.clone());
            Ok(client.check(in_role(Role::Poll, message)).await?.into_inner().status)
        })
        .await
    }

    pub(crate) fn watch_health(&self, service: &str) -> Stream<i32> {
        let mut client = HealthClient::new(self.channel.clone());
        let request = in_role(Role::Poll, HealthCheckRequest { service: service.to_owned() });
        open(async move { client.watch(request).await }, |message: HealthCheckResponse| {
            message.status
        })
    }

    pub(crate) fn stream_is_active(&self, scaled_object: &ScaledObjectRef) -> Stream<bool> {
        let mut client = self.client();
        let request = in_role(Role::Poll, scaled_object.clone());
        open(async move { client.stream_is_active(request).await }, |message: IsActiveResponse| {
            message.result
        })
    }

    pub(crate) fn stream_metric_spec(
        &self,
        scaled_object: &ScaledObjectRef,
    ) -> Stream<Vec<MetricSpec>> {
        let mut client = self.client();
        let request = in_role(Role::Poll, scaled_object.clone());
        open(
            async move { client.stream_metric_spec(request).await },
            |message: GetMetricSpecResponse| message.metric_specs,
        )
    }

    fn client(&self) -> ExternalScalerClient<Channel> {
        ExternalScalerClient::new(self.channel.clone())
    }
}

/// What can be seen on a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event<T> {
    /// The response has begun. Some servers send this only with the first message.
    Opened,
    Message(T),
    /// The server ended the stream: with OK, or with an error.
    End(Result<(), Failure>),
}

/// An open stream. Dropping it cancels it, as KEDA does.
#[derive(Debug)]
pub(crate) struct Stream<T> {
    pub(crate) opened_at: Instant,
    events: mpsc::Receiver<Event<T>>,
    _reader: AbortOnDropHandle<()>,
}

impl<T> Stream<T> {
    /// The next message or end; `None` if nothing comes within `limit` or the end was seen.
    pub(crate) async fn next(&mut self, limit: Duration) -> Option<Event<T>> {
        timeout(limit, async {
            loop {
                match self.events.recv().await {
                    Some(Event::Opened) => {}
                    other => return other,
                }
            }
        })
        .await
        .ok()
        .flatten()
    }

    /// Waits until the server has accepted the stream, at most for `limit`.
    pub(crate) async fn accepted(&mut self, limit: Duration) -> bool {
        timeout(limit, self.events.recv()).await.is_ok()
    }
}

fn open<M, T>(
    opening: impl Future<Output = Result<tonic::Response<Streaming<M>>, Status>> + Send + 'static,
    convert: fn(M) -> T,
) -> Stream<T>
where
    M: Send + 'static,
    T: Send + 'static,
{
    let (sender, events) = mpsc::channel(STREAM_BACKLOG);
    // A task of its own: a server that sends no headers before the first message leaves the
    // opening call waiting, which is no fault.
    let reader = tokio::spawn(async move {
        let end = async {
            let mut stream = opening.await?.into_inner();
            let mut wanted = sender.send(Event::Opened).await.is_ok();
            while wanted && let Some(message) = stream.message().await? {
                wanted = sender.send(Event::Message(convert(message))).await.is_ok();
            }
            Ok(())
        }
        .await;
        let end = end.map_err(|status: Status| Failure::from_status(&status));
        // The reader's owner may be gone; then nobody wants to know.
        drop(sender.send(Event::End(end)).await);
    });
    Stream { opened_at: Instant::now(), events, _reader: AbortOnDropHandle::new(reader) }
}

fn in_role<T>(role: Role, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if role == Role::Hpa {
        request.set_timeout(HPA_DEADLINE);
    }
    request
}

async fn call<T>(answer: impl Future<Output = Result<T, Status>>) -> Reply<T> {
    let at = Instant::now();
    let result = match timeout(CALL_LIMIT, answer).await {
        Ok(result) => result.map_err(|status| Failure::from_status(&status)),
        Err(_elapsed) => Err(Failure::Late),
    };
    Reply { at, took: at.elapsed(), result }
}
