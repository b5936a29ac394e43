//! Those who ask the scalers: somebody through the balancer, somebody who asks both at once, and KEDA as
//! the scalers see it.
//!
//! Must not judge, but keep what was answered and for how long nothing was.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ghostscaler::proto::external_scaler_client::ExternalScalerClient;
use ghostscaler::proto::{GetMetricsRequest, ScaledObjectRef};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;

/// How often is asked.
const INTERVAL: Duration = Duration::from_millis(100);
/// When an answer counts as none.
const LATE: Duration = Duration::from_secs(1);

/// What was answered.
#[derive(Debug, Default)]
struct Answers {
    /// Each count that was answered, where it differs from the one before.
    counts: Vec<i64>,
    last: Option<Instant>,
    longest_gap: Duration,
    n_answers: usize,
}

/// Somebody who asks; ends when dropped.
pub(crate) struct Asker {
    answers: Arc<Mutex<Answers>>,
    _task: AbortOnDropHandle<()>,
}

impl Asker {
    /// Asks there from now on.
    pub(crate) fn start(url: String, object: ScaledObjectRef) -> Asker {
        let answers = Arc::new(Mutex::new(Answers::default()));
        let asking = ask(url, object, Arc::clone(&answers));
        Asker { answers, _task: AbortOnDropHandle::new(tokio::spawn(asking)) }
    }

    /// The counts so far, and the longest time between two answers; both begin anew.
    pub(crate) fn take(&self) -> (Vec<i64>, Duration) {
        let mut answers = lock(&self.answers);
        let open = answers.last.map_or(Duration::ZERO, |last| last.elapsed());
        let gap = answers.longest_gap.max(open);
        let last = answers.counts.last().copied();
        let counts = std::mem::replace(&mut answers.counts, last.into_iter().collect());
        answers.longest_gap = Duration::ZERO;
        (counts, gap)
    }
}

/// Asks as KEDA does: on one connection, and on a new one after an error.
async fn ask(url: String, object: ScaledObjectRef, answers: Arc<Mutex<Answers>>) {
    let mut client: Option<ExternalScalerClient<Channel>> = None;
    loop {
        if client.is_none() {
            let connect = ExternalScalerClient::connect(url.clone());
            client = timeout(LATE, connect).await.ok().and_then(Result::ok);
        }
        let answer = match &mut client {
            Some(client) => wanted(client, &object).await,
            None => None,
        };
        match answer {
            Some(count) => note(&mut lock(&answers), count),
            None => client = None,
        }
        sleep(INTERVAL).await;
    }
}

fn note(answers: &mut Answers, count: i64) {
    let gap = answers.last.map_or(Duration::ZERO, |last| last.elapsed());
    answers.last = Some(Instant::now());
    answers.longest_gap = answers.longest_gap.max(gap);
    answers.n_answers += 1;
    if answers.counts.last() != Some(&count) {
        answers.counts.push(count);
    }
}

/// One count, where it comes in time.
async fn wanted(
    client: &mut ExternalScalerClient<Channel>,
    object: &ScaledObjectRef,
) -> Option<i64> {
    let request = GetMetricsRequest {
        scaled_object_ref: Some(object.clone()),
        metric_name: "wanted-replicas".to_owned(),
    };
    let answer = timeout(LATE, client.get_metrics(request)).await.ok()?.ok()?;
    Some(answer.into_inner().metric_values.first()?.metric_value)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks both in the same instant; ends when dropped.
pub(crate) struct Twins {
    compared: Arc<Mutex<Compared>>,
    _task: AbortOnDropHandle<()>,
}

/// What both said.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Compared {
    /// Times at which both have answered.
    pub(crate) n_both: usize,
    /// The longest time for which they contradicted each other.
    pub(crate) longest: Duration,
    /// The last two counts that differed.
    pub(crate) last: Option<(i64, i64)>,
}

impl Twins {
    /// Asks there from now on.
    pub(crate) fn start(urls: [String; 2], object: ScaledObjectRef) -> Twins {
        let compared = Arc::new(Mutex::new(Compared::default()));
        let comparing = compare(urls, object, Arc::clone(&compared));
        Twins { compared, _task: AbortOnDropHandle::new(tokio::spawn(comparing)) }
    }

    /// What was said so far; it begins anew.
    pub(crate) fn take(&self) -> Compared {
        std::mem::take(&mut lock(&self.compared))
    }
}

async fn compare(urls: [String; 2], object: ScaledObjectRef, compared: Arc<Mutex<Compared>>) {
    let mut clients = urls
        .map(|url| ExternalScalerClient::new(Channel::from_shared(url).unwrap().connect_lazy()));
    let mut differ_since: Option<Instant> = None;
    loop {
        let [one, two] = &mut clients;
        let said = tokio::join!(wanted(one, &object), wanted(two, &object));
        if let (Some(one), Some(two)) = said {
            let mut compared = lock(&compared);
            compared.n_both += 1;
            if one == two {
                differ_since = None;
            } else {
                let since = *differ_since.get_or_insert_with(Instant::now);
                compared.longest = compared.longest.max(since.elapsed() + INTERVAL);
                compared.last = Some((one, two));
            }
        }
        sleep(INTERVAL).await;
    }
}

