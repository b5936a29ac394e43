//! Rule 1: work demand holds the level.
//!
//! Must not look at queues: what waits leads in `queue`, the level follows what is demanded.

mod full;
mod late;
mod learned;
mod pool;
mod price;
#[cfg(test)]
mod tests;

use super::members::Seen;
use super::number::ceil_count;
use super::supply::Supply;
use super::window::Means;
use super::{LevelSource, Part, Profile, Reason, Rule, Spec, Vote, headroom};
#[cfg(test)]
use learned::Saturation;
pub(super) use learned::{Figures, Learned};
pub(super) use pool::replicas;
pub(super) use price::Price;

/// Share of the fitted capacity that is trusted before anything was seen, and factor on the
/// highest healthy rate seen (DESIGN: real engines bend where the fit has not been).
const TRUST_UNSEEN: f64 = 0.6;
const TRUST_BEYOND_SEEN: f64 = 1.3;
/// Share of the fitted capacity that a single step down may count on, after twice the hold.
pub(super) const TRUST_TRIAL: f64 = 0.85;
/// Share of the in-flight reference that survivors of a step down may carry, until learned.
const IN_FLIGHT_CARRY: f64 = 0.7;
/// However large the margin, a replica is planned with this share of its capacity.
const RHO_SHARE_MIN: f64 = 0.3;
/// Noise of ±5 % on each sample of each replica moves the mean of a minute, twelve samples at
/// least, by 5 %/√3/√12 = 0.8 % (one sigma): three of them each way.
const NOISE: f64 = 1.05;
/// Work below this is none: one token in a quarter of an hour.
const NO_WORK: f64 = 1e-6;

/// What one tick gives the level to go by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) spec: &'a Spec,
    pub(super) seen: &'a Seen,
    pub(super) supply: &'a Supply,
    /// Means of the last minute.
    pub(super) minute: Option<&'a Means>,
    /// Means of the last quarter of it.
    pub(super) recent: Option<&'a Means>,
}

/// The level of one tick.
#[derive(Debug, Clone)]
pub(super) struct Level {
    pub(super) source: LevelSource,
    /// Prices in force, with a learned source.
    pub(super) price: Option<Price>,
    /// Work demanded, replica-seconds per second.
    pub(super) work: Option<f64>,
    /// The same over the last seconds.
    pub(super) recent_work: f64,
    /// Of the work, what was served over the last seconds.
    pub(super) recent_served: f64,
    /// The same without what only the number of arrivals says.
    pub(super) recent_balance: f64,
    pub(super) headroom: f64,
    /// Utilisation at which a replica is full, as far as it is trusted.
    pub(super) cap: f64,
    /// What waiting needs of a pool.
    pub(super) margin: f64,
    /// Utilisation planned for a replica of this pool.
    pub(super) rho: Option<f64>,
    /// Engine seconds of one mean request.
    pub(super) request_s: Option<f64>,
    /// Replicas needed, unrounded, for raising.
    pub(super) need: Option<f64>,
    /// Replicas that would have carried this tick, unrounded; `None` when that is not known.
    pub(super) carry: Option<f64>,
    /// The same, trusting a single step with more.
    pub(super) carry_trial: Option<f64>,
    /// The count wanted.
    pub(super) want: Option<u32>,
    pub(super) reason: Reason,
}

impl Level {
    pub(super) fn vote(&self) -> Vote {
        Vote { rule: Rule::Demand, want: self.want, reason: self.reason }
    }

    fn silent(source: LevelSource, reason: Reason) -> Level {
        Level {
            source,
            work: None,
            recent_work: 0.0,
            price: None,
            recent_served: 0.0,
            recent_balance: 0.0,
            headroom: 0.0,
            cap: 0.0,
            margin: 0.0,
            rho: None,
            request_s: None,
            need: None,
            carry: None,
            carry_trial: None,
            want: None,
            reason,
        }
    }
}

/// Asks the best source that is in force.
pub(super) fn ask(ask: &Ask<'_>, figures: &Figures, band: &Band) -> Level {
    if ask.spec.target_in_flight.is_none()
        && ask.spec.has(Part::Demand)
        && let Some(minute) = ask.minute
        && let Some(price) = Price::of(ask, minute, figures)
    {
        return by_work(ask, minute, &price, figures, band);
    }
    by_in_flight(ask, figures, band)
}

