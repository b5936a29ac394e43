//! The election against an API server on a real socket.

use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::cluster::fixtures::Store;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/gs/leases/ghostscaler";

/// One candidate; it is stopped when dropped.
struct Running {
    standing: watch::Receiver<Standing>,
    resign: Resignation,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Running {
    /// Twenty times faster than in a cluster, but for the lease's duration, which is in whole seconds.
    fn start(store: &Store, identity: &str) -> Running {
        Running::start_for(store, identity, Duration::from_secs(1))
    }

    fn start_for(store: &Store, identity: &str, duration: Duration) -> Running {
        let options = Options {
            duration,
            renew_within: renew_within(duration),
            interval: Duration::from_millis(100),
            ..Options::new("gs", "ghostscaler", identity)
        };
        let (publish, standing) = watch::channel(Standing::Following { leader: None });
        let (resign, stop) = (Resignation::default(), CancellationToken::new());
        let clock = Clock::start();
        let client = store.client();
        let task = tokio::spawn(run(client, options, clock, publish, resign.clone(), stop.clone()));
        Running { standing, resign, stop, task }
    }

    async fn until(&mut self, is: impl FnMut(&Standing) -> bool) -> Standing {
        let wait = self.standing.wait_for(is);
        let found = timeout(Duration::from_secs(20), wait).await;
        found.expect("within 20 s").expect("the election runs").clone()
    }

    async fn until_leading(&mut self) {
        self.until(|standing| matches!(standing, Standing::Leading { .. })).await;
    }

    async fn until_following(&mut self, leader: &str) {
        let seen = Standing::Following { leader: Some(leader.into()) };
        self.until(|standing| *standing == seen).await;
    }

    fn is_leading(&self) -> bool {
        let standing = self.standing.borrow();
        matches!(*standing, Standing::Leading { until } if Instant::now() < until)
    }
}

/// A leader decides for 600 ms of a lease of a second after each renewal.
fn renew_within(duration: Duration) -> Duration {
    duration * 3 / 5
}

/// A lease of which a busy machine takes no leader by standing still for a moment.
const LASTING: Duration = Duration::from_secs(5);

fn moment(store: &Store, key: &str) -> Timestamp {
    store.get(PATH).unwrap()["spec"][key].as_str().unwrap().parse().unwrap()
}

fn holder(store: &Store) -> Value {
    store.get(PATH).map_or(Value::Null, |lease| lease["spec"]["holderIdentity"].clone())
}

#[tokio::test]
async fn one_leads_the_other_follows_and_takes_over_at_once_when_it_is_given_up() {
    let store = Store::start().await;
    // Nobody has the patience to wait for the end of that.
    let long = Duration::from_secs(3_600);
    let mut first = Running::start_for(&store, "a", long);
    first.until_leading().await;
    let lease = store.get(PATH).unwrap();
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 3_600);
    assert_eq!(lease["spec"]["leaseTransitions"], 1);

    let mut second = Running::start_for(&store, "b", long);
    second.until_following("a").await;
    first.resign.asked.cancel();
    second.until_leading().await;
    first.until_following("b").await;
    assert_eq!(holder(&store), "b");
    assert_eq!(store.get(PATH).unwrap()["spec"]["leaseTransitions"], 3);
}

#[tokio::test]
async fn a_dead_leader_is_followed_after_the_lease_and_never_before() {
    let store = Store::start().await;
    let mut first = Running::start(&store, "a");
    first.until_leading().await;
    let mut second = Running::start(&store, "b");
    second.until_following("a").await;
    first.task.abort();
    let last = moment(&store, "renewTime");
    second.until_leading().await;
    let taken = moment(&store, "acquireTime");
    assert!(taken.duration_since(last) >= SignedDuration::from_secs(1), "{last} to {taken}");
}

#[tokio::test]
async fn a_clock_that_is_hours_wrong_changes_nothing() {
    let store = Store::start().await;
    let mut first = Running::start(&store, "a");
    first.until_leading().await;
    // Renewed for ever by a process whose clock stands in the last century.
    first.stop.cancel();
    let mut second = Running::start_for(&store, "b", LASTING);
    for _ in 0..15 {
        let mut lease = store.get(PATH).unwrap();
        if lease["spec"]["holderIdentity"] == "a" {
            lease["spec"]["renewTime"] = json!("1999-12-31T23:59:59.000000Z");
            store.put(PATH, lease);
        }
        sleep(Duration::from_millis(100)).await;
        assert!(!second.is_leading(), "the lease was renewed, whatever its time says");
    }
    second.until_leading().await;
}

#[tokio::test]
async fn who_cannot_renew_stops_deciding_before_another_may_begin() {
    let store = Store::start().await;
    let mut leader = Running::start(&store, "a");
    leader.until_leading().await;
    // Whoever watches may take the lease a second after the last renewal.
    let until = loop {
        let renewed = moment(&store, "renewTime");
        let standing = leader.standing.borrow().clone();
        let (now, here) = (Timestamp::now(), Instant::now());
        if let Standing::Leading { until } = standing
            && moment(&store, "renewTime") == renewed
        {
            let left = until.saturating_duration_since(here);
            let others = renewed + SignedDuration::from_secs(1);
            assert!(
                now + left < others,
                "decides for {left:?} from {now} on, lease until {others}"
            );
            break until;
        }
        sleep(Duration::from_millis(1)).await;
    };
    store.fail(Some(500));
    leader.until(|standing| *standing == Standing::Following { leader: None }).await;
    assert!(Instant::now() >= until, "nor does it give up what it has");
    store.fail(None);
    leader.until_leading().await;
    // A server that hangs is as good as none.
    store.delay(Duration::from_secs(30));
    leader.until(|standing| *standing == Standing::Following { leader: None }).await;
}

