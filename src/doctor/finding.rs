//! What a check finds: what is wrong, why it hurts, and what cures it.
//!
//! Pure; knows nothing of what is checked.

use json_patch::{
    AddOperation, PatchOperation, RemoveOperation, TestOperation, jsonptr::PointerBuf,
};
use serde::Serialize;
use serde_json::{Value, json};

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Short and stable: what CI names it by.
    pub id: &'static str,
    /// What was seen, with its values.
    pub what: String,
    /// What comes of it.
    pub why: &'static str,
    /// What cures it.
    pub fix: Fix,
}

/// What cures a finding: words, and where possible what to paste.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Fix {
    /// In words.
    pub text: String,
    /// The change to one object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<Patch>,
    /// A command that is no patch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

impl Fix {
    /// A cure in words alone.
    pub(super) fn words(text: impl Into<String>) -> Fix {
        Fix { text: text.into(), ..Fix::default() }
    }

    /// A cure by changing an object.
    pub(super) fn patch(text: impl Into<String>, patch: Patch) -> Fix {
        Fix { patch: Some(patch), ..Fix::words(text) }
    }

    /// A cure by a command.
    pub(super) fn command(text: impl Into<String>, command: impl Into<String>) -> Fix {
        Fix::words(text).and(command)
    }

    /// The same with a command behind it.
    pub(super) fn and(self, command: impl Into<String>) -> Fix {
        Fix { command: Some(command.into()), ..self }
    }
}

/// A change to one object, as JSON patch (RFC 6902).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Patch {
    /// The object's kind.
    pub kind: String,
    /// Its namespace, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// The operations, in order.
    pub operations: json_patch::Patch,
    /// The object with what has been added so far: which parents exist.
    #[serde(skip)]
    after: Value,
}

impl Patch {
    /// An empty change to this object.
    pub(super) fn to(object: &Value) -> Patch {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        Patch {
            kind: text("/kind").unwrap_or_default(),
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name").unwrap_or_default(),
            operations: json_patch::Patch::default(),
            after: object.clone(),
        }
    }

    /// Makes the rest depend on what stands at this pointer now: a list may have lost an item to another
    /// finding's change, and what is meant would then be a neighbour.
    pub(super) fn while_same(self, pointer: &str) -> Patch {
        let Some(value) = self.after.pointer(pointer).cloned() else { return self };
        self.push(pointer, |path| PatchOperation::Test(TestOperation { path, value }))
    }

    /// Sets the value at this pointer, with the parents that are missing; `-` appends to a list.
    pub(super) fn set(self, pointer: &str, value: impl Into<Value>) -> Patch {
        let mut value = value.into();
        let mut at = pointer;
        while let Some((parent, key)) = at.rsplit_once('/') {
            if parent.is_empty() || self.after.pointer(parent).is_some() {
                break;
            }
            value = if key == "-" { json!([value]) } else { json!({unescaped(key): value}) };
            at = parent;
        }
        self.push(at, |path| PatchOperation::Add(AddOperation { path, value }))
    }

    /// Removes what stands at this pointer, if something does.
    pub(super) fn remove(self, pointer: &str) -> Patch {
        if self.after.pointer(pointer).is_none() {
            return self;
        }
        self.push(pointer, |path| PatchOperation::Remove(RemoveOperation { path }))
    }

    fn push(
        mut self,
        pointer: &str,
        operation: impl FnOnce(PointerBuf) -> PatchOperation,
    ) -> Patch {
        // Pointers are the checks' own text; one that were none would leave the patch empty.
        if let Ok(path) = PointerBuf::parse(pointer) {
            let operation = operation(path);
            if json_patch::patch(&mut self.after, std::slice::from_ref(&operation)).is_ok() {
                self.operations.0.push(operation);
            }
        }
        self
    }

    /// The command that applies it.
    #[must_use]
    pub fn command(&self) -> String {
        let namespace =
            self.namespace.as_ref().map_or_else(String::new, |name| format!(" -n {name}"));
        let operations = serde_saphyr::to_string(&self.operations).unwrap_or_default();
        // The end of a shell's quotes is the only character that it would take for its own.
        let operations = operations.trim_end().replace('\'', r"'\''");
        format!(
            "kubectl patch {} {}{namespace} --type json -p '\n{operations}'",
            self.kind.to_ascii_lowercase(),
            self.name
        )
    }
}

/// A key as it stands in an object, not in a pointer.
fn unescaped(key: &str) -> String {
    key.replace("~1", "/").replace("~0", "~")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patched(object: &Value, patch: &Patch) -> Value {
        let mut object = object.clone();
        json_patch::patch(&mut object, &patch.operations).unwrap();
        object
    }

    #[test]
    fn parents_that_are_missing_are_made_once() {
        let object = json!({"kind": "Pod", "metadata": {"name": "a"}, "spec": {"list": [1]}});
        let patch = Patch::to(&object)
            .set("/spec/a/b/c", 1)
            .set("/spec/a/b/d", 2)
            .set("/spec/list/-", 3)
            .set("/spec/new/-", 4)
            .set("/metadata/annotations/x.y~1z", "yes")
            .remove("/spec/list/0")
            .remove("/spec/nothing");
        assert_eq!(
            patched(&object, &patch),
            json!({"kind": "Pod", "metadata": {"name": "a", "annotations": {"x.y/z": "yes"}},
                "spec": {"a": {"b": {"c": 1, "d": 2}}, "list": [3], "new": [4]}})
        );
        assert_eq!(patch.operations.0.len(), 6);
    }

    #[test]
    fn a_patch_is_a_command_to_paste() {
        let object = json!({"kind": "ScaledObject",
            "metadata": {"name": "llm", "namespace": "team-a"}, "spec": {}});
        let patch = Patch::to(&object).set("/spec/note", "it's");
        assert_eq!(
            patch.command(),
            "kubectl patch scaledobject llm -n team-a --type json -p '\n\
             - op: add\n  path: /spec/note\n  value: it'\\''s'"
        );
    }
}
