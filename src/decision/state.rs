//! What must be remembered of a workload between ticks.
//!
//! Compact, and restored exactly from its JSON form. Must not hold anything that a second look
//! at the same input would change.

use serde::{Deserialize, Serialize};

use super::cost::CostModel;
use super::evidence::Evidence;
use super::ghost::Ghost;
use super::gpu::GpuState;
use super::leaving::LeavingState;
use super::level::{Figures, Learned};
use super::members::Members;
use super::queue::QueueState;
use super::supply::SupplyState;
use super::wake::WakeState;
use super::window::Window;
use super::zero::ZeroState;
use super::{LevelSource, Moment};

/// The memory of one workload. [`State::default`] is a new start, which knows nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    version: u32,
    /// No whole tick since the start.
    pub(super) just_started: bool,
    /// An engine has answered at least once, in this life or a restored one.
    pub(super) observed: bool,
    pub(super) last_tick: Option<Moment>,
    /// The last known spec of the scale target.
    pub(super) spec: Option<u32>,
    /// The last wanted count.
    pub(super) want: Option<u32>,
    pub(super) degraded_since: Option<Moment>,
    pub(super) lost_since: Option<Moment>,
    /// Where the level came from at the last tick.
    pub(super) source: LevelSource,
    pub(super) told: Told,
    pub(super) members: Members,
    pub(super) window: Window,
    pub(super) cost: CostModel,
    pub(super) learned: Learned,
    pub(super) figures: Figures,
    pub(super) supply: SupplyState,
    pub(super) queue: QueueState,
    pub(super) gpu: GpuState,
    pub(super) evidence: Evidence,
    pub(super) ghost: Ghost,
    pub(super) zero: ZeroState,
    pub(super) wake: WakeState,
    #[serde(skip_serializing_if = "LeavingState::is_idle")]
    pub(super) leaving: LeavingState,
}

/// When each condition was last seen to stand, so that it is told once and not each time that it
/// comes back after a tick.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Told {
    pub(super) degraded: bool,
    pub(super) no_wake_source: Option<Moment>,
    pub(super) not_serving: Option<Moment>,
    pub(super) stuck: Option<Moment>,
    pub(super) imbalance: Option<Moment>,
    pub(super) exhausted: Option<Moment>,
}

impl State {
    /// The version of the form in which state is kept. A state of another version is a new start.
    pub const VERSION: u32 = 3;

    /// Marks a restart: what was learned and the evidence stay, and nothing goes below the
    /// present count before a whole tick was seen and a whole hold of evidence stands. A state
    /// of another version becomes a new start.
    #[must_use]
    pub fn restored(mut self) -> State {
        if self.version != State::VERSION {
            return State::default();
        }
        self.just_started = true;
        self
    }

    /// Takes over from another process without a gap: everything goes on as it was. A state of
    /// another version becomes a new start.
    #[must_use]
    pub fn handed_over(self) -> State {
        if self.version == State::VERSION { self } else { State::default() }
    }

    /// The last wanted count.
    #[must_use]
    pub fn want(&self) -> Option<u32> {
        self.want
    }
}

impl Default for State {
    fn default() -> Self {
        State {
            version: State::VERSION,
            just_started: true,
            observed: false,
            last_tick: None,
            spec: None,
            want: None,
            degraded_since: None,
            lost_since: None,
            source: LevelSource::default(),
            told: Told::default(),
            members: Members::default(),
            window: Window::default(),
            cost: CostModel::default(),
            learned: Learned::default(),
            figures: Figures::default(),
            supply: SupplyState::default(),
            queue: QueueState::default(),
            gpu: GpuState::default(),
            evidence: Evidence::default(),
            ghost: Ghost::default(),
            zero: ZeroState::default(),
            wake: WakeState::default(),
            leaving: LeavingState::default(),
        }
    }
}
