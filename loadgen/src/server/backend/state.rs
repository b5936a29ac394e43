//! What a server's lock protects: the engines and everything that must agree with them.
//!
//! Must not read a clock or wait.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::{Life, Refusal, Settings, Wanted};
use crate::engine::{Condition, Gauges, PS_PER_MS, Replica, Request, SleepLevel, Time};
use crate::exposition::{self, Http, Rank, Server};
use crate::server::clock::Clock;
use crate::server::feed::{Feed, Feeds};
use crate::server::pathology::{Pathology, Schedule};

/// Engines catch up in pieces of at most that much simulated time, so that one whose steps take
/// longer to compute than to pass keeps nobody from the lock.
const SLICE_PS: u64 = 10 * PS_PER_MS;

/// A hang is renewed at least that often.
const HANG_PS: u64 = 100 * PS_PER_MS;

/// Mean length of an output that the model ends by itself: the simulated model stops after each
/// token with a probability of one in that many.
const MEAN_OUTPUT_TOKENS: f64 = 256.0;

/// A server's state.
#[derive(Debug)]
pub(super) struct State {
    // Invariant: the engines have been advanced to it.
    at: Time,
    ranks: Vec<Replica>,
    feeds: Feeds,
    rng: Pcg64Mcg,
    settings: Arc<Settings>,
    clock: Clock,
    process: u32,
    started_unix_s: f64,
    restart_at: Option<Time>,
    pub(super) schedule: Schedule,
    pub(super) http: Http,
    /// Exchanges under way, by API server.
    pub(super) load: Arc<[AtomicUsize]>,
    api_server: usize,
    rejections: u64,
    frozen: Option<Vec<Gauges>>,
    stuck: Option<Stuck>,
    /// Steps that a reader of the JSON has been told.
    told_steps: u64,
}

/// Gauges that stay as they were when a client went away.
#[derive(Debug)]
struct Stuck {
    gauges: Vec<Gauges>,
    /// Tokens that had been made by then; another one ends it.
    tokens: u64,
}

impl State {
    pub(super) fn new(settings: &Arc<Settings>, clock: Clock) -> State {
        let now = clock.now();
        let started_unix_s = clock.unix_s(now);
        State {
            at: now,
            ranks: start(settings, settings.starts_cold, now),
            feeds: Feeds::default(),
            rng: Pcg64Mcg::seed_from_u64(settings.seed),
            settings: Arc::clone(settings),
            clock,
            process: 0,
            started_unix_s,
            restart_at: None,
            schedule: Schedule::default(),
            http: Http::new(started_unix_s),
            load: idle(settings),
            api_server: 0,
            rejections: 0,
            frozen: None,
            stuck: None,
            told_steps: 0,
        }
    }

    pub(super) fn life(&self) -> Life {
        Life {
            condition: self.ranks[0].condition(),
            process: self.process,
            listens_while_loading: self.settings.dialect.manners.listens_while_loading,
        }
    }

    /// Lets time pass until the clock's time, or a slice of it; returns how far it got.
    pub(super) fn catch_up(&mut self, clock: Time) -> Time {
        self.hang(clock);
        let next_step = self.ranks.iter_mut().filter_map(Replica::next_event).min();
        let to = match next_step {
            Some(step) if step <= clock => clock.min(self.at.plus_ps(SLICE_PS).max(step)),
            Some(_) | None => clock,
        };
        self.at = self.at.max(to);
        let watch = self.feeds.watch();
        for rank in &mut self.ranks {
            rank.advance(self.at, watch, &mut |event| self.feeds.take(event));
        }
        self.feeds.publish();
        if self.restart_at.is_some_and(|due| due <= self.at) {
            self.restart(true);
        }
        for pathology in self.schedule.begin(self.at) {
            self.begin(&pathology);
        }
        self.at
    }

    /// When something happens next by itself.
    pub(super) fn next_event(&mut self) -> Option<Time> {
        let step = self.ranks.iter_mut().filter_map(Replica::next_event).min();
        let gone = self.life().condition == Condition::Gone && self.restart_at.is_none();
        let fault = self.schedule.next_change().filter(|_| !gone);
        [step, self.restart_at, fault].into_iter().flatten().min()
    }

