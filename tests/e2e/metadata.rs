//! What a faulty trigger is told, by who asks.

use tonic::Code;

use super::engine::Engine;
use super::keda::{Role, trigger};
use super::program::{Config, Scaler};

#[tokio::test]
async fn a_faulty_trigger_is_told_all_its_faults_and_costs_no_replica() {
    let engine = Engine::start().await;
    let config = Config::new(&format!(
        "workloads:\n\
         - {{namespace: demo, name: zero, min: 0, max: 4, replicas: 2, endpoints: ['{0}']}}\n\
         - {{namespace: demo, name: warm, min: 1, max: 4, replicas: 2, endpoints: ['{0}']}}\n\
         - {{namespace: demo, name: asleep, min: 0, max: 4, replicas: 0}}\n",
        engine.address
    ));
    let scaler = Scaler::start(&config.path(), &[]).await;
    let keda = scaler.keda().await;
    scaler.healthy("demo/zero").await;
    let faulty = |name: &str| {
        trigger(name)
            .with("scalerAddress", "ghostscaler:9090")
            .with("sloTtftt", "2s")
            .with("gpuCeilingPercent", "120")
            .with("zeroAfterFromEnv", "hunter2")
    };
    for name in ["demo/zero", "demo/warm", "demo/asleep"] {
        let faulty = faulty(name);
        let wanted = keda.wanted(&faulty, Role::Poll).await.unwrap_err();
        let active = keda.is_active(&faulty, Role::Poll).await.unwrap_err();
        for status in [wanted, active] {
            assert_eq!(status.code(), Code::InvalidArgument, "{name}: {status}");
            for part in ["sloTtftt", "nearest is sloTtft", "gpuCeilingPercent=\"120\"", "10..100"] {
                assert!(status.message().contains(part), "{part:?} is not in {status}");
            }
            assert!(status.message().contains("zeroAfterFromEnv"), "{status}");
            assert!(!status.message().contains("hunter2"), "a secret is shown: {status}");
        }
        assert_eq!(keda.targets(&faulty).await.unwrap(), [1], "{name}");
    }
    // The HPA's failing query beside a poll could mean zero where zero is allowed.
    assert_eq!(keda.wanted(&faulty("demo/zero"), Role::Hpa).await.unwrap(), 2);
    assert!(keda.is_active(&faulty("demo/zero"), Role::Hpa).await.unwrap());
    for name in ["demo/warm", "demo/asleep"] {
        let status = keda.wanted(&faulty(name), Role::Hpa).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{name}: {status}");
    }
    // Told once a trigger, and with keys only.
    let refusals = scaler.logged("trigger metadata refused", 3).await;
    assert_eq!(refusals.len(), 3, "{refusals:#?}");
    assert!(!format!("{refusals:?}").contains("hunter2"));

    // The same trigger put right is served, and the others never noticed.
    let right = trigger("demo/zero").with("sloTtft", "2s").with("gpuCeilingPercent", "90");
    assert_eq!(keda.wanted(&right, Role::Poll).await.unwrap(), 2);
    assert_eq!(keda.poll("demo/zero").await, (2, true));
    scaler.stop().await;
}