fn by_work(ask: &Ask<'_>, minute: &Means, price: &Price, figures: &Figures, band: &Band) -> Level {
    let work = price.demanded(minute);
    let headroom = if work > NO_WORK && ask.spec.has(Part::Headroom) {
        headroom::at(work, figures.growth)
    } else {
        0.0
    };
    let n_live = f64::from(ask.seen.live.max(1));
    let trusted = match price.source {
        LevelSource::CostModel if ask.spec.has(Part::Trust) => {
            let now = if figures.healthy { price.served(minute) / n_live } else { 0.0 };
            let seen = price.of_flow(figures.healthiest).max(now).max(figures.reach);
            price.cap.min((TRUST_BEYOND_SEEN * seen).max(TRUST_UNSEEN * price.cap))
        }
        // Measured at saturation, not extrapolated.
        LevelSource::CostModel
        | LevelSource::Saturation
        | LevelSource::InFlight
        | LevelSource::Unlearned => price.cap,
    };
    let trial = trusted.max(TRUST_TRIAL * price.cap);
    // How much one of them carries, a minute that others have shared does not tell: until then the
    // queue raises, and the level only where the fit itself says so.
    let cap = if figures.trial || !figures.settled { trial } else { trusted };
    let margin = price.margin * figures.margin;
    let load = work + headroom;
    // However large the pool, none is planned fuller than a full one was seen to be.
    let n_planned = |cap: f64| replicas(load, cap, margin).max(load / price.full);
    let need = n_planned(cap);
    // What each carries in a pool of the larger of what there is and what is needed.
    let pool = need.max(f64::from(ask.supply.base)).max(1.0);
    let rho = (cap * (1.0 - margin / pool.sqrt()).max(RHO_SHARE_MIN)).min(price.full);
    Level {
        source: price.source,
        work: Some(work),
        recent_work: ask.recent.map_or(work, |recent| price.demanded(recent)),
        recent_balance: ask.recent.map_or(work, |recent| price.balance(recent)),
        price: Some(*price),
        recent_served: ask.recent.map_or(0.0, |recent| price.served(recent)),
        headroom,
        cap,
        margin,
        rho: Some(rho),
        request_s: price.request_s,
        need: Some(need),
        carry: Some(n_planned(trusted)),
        carry_trial: Some(n_planned(trial)),
        want: Some(band.count(need, ask.supply.base)),
        reason: Reason::Work { work, headroom, rho, need },
    }
}

/// In-flight requests: by the user's target, by a preset where the engine has nothing to learn
/// from, else only to hold.
fn by_in_flight(ask: &Ask<'_>, figures: &Figures, band: &Band) -> Level {
    let preset = preset(ask.spec.profile);
    let (source, per_replica) = match ask.spec.target_in_flight {
        Some(target) => (LevelSource::InFlight, target),
        None if ask.seen.live > 0 && !ask.seen.learnable => (LevelSource::InFlight, preset),
        None => (LevelSource::Unlearned, preset),
    };
    let reference = match ask.spec.target_in_flight {
        Some(target) => target,
        None => figures.most_in_flight.unwrap_or(preset),
    };
    let mut level = Level::silent(source, Reason::Learning { rows: figures.rows });
    let nothing_waits = ask.seen.waiting.is_none_or(|waiting| waiting <= 0.0);
    level.carry = ask.seen.in_flight().map(|in_flight| {
        let need = in_flight / (IN_FLIGHT_CARRY * reference.max(1.0));
        if nothing_waits { need } else { need.max(f64::from(ask.supply.base)) }
    });
    level.request_s = figures.saturation.and_then(|saturation| saturation.request_s());
    if source == LevelSource::Unlearned {
        return level;
    }
    let Some(minute) = ask.minute else {
        return level;
    };
    // The mean goes on for a minute after a load has gone. What evidence shorter than that has let go
    // would be ordered back for nobody.
    let in_flight = ask.seen.in_flight().map_or(minute.in_flight, |now| now.min(minute.in_flight));
    let need = in_flight / per_replica.max(f64::MIN_POSITIVE);
    level.reason = Reason::InFlight { in_flight, per_replica, need };
    level.need = Some(need);
    let count = band.count(need, ask.supply.base);
    level.want = Some(if ask.spec.target_in_flight.is_some() {
        count
    } else {
        // A preset is a guess: one replica a cold start, while it is put to the test.
        figures.one_a_cold_start(count, ask.supply)
    });
    level
}

/// In-flight requests of one replica that are assumed until measured (eval.md 5.4: the best fixed
/// targets were 4 for long prompts, 32 for chat; offline work fills what a batch holds).
pub(super) fn preset(profile: Profile) -> f64 {
    match profile {
        Profile::Chat => 32.0,
        Profile::LongContext => 4.0,
        Profile::Batch => 64.0,
    }
}

/// Keeps noise from taking back what was just let go, and from letting go what it just asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub(super) struct Band {
    /// The count of the last release, and the largest need in the hold before it.
    released: Option<(u32, f64)>,
    /// The count of the last raise by the level, and the need that asked for it.
    raised: Option<(u32, f64)>,
}

impl Band {
    /// The count for a need: more than `base` only where the need is above it by more than noise.
    fn count(&self, need: f64, base: u32) -> u32 {
        let carried = match self.released {
            Some((to, released_need)) if to == base => released_need * NOISE,
            Some(_) | None => 0.0,
        };
        let count = ceil_count(need);
        if need <= carried { count.min(base) } else { count }
    }

    /// Whether the last release, to `want`, still stands.
    pub(super) fn stands(&self, want: u32, need: f64) -> bool {
        self.released.is_some_and(|(to, released_need)| to == want && need <= released_need * NOISE)
    }

    /// The smallest count that may be released to, given the largest need of the hold.
    pub(super) fn floor(&self, largest_need: f64) -> u32 {
        let carried = ceil_count(largest_need);
        match self.raised {
            Some((to, need)) if carried < to && largest_need * NOISE > need => to,
            Some(_) | None => carried,
        }
    }

    pub(super) fn released(&mut self, to: u32, largest_need: f64) {
        *self = Band { released: Some((to, largest_need)), raised: None };
    }

    pub(super) fn raised(&mut self, to: u32, need: Option<f64>) {
        *self = Band { released: None, raised: need.map(|need| (to, need)) };
    }
}