    pub(super) fn submit(
        &mut self,
        wanted: Wanted,
        now: Time,
    ) -> Result<(u64, Arc<Feed>), Refusal> {
        if self.admission_limit().is_some_and(|most| self.in_flight() >= most) {
            self.rejections += 1;
            return Err(Refusal::Busy);
        }
        let output_tokens = if wanted.ignores_eos {
            wanted.max_tokens
        } else {
            self.own_length().max(wanted.min_tokens).min(wanted.max_tokens)
        };
        let id = self.feeds.next_id();
        let request = Request {
            max_tokens: wanted.max_tokens,
            prefix: wanted.prefix,
            ..Request::new(id, wanted.prompt_tokens, output_tokens)
        };
        let least = (0..self.ranks.len()).min_by_key(|&rank| self.ranks[rank].engine().in_flight());
        let rank = least.unwrap_or(0);
        self.ranks[rank].submit(request, now).map_err(Refusal::Engine)?;
        Ok((id, self.feeds.add(rank, wanted.streams)))
    }

    /// Takes a request out whose client has gone; false if it has ended.
    pub(super) fn abort(&mut self, id: u64) -> bool {
        let Some(rank) = self.feeds.forget(id) else {
            return false;
        };
        if self.settings.dialect.manners.gauges_stick_after_abort
            || self.schedule.is_in_force(&Pathology::StuckAfterAbort)
        {
            let tokens = self.tokens();
            if self.stuck.as_ref().is_none_or(|stuck| stuck.tokens != tokens) {
                self.stuck = Some(Stuck { gauges: self.gauges(), tokens });
            }
        }
        self.ranks[rank].engine_mut().abort(id)
    }

    pub(super) fn next_api_server(&mut self) -> usize {
        self.api_server = (self.api_server + 1) % self.load.len();
        self.api_server
    }

    pub(super) fn sleep(&mut self, level: SleepLevel, now: Time) {
        for rank in &mut self.ranks {
            rank.sleep(level, now, &mut |event| self.feeds.take(event));
        }
    }

    pub(super) fn wake(&mut self, now: Time) {
        for rank in &mut self.ranks {
            rank.wake(now, &mut |event| self.feeds.take(event));
        }
    }

    pub(super) fn terminate(&mut self, now: Time) {
        self.restart_at = None;
        let drains = self.settings.profile.shutdown.timeout_s > 0.0;
        if self.settings.dialect.manners.hangs_on_sigterm {
            self.feeds.abandon();
        } else if self.ranks.len() > 1 && !drains {
            // With several ranks nobody is left to end the answers.
            self.feeds.abandon();
            self.process += 1;
        }
        for rank in &mut self.ranks {
            rank.terminate(now, &mut |event| self.feeds.take(event));
        }
    }

    pub(super) fn page(&mut self) -> String {
        let settings = Arc::clone(&self.settings);
        let tokens = self.tokens();
        self.stuck.take_if(|stuck| stuck.tokens != tokens);
        if !self.schedule.is_in_force(&Pathology::StaleGauges) {
            self.frozen = None;
        }
        let stuck = self.stuck.as_ref().map(|stuck| &stuck.gauges);
        let shown = self.frozen.as_ref().or(stuck);
        let mut ranks: Vec<Rank<'_>> = self.ranks.iter().map(Rank::of).collect();
        for (rank, gauges) in ranks.iter_mut().zip(shown.into_iter().flatten()) {
            rank.gauges = *gauges;
        }
        let mut server = Server {
            rejections: self.rejections,
            started_unix_s: self.started_unix_s,
            now_unix_s: self.clock.unix_s(self.at),
            log_stats: !self.schedule.is_in_force(&Pathology::StatsOff),
            ..Server::new(&settings.model_name, &ranks, &self.http)
        };
        server.multiprocess |= settings.n_api_servers > 1;
        if let Some(prefix) = self.schedule.in_force().find_map(Pathology::prefix) {
            server.namespace = Some(prefix);
        }
        let mut page = String::with_capacity(64 * 1024);
        exposition::render(settings.dialect, &server, &mut page);
        page
    }

