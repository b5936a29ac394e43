//! One request and its answer, from the moment it is taken up to the moment its connection is free.
//!
//! Must not decide when a request is sent.

use std::pin::Pin;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Incoming};
use tokio::task::{consume_budget, yield_now};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};

use super::answer::{self, Chunk, Form, Usage};
use super::failure::{Failure, Fault};
use super::lane::{Job, Lane};
use super::record::{Ended, Record};
use super::requests::{Outcome, Request};
use super::sse;
use super::stamp::Written;
use super::target::{Connection, Driver, broken};

/// The longest answer in one piece; a stream may be longer.
const MOST_ANSWER_BYTES: usize = 64 << 20;
/// How much of a refusal is read.
const MOST_REFUSAL_BYTES: usize = 64 << 10;
/// The type of a stream, in whatever case (RFC 9110, 8.3.1).
const EVENT_STREAM: &str = "text/event-stream";
/// The coding of what is not coded (RFC 9110, 12.5.3).
const IDENTITY: &[u8] = b"identity";
/// How often the sockets are looked at before a connection is opened: one whose answer has come, but
/// is not read yet, is as good, and a sender that opens because it has fallen behind falls further.
/// The answer takes one look to its connection, and the next to who asked.
const LOOKS: u32 = 2;
/// How long a connection may take to end a stream after its `[DONE]` before it is given up.
const LINGER: Duration = Duration::from_secs(1);

/// A request under way. Dropped before it has ended, it counts as unfinished.
struct Flight<'a> {
    lane: &'a Lane,
    job: &'a Job,
    /// When its first byte was handed to the kernel; until then, when it was taken up.
    sent_s: f64,
    /// How long the opening of connections and the waits between tries took.
    apart_s: f64,
    /// Where the connection notes what it hands to the kernel, until that is known.
    written: Option<Written>,
    has_left: bool,
    /// Whether any of it was handed to the kernel.
    is_written: bool,
    first_s: Option<f64>,
    last_s: f64,
    events: u32,
    usage: Option<Usage>,
    /// Tokens up to the last piece, where every piece says so.
    counted: Option<u64>,
    form: Form,
    is_done: bool,
    /// When the server said that the model stopped.
    stopped_s: Option<f64>,
    /// When the server that refused wants to be asked again.
    retry_after_s: Option<f64>,
    /// Whether the first text has come, for those who wait for it.
    has_begun: &'a AtomicBool,
    has_ended: bool,
}

impl Lane {
    /// Sends a request, reads its answer and notes what became of it.
    ///
    /// `limit` is set anew for each request, which costs less than a new timer: that one is to fire
    /// later than it was, the runtime only notes.
    pub(super) async fn perform(&self, job: &Job, limit: &mut Pin<Box<Sleep>>) {
        limit.as_mut().reset(Instant::now() + self.plan().timeout);
        let has_begun = AtomicBool::new(false);
        let mut flight = Flight::begin(self, job, &has_begun);
        let exchanged = tokio::select! {
            biased;
            exchanged = persist(&mut flight) => exchanged,
            () = limit => Err((self.lateness(&has_begun), None)),
            fault = self.loss_of_patience(job, &has_begun) => Err((fault, None)),
        };
        let (idle, tokens) = match exchanged {
            Ok(idle) => {
                flight.completed();
                (Some(idle), Some(flight.tokens()))
            }
            Err((fault, idle)) => {
                flight.failed(fault);
                (idle, None)
            }
        };
        self.follow(job, tokens);
        if let Some(Idle { mut connection, body }) = idle {
            let is_whole = match body {
                None => true,
                Some(body) => {
                    let running_out = connection.driver.until(run_out(body));
                    timeout(LINGER, running_out).await.unwrap_or(false)
                }
            };
            if is_whole {
                self.put_back(job.target, connection);
            }
        }
    }

    fn lateness(&self, has_begun: &AtomicBool) -> Fault {
        let limit_s = self.plan().timeout.as_secs_f64();
        let got = match has_begun.load(Ordering::Relaxed) {
            true => "the answer had begun",
            false => "without a first token",
        };
        Failure::Timeout.because(format_args!("{limit_s} s, {got}"))
    }

    /// Ends when the user of a request leaves because nothing has come.
    async fn loss_of_patience(&self, job: &Job, has_begun: &AtomicBool) -> Fault {
        if let Some(patience_s) = self.plan().users.leaves_after_s(job.number) {
            let leaves_s = job.due_s + patience_s;
            sleep_until(self.shared().start + Duration::from_secs_f64(leaves_s)).await;
            if !has_begun.load(Ordering::Relaxed) {
                let example = format_args!("no first token within {patience_s:.1} s");
                return Failure::Abandoned.because(example);
            }
        }
        std::future::pending().await
    }
}

