//! What is read from the scaler's own Deployment, and from several Services of one.

use serde_json::{Value, json};

use super::sound::{installation, put, scaler, sound};
use super::{in_order, only, patched};
use crate::doctor::facts::Missing;
use crate::doctor::installed::Line;
use crate::doctor::{Facts, Installation};

const CONTAINER: &str = "/spec/template/spec/containers/1";

/// The scaler's Deployment with something more in its container.
fn scaler_with(args: &[&str], key: &str, value: Value) -> Value {
    let mut scaler = scaler(args);
    put(&mut scaler, &format!("{CONTAINER}/{key}"), value);
    scaler
}

#[test]
fn flags_are_read_where_the_command_has_the_subcommand_and_the_arguments_have_the_flags() {
    let tls = ["--tls-cert=/tls/tls.crt", "--tls-key=/tls/tls.key"];
    let split = scaler_with(&tls, "command", json!(["/ghostscaler", "serve"]));
    let mut facts = Facts { scaler: Ok(split), ..sound() };
    put(&mut facts.object, "/spec/triggers/0/metadata/enableTLS", json!("true"));
    in_order(&facts);
    // A flag whose value stands in the other list, and another that is joined to its own.
    let command = json!(["/ghostscaler", "serve", "--namespace=team-c", "--namespace"]);
    let split = scaler_with(&["team-b", "-v"], "command", command);
    let broken = Facts { scaler: Ok(split), ..sound() };
    let finding = patched("namespace-not-watched", &broken);
    let after = super::cured(&broken, &finding).scaler.unwrap();
    let after = after.pointer(CONTAINER).unwrap();
    assert_eq!(after["command"], json!(["/ghostscaler", "serve"]));
    assert_eq!(after["args"], json!(["-v", "--namespace=team-c,team-b,team-a"]));
}

#[test]
fn a_patch_of_the_arguments_that_is_pasted_twice_takes_out_no_neighbour() {
    for args in [
        &["serve", "--namespace=team-b", "--drain-delay=5s"][..],
        &["serve", "--namespace", "team-b", "--drain-delay", "5s"],
    ] {
        let mut scaler = scaler(args);
        let facts = Facts { scaler: Ok(scaler.clone()), ..sound() };
        let patch = only("namespace-not-watched", &facts).fix.patch.unwrap();
        json_patch::patch(&mut scaler, &patch.operations).unwrap();
        let once = scaler.clone();
        assert!(json_patch::patch(&mut scaler, &patch.operations).is_err());
        assert_eq!(scaler, once);
    }
}

#[test]
fn a_configuration_that_the_environment_names_is_not_taken_for_none() {
    let file = || {
        let mounts = json!([{"name": "configuration", "mountPath": "/etc/ghostscaler"}]);
        let mut scaler = scaler_with(&["serve"], "volumeMounts", mounts);
        let volumes = json!([{"name": "configuration", "configMap": {"name": "ours"}}]);
        put(&mut scaler, "/spec/template/spec/volumes", volumes);
        scaler
    };
    let of = |key: &str, value: Value| {
        let mut scaler = file();
        put(&mut scaler, &format!("{CONTAINER}/{key}"), value);
        Line::of(&scaler).unwrap().configuration()
    };
    let variable = json!({"name": "GHOSTSCALER_CONFIG", "value": "/etc/ghostscaler/c.yaml"});
    let found = Some(("ours".to_owned(), "c.yaml".to_owned()));
    assert_eq!(of("env", json!([{"name": "A", "value": "b"}, variable])), Ok(found));
    assert_eq!(of("env", json!([{"name": "A", "value": "b"}])), Ok(None));
    let elsewhere = json!([{"name": "GHOSTSCALER_CONFIG", "valueFrom": {"configMapKeyRef": {}}}]);
    assert!(of("env", elsewhere).is_err());
    assert!(of("envFrom", json!([{"configMapRef": {"name": "all"}}])).is_err());
    // The flag has the last word.
    let told = scaler_with(&["serve", "--config=/x"], "env", json!([variable]));
    let missing = Line::of(&told).unwrap().configuration().unwrap_err();
    assert_eq!(missing, Missing::because("/x is no file of a ConfigMap"));
}

/// The second scaler, with a Service that nobody asks before the one that these namespaces ask.
fn with_two_services(asked_from: &[&str]) -> Vec<Installation> {
    let mut second = installation("aaa", &["serve"], asked_from);
    second.service["metadata"]["name"] = json!("ghostscaler-2");
    let own = installation("ghostscaler", &["serve"], &["team-a"]);
    vec![own, installation("aaa", &["serve"], &[]), second]
}

#[test]
fn a_scaler_that_is_asked_at_its_second_service_is_not_deleted() {
    let among = |all| only("two-scalers", &Facts { installations: Ok(all), ..sound() }).fix;
    let asked = among(with_two_services(&["team-b"]));
    assert_eq!(asked.command, None);
    assert!(asked.patch.unwrap().command().contains("--namespace=team-b"));
    assert_eq!(
        among(with_two_services(&[])).command.unwrap(),
        "kubectl delete deployment ghostscaler -n aaa --ignore-not-found\n\
         kubectl delete service ghostscaler -n aaa --ignore-not-found\n\
         kubectl delete service ghostscaler-2 -n aaa --ignore-not-found"
    );
    // From this namespace too: the first by name of those that are asked is the one to keep.
    let kept = among(with_two_services(&["team-a"]));
    assert!(kept.text.starts_with("ask aaa/ghostscaler"), "{}", kept.text);
}

#[test]
fn where_an_asker_is_not_known_nothing_is_printed_to_paste() {
    for index in 0..3 {
        let mut all = with_two_services(&[]);
        all[index].asked_from = Err(Missing::because("t/llm names no Service"));
        let fix = only("two-scalers", &Facts { installations: Ok(all), ..sound() }).fix;
        assert_eq!((fix.patch, fix.command), (None, None), "{index}");
        assert!(fix.text.contains("t/llm names no Service"), "{}", fix.text);
    }
}