    /// What trtllm-serve answers where others have their page.
    ///
    /// A step is told to its first reader only.
    pub(super) fn iterations(&mut self) -> String {
        let steps = |rank: &Replica| rank.engine().metrics().iteration_tokens.count();
        let steps: u64 = self.ranks.iter().map(steps).sum();
        if std::mem::replace(&mut self.told_steps, steps) == steps {
            return exposition::iterations(&[]);
        }
        exposition::iterations(&self.ranks.iter().map(Rank::of).collect::<Vec<_>>())
    }

    pub(super) fn slots(&self) -> Vec<bool> {
        let running: usize =
            self.ranks.iter().map(|rank| rank.engine().metrics().gauges.running).sum();
        let slots = self.settings.profile.limits.max_num_seqs * self.ranks.len();
        (0..slots).map(|slot| slot < running).collect()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.ranks.iter().map(|rank| rank.engine().in_flight()).sum()
    }

    fn begin(&mut self, pathology: &Pathology) {
        match pathology {
            Pathology::Hang => self.hang(self.at),
            Pathology::StaleGauges => self.frozen = Some(self.gauges()),
            Pathology::CounterReset => self.restart(false),
            Pathology::OomKill(down_ms) => {
                self.feeds.crash();
                for rank in &mut self.ranks {
                    rank.kill(self.at, &mut |event| self.feeds.take(event));
                }
                self.restart_at = Some(self.at.plus_ps(down_ms.saturating_mul(PS_PER_MS)));
            }
            Pathology::StuckAfterAbort
            | Pathology::SlowScrape(_)
            | Pathology::StatsOff
            | Pathology::RenamedMetrics(_)
            | Pathology::AdmissionLimit(_) => {}
        }
    }

    /// While a hang is in force, no step ends in the next moment.
    fn hang(&mut self, now: Time) {
        if self.schedule.is_in_force(&Pathology::Hang) {
            for rank in &mut self.ranks {
                rank.engine_mut().stall(now.plus_ps(HANG_PS));
            }
        }
    }

    /// Another process takes the place of this one.
    fn restart(&mut self, cold: bool) {
        self.restart_at = None;
        self.feeds.abandon();
        self.ranks = start(&self.settings, cold && self.settings.starts_cold, self.at);
        self.process += 1;
        self.started_unix_s = self.clock.unix_s(self.at);
        self.http = Http::new(self.started_unix_s);
        self.load = idle(&self.settings);
        self.rejections = 0;
        self.frozen = None;
        self.stuck = None;
        self.told_steps = 0;
    }

    fn admission_limit(&self) -> Option<usize> {
        self.schedule.in_force().filter_map(Pathology::admission_limit).min()
    }

    fn gauges(&self) -> Vec<Gauges> {
        self.ranks.iter().map(|rank| rank.engine().metrics().gauges).collect()
    }

    pub(super) fn tokens(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.engine().metrics().generation_tokens).sum()
    }

    /// After how many tokens the model ends by itself this time.
    fn own_length(&mut self) -> u32 {
        let uniform = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let length = 1.0 - (1.0 - uniform).ln() * MEAN_OUTPUT_TOKENS;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 1, and the logarithm of a multiple of 2^-53 is above -37"
        )]
        let length = length as u32;
        length
    }
}

fn start(settings: &Settings, cold: bool, now: Time) -> Vec<Replica> {
    let one = || match cold {
        // The ranks of a server start together.
        true => Replica::cold(Arc::clone(&settings.profile), settings.seed, now),
        false => Replica::warm(Arc::clone(&settings.profile)),
    };
    (0..settings.n_ranks).map(|_| one()).collect()
}

fn idle(settings: &Settings) -> Arc<[AtomicUsize]> {
    (0..settings.n_api_servers).map(|_| AtomicUsize::new(0)).collect()
}