#[tokio::test]
async fn a_renewal_whose_answer_is_lost_is_made_again_and_leading_goes_on() {
    let store = Store::start().await;
    let mut leader = Running::start_for(&store, "a", LASTING);
    leader.until_leading().await;
    store.lose_answer();
    let end = Instant::now() + Duration::from_secs(20);
    while !store.has_lost_answer() {
        assert!(Instant::now() < end, "no renewal");
        sleep(Duration::from_millis(5)).await;
    }
    // Longer than a leader that cannot renew decides.
    let lost = leader.standing.wait_for(|standing| !matches!(standing, Standing::Leading { .. }));
    assert!(timeout(renew_within(LASTING) + Duration::from_secs(1), lost).await.is_err());
    assert!(leader.is_leading());
}

#[tokio::test]
async fn a_stolen_lease_ends_leading_at_the_next_renewal() {
    let store = Store::start().await;
    let mut leader = Running::start(&store, "a");
    leader.until_leading().await;
    let mut lease = store.get(PATH).unwrap();
    lease["spec"]["holderIdentity"] = json!("thief");
    lease["spec"]["leaseDurationSeconds"] = json!(2);
    store.put(PATH, lease);
    leader.until_following("thief").await;
    // The thief never renews.
    leader.until_leading().await;
}

#[tokio::test]
async fn what_others_put_on_the_lease_stays_and_costs_nothing() {
    let store = Store::start().await;
    let mut leader = Running::start_for(&store, "a", LASTING);
    leader.until_leading().await;
    let mut lease = store.get(PATH).unwrap();
    lease["metadata"]["annotations"] = json!({"who": "somebody"});
    store.put(PATH, lease);
    let lost = leader.standing.wait_for(|standing| !matches!(standing, Standing::Leading { .. }));
    assert!(timeout(renew_within(LASTING) + Duration::from_secs(1), lost).await.is_err());
    assert!(leader.is_leading());
    assert_eq!(store.get(PATH).unwrap()["metadata"]["annotations"]["who"], "somebody");
}

#[tokio::test]
async fn a_deleted_lease_is_made_again_by_one_of_them() {
    let store = Store::start().await;
    let mut first = Running::start(&store, "a");
    first.until_leading().await;
    let mut second = Running::start(&store, "b");
    second.until_following("a").await;
    store.remove(PATH);
    let mut at_once = 0;
    for _ in 0..40 {
        sleep(Duration::from_millis(50)).await;
        at_once = at_once.max(usize::from(first.is_leading()) + usize::from(second.is_leading()));
    }
    assert_eq!(at_once, 1, "never two");
    let made_again = async {
        while holder(&store).is_null() || !(first.is_leading() || second.is_leading()) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(20), made_again).await.expect("within 20 s");
}

#[tokio::test]
async fn an_earlier_life_under_the_same_name_is_waited_for_like_anybody() {
    let store = Store::start().await;
    let mut first = Running::start(&store, "a");
    first.until_leading().await;
    first.task.abort();
    let again_at = Instant::now();
    let mut again = Running::start(&store, "a");
    again.until_leading().await;
    assert!(again_at.elapsed() >= Duration::from_millis(900), "{:?}", again_at.elapsed());
}

#[tokio::test]
async fn who_gives_the_lease_up_decides_no_more_before_it_is_written() {
    let store = Store::start().await;
    let mut leader = Running::start(&store, "a");
    leader.until_leading().await;
    store.delay(Duration::from_millis(250));
    leader.resign.asked.cancel();
    leader.until(|standing| matches!(standing, Standing::Following { .. })).await;
    assert_eq!(holder(&store), "a", "the write is still on its way");
    assert!(!leader.resign.done.is_cancelled());
    let done = timeout(Duration::from_secs(20), leader.resign.done.cancelled()).await;
    assert!(done.is_ok() && holder(&store) == "");
}

#[tokio::test]
async fn a_lease_that_cannot_be_given_up_at_first_is_given_up_later() {
    let store = Store::start().await;
    let mut leader = Running::start(&store, "a");
    leader.until_leading().await;
    store.fail(Some(500));
    leader.resign.asked.cancel();
    leader.until(|standing| matches!(standing, Standing::Following { .. })).await;
    sleep(Duration::from_millis(300)).await;
    assert!(!leader.resign.done.is_cancelled(), "nobody knows yet");
    store.fail(None);
    timeout(Duration::from_secs(20), leader.resign.done.cancelled()).await.unwrap();
    assert_eq!(holder(&store), "");
}

#[tokio::test]
async fn how_long_a_lease_lasts_is_not_said_by_who_writes_it() {
    let store = Store::start().await;
    let mut leader = Running::start(&store, "a");
    leader.until_leading().await;
    for (seconds, at_least_ms) in [(86_400, 0), (0, 800)] {
        let mut lease = store.get(PATH).unwrap();
        lease["spec"]["holderIdentity"] = json!("thief");
        lease["spec"]["leaseDurationSeconds"] = json!(seconds);
        store.put(PATH, lease);
        let stolen_at = Instant::now();
        leader.until(|standing| !matches!(standing, Standing::Leading { .. })).await;
        leader.until_leading().await;
        let took = stolen_at.elapsed();
        assert!(took >= Duration::from_millis(at_least_ms), "{seconds} s: {took:?}");
    }
}