/// A connection that can be used again once its answer has run out.
struct Idle {
    connection: Connection,
    body: Option<Incoming>,
}

async fn run_out(mut body: Incoming) -> bool {
    while !body.is_end_stream() {
        match body.frame().await {
            Some(Ok(_)) => {}
            Some(Err(_)) => return false,
            None => return true,
        }
    }
    true
}

type Exchanged = Result<Idle, (Fault, Option<Idle>)>;

/// Exchanges until there is an answer, or a fault after which users do not try again.
async fn persist(flight: &mut Flight<'_>) -> Exchanged {
    let (lane, job) = (flight.lane, flight.job);
    let mut refused = 0;
    loop {
        let (fault, idle) = match exchange(flight).await {
            Ok(idle) => return Ok(idle),
            Err(failed) => failed,
        };
        refused += 1;
        let retry_after_s = flight.retry_after_s.take();
        let users = &lane.plan().users;
        let again = users.again_after_s(job.number, refused, fault.failure, retry_after_s);
        let Some(wait_s) = again.filter(|_| lane.take_retry()) else { return Err((fault, idle)) };
        if let Some(idle) = idle {
            lane.put_back(job.target, idle.connection);
        }
        flight.wait(wait_s).await;
        flight.note(|record| record.retried(job.class));
    }
}

async fn exchange(flight: &mut Flight<'_>) -> Exchanged {
    let (lane, job) = (flight.lane, flight.job);
    let class = &lane.plan().classes[job.class];
    let is_chat = class.form.is_chat;
    let body = lane.plan().prompts.body(
        &class.form,
        job.number,
        job.input_tokens,
        job.output_tokens,
        &job.prefix,
    );
    let gone = |fault| (fault, None);
    let request = lane.request(job.target, is_chat, body);
    let (mut connection, response) = flight.send(request).await.map_err(gone)?;
    let driver = &mut connection.driver;
    flight.left();
    let status = response.status().as_u16();
    if status != 200 {
        flight.retry_after_s = response
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        let location = response.headers().get(header::LOCATION).cloned();
        let read = Limited::new(response.into_body(), MOST_REFUSAL_BYTES).collect();
        let read = Box::pin(driver.until(read)).await;
        let (body, is_whole) = read.map_or((Bytes::new(), false), |body| (body.to_bytes(), true));
        let location = location.as_ref().map(http::HeaderValue::as_bytes);
        let fault = answer::refused(status, location, &body, &class.form.model);
        let is_open = is_whole && driver.until(connection.http.ready()).await.is_ok();
        return Err((fault, is_open.then_some(Idle { connection, body: None })));
    }
    let coding = response.headers().get(header::CONTENT_ENCODING);
    if let Some(coding) = coding.filter(|coding| !coding.as_bytes().eq_ignore_ascii_case(IDENTITY))
    {
        let coding = String::from_utf8_lossy(coding.as_bytes());
        let example = format_args!("content-encoding: {coding} was not asked for");
        return Err(gone(Failure::Malformed.because(example)));
    }
    let is_stream = response
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .and_then(|kind| kind.get(..EVENT_STREAM.len()))
        .is_some_and(|kind| kind.eq_ignore_ascii_case(EVENT_STREAM));
    if is_stream {
        let body = flight.read_stream(response.into_body(), driver).await.map_err(gone)?;
        Ok(Idle { connection, body: Some(body) })
    } else {
        Box::pin(flight.read_whole(response.into_body(), driver)).await.map_err(gone)?;
        Ok(Idle { connection, body: None })
    }
}

impl<'a> Flight<'a> {
    fn begin(lane: &'a Lane, job: &'a Job, has_begun: &'a AtomicBool) -> Flight<'a> {
        let sent_s = lane.shared().now_s();
        let flight = Flight {
            lane,
            job,
            sent_s,
            apart_s: 0.0,
            written: None,
            has_left: false,
            is_written: false,
            first_s: None,
            last_s: sent_s,
            events: 0,
            usage: None,
            counted: Some(0),
            form: Form::default(),
            is_done: false,
            stopped_s: None,
            retry_after_s: None,
            has_begun,
            has_ended: false,
        };
        flight.note(|record| record.sent(job.class, job.target, sent_s));
        flight
    }

    /// Sends on an idle connection, or on a new one. A connection that was closed before it took
    /// anything of the request costs the request nothing but time; after that only `persist` sends
    /// it again.
    async fn send(
        &mut self,
        mut request: http::Request<Full<Bytes>>,
    ) -> Result<(Connection, http::Response<Incoming>), Fault> {
        let mut looks = 0;
        loop {
            let (mut connection, is_new) = match self.lane.take_idle(self.job.target) {
                Some(connection) => (connection, false),
                None if looks < LOOKS => {
                    looks += 1;
                    yield_now().await;
                    continue;
                }
                // What happens seldom lies apart: every request carries its future with it.
                None => (Box::pin(self.open()).await?, true),
            };
            if !is_new && !connection.is_open().await {
                continue;
            }
            let Connection { http, driver, written } = &mut connection;
            if let Err(error) = driver.until(http.ready()).await {
                if is_new {
                    return Err(driver.no_answer(&error));
                }
                continue;
            }
            written.begin();
            self.written = Some(written.clone());
            match driver.until(http.try_send_request(request)).await {
                Ok(response) => return Ok((connection, response)),
                Err(mut refused) => match refused.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    Some(_) | None => return Err(driver.no_answer(&refused.into_error())),
                },
            }
        }
    }

