//! What a scale target's pod template says of its engine, with the pointers by which it is patched.
//!
//! Pure; what it does not say stays unknown.

use serde_json::Value;

use super::finding::Patch;
use super::object::{integer, list, text};
use crate::cluster::pod_facts;

/// Kubernetes's own grace, where a template says none.
const DEFAULT_GRACE_S: i64 = 30;

/// The engine of a target: its family, and its container.
#[derive(Debug, Clone)]
pub(super) struct Engine<'a> {
    /// The target.
    pub(super) target: &'a Value,
    /// The family, as trigger metadata writes it.
    pub(super) family: &'static str,
    /// The pointer to the pod's spec.
    pub(super) pod: String,
    /// The pointer to the container.
    pub(super) container: String,
}

impl<'a> Engine<'a> {
    /// The engine of this target; `None` where no known one is recognised.
    pub(super) fn of(target: &'a Value) -> Option<Engine<'a>> {
        let family = pod_facts(target)?.engine?;
        let pod = pod_pointer(target)?;
        let containers = list(target, &format!("{pod}/containers"));
        let is_engine = |container: &Value| {
            let image = text(container, "/image").into_iter();
            image.chain(words(container)).any(|word| word.contains(family))
        };
        let index = containers.iter().position(is_engine)?;
        Some(Engine { target, family, container: format!("{pod}/containers/{index}"), pod })
    }

    /// Something of its container.
    pub(super) fn at(&self, below: &str) -> Option<&'a Value> {
        self.target.pointer(&format!("{}/{below}", self.container))
    }

    /// The value of a command-line option.
    pub(super) fn option(&self, name: &str) -> Option<&'a str> {
        let container = self.target.pointer(&self.container)?;
        let words: Vec<&str> = words(container).collect();
        words.iter().enumerate().find_map(|(index, word)| match word.strip_prefix(name)? {
            "" => words.get(index + 1).copied(),
            value => value.strip_prefix('='),
        })
    }

    /// The model as the command line names it: behind `serve`, which may be the image's own entrypoint,
    /// or as an option, as vLLM took it until it called that deprecated.
    pub(super) fn model(&self) -> Option<&'a str> {
        let container = self.target.pointer(&self.container)?;
        let words: Vec<&str> = words(container).collect();
        let served = words.windows(2).find_map(|pair| match pair {
            ["serve", model] if !model.starts_with('-') => Some(*model),
            _ => None,
        });
        served
            .or_else(|| self.option("--model"))
            .or_else(|| self.option("--model-path"))
            .or_else(|| self.first_argument())
    }

    /// The first of the arguments, where the image's entrypoint is what takes them.
    fn first_argument(&self) -> Option<&'a str> {
        let container = self.target.pointer(&self.container)?;
        let first = list(container, "/args").first().and_then(Value::as_str)?;
        let is_value = !first.starts_with('-') && !first.contains(' ');
        (container.get("command").is_none() && is_value).then_some(first)
    }

    /// A change that sets a command-line option: where it stands, else in the shell's line that runs
    /// the engine, else behind the arguments.
    pub(super) fn with_option(&self, patch: Patch, name: &str, value: &str) -> Patch {
        let both = ["command", "args"].map(|key| format!("{}/{key}", self.container));
        let joined = format!("{name}={value}");
        for words in &both {
            let given = list(self.target, words);
            let is_name = |arg: &Value| arg.as_str() == Some(name);
            let is_joined =
                |arg: &Value| arg.as_str().is_some_and(|arg| arg.starts_with(&format!("{name}=")));
            if let Some(index) = given.iter().position(is_name) {
                return replaced(patch, &format!("{words}/{}", index + 1), value);
            }
            if let Some(index) = given.iter().position(is_joined) {
                return replaced(patch, &format!("{words}/{index}"), &joined);
            }
        }
        // What stands behind a shell's line are its parameters, and no words of the engine.
        for words in &both {
            let texts = list(self.target, words).iter().map(|arg| arg.as_str().unwrap_or_default());
            let mut texts = texts.enumerate();
            if let Some((index, line)) = texts.rfind(|(_, arg)| arg.contains(' ')) {
                let line = with_word(line, name, value);
                return replaced(patch, &format!("{words}/{index}"), &line);
            }
        }
        let [_, args] = &both;
        patch.set(&format!("{args}/-"), joined)
    }

    /// Seconds from the end's announcement to its force.
    pub(super) fn grace_s(&self) -> i64 {
        integer(self.target, &format!("{}/terminationGracePeriodSeconds", self.pod))
            .unwrap_or(DEFAULT_GRACE_S)
    }

    /// Seconds that its preStop hook sleeps; `None` where it has no hook, or one whose time cannot be
    /// told.
    pub(super) fn pre_stop_s(&self) -> Option<i64> {
        let hook = self.at("lifecycle/preStop")?;
        integer(hook, "/sleep/seconds").or_else(|| {
            let command = list(hook, "/exec/command").iter().filter_map(Value::as_str);
            let words: Vec<&str> = command.flat_map(str::split_whitespace).collect();
            let slept = words.windows(2).find(|pair| pair[0].ends_with("sleep"))?;
            slept[1].trim_end_matches(['s', ';']).parse().ok()
        })
    }
}

/// The pointer to the pod's spec of a target: that of a group's leader, where it is a group.
pub(super) fn pod_pointer(target: &Value) -> Option<String> {
    let pointers = [
        "/spec/template/spec",
        "/spec/leaderWorkerTemplate/leaderTemplate/spec",
        "/spec/leaderWorkerTemplate/workerTemplate/spec",
    ];
    pointers.into_iter().find(|pointer| target.pointer(pointer).is_some()).map(str::to_owned)
}

/// The words of a container's command line.
fn words(container: &Value) -> impl Iterator<Item = &str> {
    let all = list(container, "/command").iter().chain(list(container, "/args"));
    all.filter_map(Value::as_str).flat_map(str::split_whitespace)
}

/// An item of a list in place of the old one: adding alone would put it before that.
fn replaced(patch: Patch, pointer: &str, value: &str) -> Patch {
    patch.remove(pointer).set(pointer, value)
}

/// A command line with an option in place of the one it has.
fn with_word(line: &str, name: &str, value: &str) -> String {
    let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let place = words.iter().position(|word| word == name);
    match place.and_then(|index| words.get_mut(index + 1)) {
        Some(old) => value.clone_into(old),
        None => {
            words.retain(|word| !word.starts_with(&format!("{name}=")));
            words.push(format!("{name}={value}"));
        }
    }
    words.join(" ")
}
