//! What the scenarios of two scalers have in common: a count in the middle of its range that nothing may
//! move, with everybody looking on.
//!
//! Must have a minimum of zero, where an error or a hang may cost all replicas, and the times that
//! `generate` writes against that.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::asker::{Asker, KedaWatch, Twins};
use crate::objects::{Scaled, Target};
use crate::pair::Pair;
use crate::scene::Scene;

/// Replicas, of up to [`MAX`]. One of them would do: whoever forgets that the hold of an hour has hardly
/// begun lets the others go, and whoever sees less than there is orders more.
pub(super) const COUNT: u32 = 4;
const MAX: u32 = 14;
/// What one replica of the test's engine carries well, in requests a second.
const ONE_REPLICA: f64 = 1.0;
/// KEDA's own interval in these scenarios.
pub(super) const POLL: Duration = Duration::from_secs(5);
/// The follower has a change after 100 ms; a machine under load takes its time.
const BEHIND: Duration = Duration::from_secs(1);

/// Two scalers, four replicas, and those who ask.
pub(super) struct Stage {
    pub(super) pair: Pair,
    pub(super) keda: KedaWatch,
    asker: Asker,
    twins: Twins,
}

/// For how long nobody may have an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Within {
    /// Somebody who gives up after a second, as no KEDA does.
    pub(super) asker: Duration,
    pub(super) keda: Duration,
}

impl Within {
    /// Nobody misses more than a poll, and KEDA's polls are five seconds apart.
    pub(super) const A_POLL: Within = Within { asker: POLL, keda: Duration::from_secs(13) };
    /// The same for each of two replicas that are replaced one after the other.
    pub(super) const A_POLL_EACH: Within = Within { asker: POLL, keda: Duration::from_secs(18) };
}

/// As `generate` writes it.
pub(super) fn scaled(address: &str) -> Scaled {
    let scaled = Scaled::new(address, 0, MAX).with_defaults();
    scaled.with("ghostHold", "1h").with("zeroAfter", "never")
}

impl Stage {
    /// Sets it up; `None`, with a word of it, where no balancer is installed.
    pub(super) async fn open(scene: &mut Scene) -> Option<Stage> {
        Stage::open_with(scene, |_| {}).await
    }

    /// The same, with something changed before the scalers start.
    pub(super) async fn open_with(
        scene: &mut Scene,
        change: impl FnOnce(&mut Pair),
    ) -> Option<Stage> {
        let mut pair = Pair::prepare(scene).await?;
        change(&mut pair);
        scene.deploy(&Target::new(COUNT)).await;
        pair.start_both().await;
        let scaled = scaled(&pair.address());
        scene.scale_with(&scaled);
        scene.load(ONE_REPLICA).await;
        let (asker, twins) = (pair.ask(scaled.metadata()), pair.compare(scaled.metadata()));
        let keda = pair.watch_keda();
        let stage = Stage { pair, keda, asker, twins };
        stage.until_equal(scene).await;
        // By its second call KEDA has its HPA.
        stage.keda.asked().await;
        stage.keda.asked().await;
        scene.until("nothing moves", 30, |now| now.spec == Some(COUNT)).await;
        stage.asker.take();
        stage.twins.take();
        stage.keda.take();
        Some(stage)
    }

    /// Waits until both would answer the same.
    pub(super) async fn until_equal(&self, scene: &mut Scene) {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let (one, two) = tokio::join!(self.pair.answer_of(0), self.pair.answer_of(1));
            if let (Some((one, _)), Some((two, _))) = (&one, &two)
                && one == two
            {
                scene.timeline.say(&format!("both answer {one}"));
                return;
            }
            assert!(Instant::now() < end, "they contradict each other for 30 s: {one:?} {two:?}");
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// The count stays, in both directions, for so long.
    pub(super) async fn stays(&self, scene: &mut Scene, what: &str, for_s: u64) {
        scene.stays(what, for_s, |now| now.spec == Some(COUNT)).await;
    }

    /// Since the last word: nothing but the count was answered, in time, and never two things at once.
    pub(super) fn held(&self, scene: &mut Scene, what: &str, within: Within) {
        let (counts, gap) = self.asker.take();
        let (compared, (n_calls, keda_gap)) = (self.twins.take(), self.keda.take());
        scene.timeline.say(&format!(
            "{what}: answered {counts:?}, longest gap {gap:.1?}; KEDA's {n_calls} calls, longest gap \
             {keda_gap:.1?}; asked at once {} times, at odds for {:.1?}",
            compared.n_both, compared.longest
        ));
        assert_eq!(counts, [i64::from(COUNT)], "{what}");
        assert!(gap < within.asker, "{what}: {gap:?} without an answer");
        assert!(keda_gap < within.keda, "{what}: KEDA was {keda_gap:?} without an answer");
        assert!(compared.longest < BEHIND, "{what}: {compared:?}");
        assert!(compared.n_both > 0, "{what}: never asked at once");
    }

    /// The loop still moves: a floor above the count is followed.
    pub(super) async fn still_works(self, scene: &mut Scene) {
        let floor = crate::objects::all_day(COUNT + 2);
        scene.scale_with(&scaled(&self.pair.address()).with("warmSchedule", &floor));
        scene.until("a higher floor is followed", 120, |now| now.spec == Some(COUNT + 2)).await;
        self.until_equal(scene).await;
    }
}
