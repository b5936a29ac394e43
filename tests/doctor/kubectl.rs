//! A finding's fix as it is printed, carried out on the fake API server: its patch, and its commands by a
//! small kubectl.

use serde_json::{Value, json};

use super::api::{Api, kind_of};

/// Applies the fix; gives the commands that are none of these objects', for a person to follow.
pub(super) fn apply(api: &Api, finding: &Value) -> Vec<String> {
    let fix = &finding["fix"];
    if let Some(patch) = fix.get("patch") {
        patched(api, patch);
    }
    let Some(commands) = fix["command"].as_str() else { return Vec::new() };
    let mut left = Vec::new();
    let mut lines = commands.lines();
    while let Some(line) = lines.next() {
        let documents: String = if line.ends_with("<<'EOF'") {
            lines.by_ref().take_while(|line| *line != "EOF").flat_map(|it| [it, "\n"]).collect()
        } else {
            String::new()
        };
        if !run(api, line, &documents) {
            left.push(line.to_owned());
        }
    }
    left
}

fn patched(api: &Api, patch: &Value) {
    let word = |key: &str| patch[key].as_str();
    let (kind, name) = (word("kind").unwrap(), word("name").unwrap());
    let mut object = api
        .get(kind, word("namespace"), name)
        .unwrap_or_else(|| panic!("the patch is of no object: {patch:#}"));
    let operations: json_patch::Patch =
        serde_json::from_value(patch["operations"].clone()).unwrap();
    json_patch::patch(&mut object, &operations).unwrap();
    api.put(object);
}

/// Whether it knows the command, which it then has run.
fn run(api: &Api, line: &str, documents: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let namespace = words.iter().position(|word| *word == "-n").map(|index| words[index + 1]);
    match words.as_slice() {
        ["kubectl", "apply" | "replace", .., "-f", "-", "<<'EOF'"] => {
            let documents: Vec<Value> = serde_saphyr::from_multiple(documents).unwrap();
            documents.into_iter().for_each(|document| api.put(document));
        }
        ["kubectl", "delete", resource, name, ..] => {
            api.remove(kind_of(resource), namespace, name);
        }
        ["kubectl", "annotate", resource, name, rest @ ..] => {
            api.change(kind_of(resource), name, |object| annotate(object, rest));
        }
        ["kubectl", "create", "rolebinding", name, rest @ ..] => {
            let role = rest.iter().find_map(|word| word.strip_prefix("--clusterrole=")).unwrap();
            api.put(json!({"kind": "RoleBinding", "roleRef": {"name": role},
                "metadata": {"name": name, "namespace": namespace}}));
        }
        _ => return false,
    }
    true
}

fn annotate(object: &mut Value, words: &[&str]) {
    if object["metadata"].get("annotations").is_none() {
        object["metadata"]["annotations"] = json!({});
    }
    let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
    for word in words {
        match word.split_once('=') {
            Some((key, value)) => drop(annotations.insert(key.to_owned(), json!(value))),
            None => drop(annotations.remove(word.trim_end_matches('-'))),
        }
    }
}
