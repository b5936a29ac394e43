//! A cluster, by the answers of its API server.

use ghostscaler::doctor::{Error, Outcome};
use serde_json::{Value, json};

use super::world::World;
use super::{findings, ids, run, unseen};

#[tokio::test]
async fn the_example_is_in_order_and_nothing_but_prometheus_is_unseen() {
    let (outcome, report) = World::new().await.examined().await;
    assert_eq!(findings(&report), Vec::<Value>::new());
    assert_eq!(outcome, Outcome::InOrder);
    for (id, why) in unseen(&report) {
        assert_eq!(why, "no Prometheus is given: --prometheus", "{id}");
    }
    assert_eq!(report["scaled_objects"][0]["namespace"], "team-a");
}

#[tokio::test]
async fn a_patch_for_an_object_of_a_list_names_its_kind() {
    let world = World::new().await;
    world.object(|it| it["spec"]["minReplicaCount"] = json!(0));
    let (_, report) = world.examined().await;
    let patch = &findings(&report)[0]["fix"]["patch"];
    assert_eq!((&patch["kind"], &patch["name"]), (&json!("ScaledObject"), &json!("llm")));
}

#[tokio::test]
async fn what_may_not_be_read_is_told_with_the_servers_words() {
    let world = World::new().await;
    world.api.forbid("/api/v1/nodes");
    let (outcome, report) = world.examined().await;
    assert_eq!(outcome, Outcome::InOrder);
    let unseen = unseen(&report);
    for id in ["max-beyond-gpus", "nodes-taken-away"] {
        let (_, why) = unseen.iter().find(|(unseen, _)| unseen == id).unwrap();
        assert_eq!(why, "you may not read nodes: so the test wants it");
    }
}

#[tokio::test]
async fn the_scalers_own_rights_are_asked_for_by_whoever_may() {
    let world = World::new().await;
    world.examined().await;
    assert_eq!(world.api.reviews(), ["selfsubjectreviews", "subjectaccessreviews"]);
    let own = "system:serviceaccount:ghostscaler:ghostscaler";
    assert_eq!(world.api.asked_about().as_deref(), Some(own));
    // In its own pod it asks for itself, which takes no right.
    let world = World::new().await;
    world.api.name_caller(own);
    world.api.deny("scaledobjects");
    let (_, report) = world.examined().await;
    assert_eq!(world.api.reviews(), ["selfsubjectaccessreviews", "selfsubjectreviews"]);
    assert_eq!(ids(&findings(&report)), ["missing-permission"]);
    // Who may not ask is told so, and nothing is taken for granted.
    let world = World::new().await;
    world.api.forbid("/apis/authorization.k8s.io/v1/subjectaccessreviews");
    let (_, report) = world.examined().await;
    assert!(unseen(&report).iter().any(|(id, _)| id == "missing-permission"));
}

#[tokio::test]
async fn a_scaler_of_some_namespaces_needs_no_right_that_only_a_cluster_gives() {
    let world = World::new().await;
    world.api.deny("nodes");
    let (_, report) = world.examined().await;
    assert_eq!(ids(&findings(&report)), ["missing-permission"], "it watches all namespaces");
    world.scaler_args(&["--namespace=team-a"]);
    let (_, report) = world.examined().await;
    assert_eq!(findings(&report), Vec::<Value>::new());
}

/// As a chart installs it: no two parts are called alike.
fn rename(world: &World) {
    let take = |kind| {
        let found = world.api.get(kind, Some("ghostscaler"), "ghostscaler").unwrap();
        world.api.remove(kind, Some("ghostscaler"), "ghostscaler");
        found
    };
    let mut deployment = take("Deployment");
    deployment["metadata"]["name"] = json!("gpu-scaler");
    let pods = &mut deployment["spec"]["template"];
    pods["metadata"]["labels"] = json!({"app": "gpu", "release": "one"});
    pods["spec"]["serviceAccountName"] = json!("gpu-account");
    pods["spec"]["volumes"][0]["configMap"]["name"] = json!("gpu-config");
    let sidecar = json!({"name": "mesh", "args": ["--namespace=mesh"]});
    pods["spec"]["containers"].as_array_mut().unwrap().insert(0, sidecar);
    let mut service = take("Service");
    service["metadata"]["name"] = json!("gpu-service");
    service["spec"]["selector"] = json!({"app": "gpu"});
    let mut map = take("ConfigMap");
    map["metadata"]["name"] = json!("gpu-config");
    let prometheus = "{name: main, url: 'http://prometheus:9090'}";
    map["data"]["config.yaml"] = json!(format!(
        "prometheus: [{prometheus}]\nwakeSources:\n- {{name: edge, kind: gauge, prometheus: main, \
         query: up}}\n"
    ));
    for object in [deployment, service, map] {
        world.api.put(object);
    }
    world.metadata("scalerAddress", "gpu-service.ghostscaler.svc.cluster.local:9090");
}

#[tokio::test]
async fn the_scaler_is_found_by_its_services_selector_whatever_its_parts_are_called() {
    let world = World::new().await;
    rename(&world);
    let (_, report) = world.examined().await;
    assert_eq!(findings(&report), Vec::<Value>::new());
    let account = "system:serviceaccount:ghostscaler:gpu-account";
    assert_eq!(world.api.asked_about().as_deref(), Some(account));
    // Its configuration is the one that its own command line names.
    world.object(|it| it["spec"]["minReplicaCount"] = json!(0));
    let (_, report) = world.examined().await;
    let fix = &findings(&report)[0]["fix"];
    assert!(fix["text"].as_str().unwrap().contains("\"edge\""), "{fix}");
    // Its flags are its own too.
    world.api.change("Deployment", "gpu-scaler", |it| {
        let args = &mut it["spec"]["template"]["spec"]["containers"][1]["args"];
        args.as_array_mut().unwrap().extend([json!("--namespace"), json!("team-b")]);
    });
    let (_, report) = world.examined().await;
    assert!(ids(&findings(&report)).contains(&"namespace-not-watched"));
}

#[tokio::test]
async fn a_scaler_that_is_not_found_is_not_taken_to_be_in_order() {
    let world = World::new().await;
    world.api.remove("Deployment", Some("ghostscaler"), "ghostscaler");
    let (outcome, report) = world.examined().await;
    assert_eq!((findings(&report), outcome), (Vec::new(), Outcome::InOrder));
    let unseen = unseen(&report);
    for id in
        ["tls-mismatch", "namespace-not-watched", "missing-permission", "missing-own-permission"]
    {
        let (_, why) = unseen.iter().find(|(unseen, _)| unseen == id).unwrap();
        assert_eq!(why, "no Deployment is found whose pods Service/ghostscaler selects", "{id}");
    }
}

#[tokio::test]
async fn without_scaled_objects_nothing_could_be_looked_at() {
    let world = World::new().await;
    let kubeconfig = world.api.kubeconfig();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let error = run(&["--kubeconfig", kubeconfig, "other"]).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no ScaledObject other in namespace team-a");
    world.api.forbid("/apis/keda.sh/v1alpha1/namespaces/team-a/scaledobjects");
    let error = run(&["--kubeconfig", kubeconfig]).await.unwrap_err();
    assert!(matches!(error, Error::Objects { .. }), "{error}");
    let error = run(&["--kubeconfig", "/does/not/exist"]).await.unwrap_err();
    assert!(matches!(error, Error::Cluster(_)), "{error}");
}