/// KEDA's own calls, by the scalers' count of them: nobody else here asks whether something is active.
pub(crate) struct KedaWatch {
    seen: Arc<Mutex<Calls>>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Calls {
    /// Of each scaler, at the last look.
    answered: [u64; 2],
    n_calls: u64,
    last: Instant,
    longest_gap: Duration,
}

impl KedaWatch {
    fn new_calls() -> Calls {
        let (last, longest_gap) = (Instant::now(), Duration::ZERO);
        Calls { answered: [0, 0], n_calls: 0, last, longest_gap }
    }

    /// Watches the scalers with these ports for HTTP.
    pub(crate) fn start(ports: [u16; 2]) -> KedaWatch {
        let seen = Arc::new(Mutex::new(KedaWatch::new_calls()));
        let watching = watch(ports, Arc::clone(&seen));
        KedaWatch { seen, _task: AbortOnDropHandle::new(tokio::spawn(watching)) }
    }

    /// Calls that were answered since the last word, the longest time without one, and which of them
    /// have answered at all; it begins anew.
    pub(crate) fn take(&self) -> (u64, Duration) {
        let mut seen = lock(&self.seen);
        let gap = seen.longest_gap.max(seen.last.elapsed());
        let n_calls = std::mem::take(&mut seen.n_calls);
        seen.longest_gap = Duration::ZERO;
        (n_calls, gap)
    }

    /// Waits until KEDA has asked this one; `None` if it does not within this time.
    pub(crate) async fn asked_within(&self, index: usize, within: Duration) -> Option<()> {
        let before = lock(&self.seen).answered[index];
        let asked = async {
            while lock(&self.seen).answered[index] <= before {
                sleep(INTERVAL).await;
            }
        };
        timeout(within, asked).await.ok()
    }

    /// Which of them KEDA has asked last, by waiting for its next call.
    pub(crate) async fn asked(&self) -> usize {
        let before = lock(&self.seen).answered;
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let now = lock(&self.seen).answered;
            if let Some(index) = [0, 1].into_iter().find(|index| now[*index] > before[*index]) {
                return index;
            }
            assert!(Instant::now() < end, "KEDA has asked nobody for a minute");
            sleep(INTERVAL).await;
        }
    }
}

async fn watch(ports: [u16; 2], seen: Arc<Mutex<Calls>>) {
    let client = reqwest::Client::builder().no_proxy().timeout(LATE).build().unwrap();
    loop {
        for (index, port) in ports.into_iter().enumerate() {
            let page = client.get(format!("http://127.0.0.1:{port}/metrics")).send().await;
            let Ok(Ok(page)) = page.map(reqwest::Response::error_for_status) else { continue };
            let answered = n_answered(&page.text().await.unwrap_or_default());
            let mut seen = lock(&seen);
            // One that has started anew counts from zero.
            let more = answered.saturating_sub(seen.answered[index]);
            seen.answered[index] = answered;
            if more > 0 {
                seen.n_calls += more;
                seen.longest_gap = seen.longest_gap.max(seen.last.elapsed());
                seen.last = Instant::now();
            }
        }
        sleep(INTERVAL).await;
    }
}

fn n_answered(page: &str) -> u64 {
    let calls = page.lines().filter(|line| {
        line.starts_with("ghostscaler_grpc_requests_total{")
            && line.contains("rpc=\"IsActive\"")
            && line.contains("code=\"OK\"")
    });
    calls.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// What many clients at once were answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Herd {
    pub(crate) n_answered: usize,
    /// Answers that differ from the others'.
    pub(crate) n_wrong: usize,
    /// Tries that were refused or late.
    pub(crate) n_failed: usize,
    /// Until the last of them had its answer.
    pub(crate) took: Duration,
}

impl std::fmt::Display for Herd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Herd { n_answered, n_wrong, n_failed, took } = self;
        write!(
            f,
            "{n_answered} answered within {took:.1?}, {n_failed} tries failed, {n_wrong} differ"
        )
    }
}

/// So many clients connect at once, each on a connection of its own that it keeps until all have been
/// answered, and ask what KEDA asks of a new ScaledObject; who fails tries again, as KEDA does.
pub(crate) async fn herd(url: &str, object: &ScaledObjectRef, n_clients: usize) -> Herd {
    let started_at = Instant::now();
    let one = || {
        let (url, object) = (url.to_owned(), object.clone());
        tokio::spawn(async move {
            let mut n_failed = 0;
            while started_at.elapsed() < Duration::from_secs(60) {
                if let Some((count, client)) = try_once(&url, &object).await {
                    return (Some(count), n_failed, Some(client));
                }
                n_failed += 1;
                sleep(INTERVAL * 5).await;
            }
            (None, n_failed, None)
        })
    };
    let clients: Vec<_> = (0..n_clients).map(|_| one()).collect();
    let ended: Vec<_> = futures_util::future::join_all(clients).await;
    let ended: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
    let counts: Vec<i64> = ended.iter().filter_map(|(count, ..)| *count).collect();
    Herd {
        n_answered: counts.len(),
        n_wrong: counts.iter().filter(|count| Some(*count) != counts.first()).count(),
        n_failed: ended.iter().map(|(_, n_failed, _)| n_failed).sum(),
        took: started_at.elapsed(),
    }
}

async fn try_once(
    url: &str,
    object: &ScaledObjectRef,
) -> Option<(i64, ExternalScalerClient<Channel>)> {
    let connect = ExternalScalerClient::connect(url.to_owned());
    let mut client = timeout(LATE * 5, connect).await.ok()?.ok()?;
    timeout(LATE * 5, client.get_metric_spec(object.clone())).await.ok()?.ok()?;
    let count = wanted(&mut client, object).await?;
    Some((count, client))
}