    async fn open(&mut self) -> Result<Connection, Fault> {
        let began = Instant::now();
        let opened = self.lane.plan().targets[self.job.target].connect().await;
        self.apart_s += began.elapsed().as_secs_f64();
        opened
    }

    /// Waits before the next try.
    async fn wait(&mut self, wait_s: f64) {
        if self.written.as_ref().is_some_and(|written| written.at().is_some()) {
            self.left();
        }
        let began = Instant::now();
        sleep(Duration::from_secs_f64(wait_s)).await;
        self.apart_s += began.elapsed().as_secs_f64();
    }

    /// Notes how late its first byte was, or, where none was written, that it was taken up. The
    /// opening of a connection is no lateness of the client, nor is the wait after a refusal: they
    /// are the network's, the server's or the user's, and in the time to first token.
    fn left(&mut self) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        let mut lag_s = self.sent_s - self.job.due_s;
        if let Some(at) = self.written.take().and_then(|written| written.at()) {
            self.sent_s = at.saturating_duration_since(self.lane.shared().start).as_secs_f64();
            self.last_s = self.sent_s;
            self.is_written = true;
            lag_s = self.sent_s - self.job.due_s - self.apart_s;
        }
        self.note(|record| record.left(self.job.class, lag_s.max(0.0)));
    }

    /// Reads a stream to its `[DONE]`.
    async fn read_stream(
        &mut self,
        mut body: Incoming,
        driver: &mut Driver,
    ) -> Result<Incoming, Fault> {
        let mut parser = sse::Parser::default();
        while !self.is_done {
            match self.within_stall(driver.until(body.frame())).await? {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        let at_s = self.lane.shared().now_s();
                        parser.push(&data, |event| self.event(event, at_s))?;
                    }
                    // A server that is faster than this client keeps no other request waiting.
                    consume_budget().await;
                }
                Some(Err(error)) => return Err(broken(&error, Failure::CutShort)),
                None => {
                    return Err(match parser.stray() {
                        Some(line) => {
                            let line = String::from_utf8_lossy(line);
                            Failure::Malformed.because(format_args!("no line of a stream: {line}"))
                        }
                        None => Failure::CutShort.because("the stream ended without [DONE]"),
                    });
                }
            }
        }
        self.check_tokens()?;
        Ok(body)
    }

    /// Waits for a piece of a stream, but not for ever.
    async fn within_stall<T>(&self, piece: impl Future<Output = T>) -> Result<T, Fault> {
        match self.lane.plan().stall {
            None => Ok(piece.await),
            Some(stall) => timeout(stall, piece).await.map_err(|_silent| {
                let (got, limit_s) = (self.events, stall.as_secs_f64());
                Failure::Stalled.because(format_args!("{limit_s} s of silence, {got} pieces came"))
            }),
        }
    }

    fn event(&mut self, event: &[u8], at_s: f64) -> Result<(), Fault> {
        if self.is_done {
            return Ok(());
        }
        if event == b"[DONE]" {
            self.is_done = true;
            return Ok(());
        }
        if self.form.matches(event) {
            self.text(at_s, None);
            return Ok(());
        }
        let chunk = self.read_chunk(event)?;
        if chunk.has_text() {
            // An event that says more than its text is the answer's last, and no pattern.
            if !chunk.is_last() && chunk.usage.is_none() {
                self.form.learn(event);
            }
            self.text(at_s, chunk.usage.map(|usage| usage.completion_tokens));
        }
        if chunk.is_last() {
            self.stopped_s = Some(at_s);
        }
        chunk.check_end()
    }

    async fn read_whole(&mut self, body: Incoming, driver: &mut Driver) -> Result<(), Fault> {
        let body = driver.until(Limited::new(body, MOST_ANSWER_BYTES).collect()).await;
        let body = body.map_err(|error| match error.downcast_ref::<hyper::Error>() {
            Some(error) => broken(error, Failure::CutShort),
            None => Failure::Malformed
                .because(format_args!("an answer of more than {MOST_ANSWER_BYTES} bytes")),
        })?;
        let body = body.to_bytes();
        let chunk = self.read_chunk(&body)?;
        chunk.check_end()?;
        if chunk.has_text() || self.usage.is_some_and(|usage| usage.completion_tokens > 0) {
            if self.lane.plan().classes[self.job.class].form.is_streaming {
                // Its user saw nothing earlier.
                self.text(self.lane.shared().now_s(), None);
                self.note(|record| record.came_in_one_piece(self.job.class));
            } else {
                self.events = 1;
            }
            Ok(())
        } else {
            Err(Failure::Empty.because("an answer without text"))
        }
    }

    fn read_chunk(&mut self, json: &[u8]) -> Result<Chunk, Fault> {
        let chunk = Chunk::read(json)?;
        if !chunk.is_completion() {
            let text = String::from_utf8_lossy(json);
            return Err(Failure::Malformed.because(format_args!("no `choices` in {text}")));
        }
        if self.lane.plan().checks_model {
            chunk.check_model(&self.lane.plan().classes[self.job.class].form.model)?;
        }
        self.usage = chunk.usage.or(self.usage);
        Ok(chunk)
    }

    /// A whole stream has tokens. If none of them had a text, the first is known to have come when
    /// the model had stopped. Where it never said that it had, it was given up: so vLLM ends at a
    /// SIGTERM what still waits in its queue.
    fn check_tokens(&mut self) -> Result<(), Fault> {
        if self.first_s.is_some() {
            return Ok(());
        }
        match (self.usage, self.stopped_s) {
            (Some(usage), Some(stopped_s)) if usage.completion_tokens > 0 => {
                self.text(stopped_s, None);
                Ok(())
            }
            (_, Some(_)) => Err(Failure::Empty.because("a whole stream without text")),
            (_, None) => Err(Failure::CutShort.because("[DONE] without text or a finish_reason")),
        }
    }

    /// A piece of text came, and with it perhaps the count of tokens so far.
    fn text(&mut self, at_s: f64, counted: Option<u64>) {
        let tokens = counted.zip(self.counted).map(|(now, before)| now.saturating_sub(before));
        self.counted = counted;
        let (class, slo) = (self.job.class, &self.lane.plan().classes[self.job.class].slo);
        if self.first_s.is_none() {
            self.first_s = Some(at_s);
            self.has_begun.store(true, Ordering::Relaxed);
            let times = (self.job.due_s, self.sent_s, at_s);
            self.note(|record| record.first_text(class, slo, times));
        } else {
            let gap_s = at_s - self.last_s;
            self.note(|record| record.more_text(class, gap_s, at_s, tokens));
        }
        self.last_s = at_s;
        self.events += 1;
    }

    fn ended(&mut self, outcome: Outcome) -> Ended {
        self.has_ended = true;
        self.left();
        let ended = Ended {
            target: self.job.target,
            due_s: self.job.due_s,
            at_s: self.lane.shared().now_s(),
            first_s: self.first_s,
            last_s: self.last_s,
            events: self.events,
            asked_input: self.lane.plan().prompts.tokens_of(self.job.input_tokens),
            asked_output: self.job.output_tokens,
            usage: self.usage.map(|usage| (usage.prompt_tokens, usage.completion_tokens)),
        };
        if let Some(requests) = &self.lane.plan().requests {
            let sent_s = self.is_written.then_some(self.sent_s);
            requests.add(Request::ended(self.job, &ended, sent_s, outcome));
        }
        ended
    }

    /// Tokens of the answer, by the server's count where there is one.
    fn tokens(&self) -> u32 {
        self.usage
            .map_or(self.events, |usage| u32::try_from(usage.completion_tokens).unwrap_or(u32::MAX))
    }

    fn completed(&mut self) {
        let (class, ended) = (self.job.class, self.ended(Outcome::Completed));
        let slo = &self.lane.plan().classes[class].slo;
        self.note(|record| record.completed(class, slo, &ended));
    }

    fn failed(&mut self, fault: Fault) {
        let (class, ended) = (self.job.class, self.ended(Outcome::Failed(fault.failure)));
        let slo = &self.lane.plan().classes[class].slo;
        self.note(|record| record.failed(class, slo, &ended, fault));
    }

    fn note(&self, note: impl FnOnce(&mut Record)) {
        if self.job.counts {
            note(&mut self.lane.record().lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let (class, ended) = (self.job.class, self.ended(Outcome::Unfinished));
            let slo = &self.lane.plan().classes[class].slo;
            self.note(|record| record.unfinished(class, slo, &ended));
        }
    }
}

impl From<sse::TooLong> for Fault {
    fn from(error: sse::TooLong) -> Fault {
        Failure::Malformed.because(error)
    }
}
