//! What the API server says that it was asked for, request by request.
//!
//! Must not be asked of an account that several scenarios share.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde_json::Value;

/// One request that was answered; a watch when it began.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) at: Timestamp,
    /// What was done to what, such as `list pods` or `get leaderworkersets/scale`.
    pub(crate) what: String,
    /// The status of the answer.
    pub(crate) code: u64,
}

/// The requests of an account, by the API server's audit log.
pub(super) fn asked_by(log: &str, user: &str) -> Vec<Asked> {
    let read = |line: &str| {
        // The last line may be half written.
        let event: Value = serde_json::from_str(line).ok()?;
        let text = |at: &str| event.pointer(at).and_then(Value::as_str);
        let (verb, stage) = (text("/verb")?, text("/stage")?);
        let answered = if verb == "watch" { "ResponseStarted" } else { "ResponseComplete" };
        // A watch that is refused never starts.
        let refused = event["responseStatus"]["code"].as_u64() >= Some(400);
        let counts = stage == answered || (stage == "ResponseComplete" && refused);
        if text("/user/username") != Some(user) || !counts {
            return None;
        }
        let resource = text("/objectRef/resource").or_else(|| text("/requestURI"))?;
        let below = text("/objectRef/subresource").map(|sub| format!("/{sub}"));
        Some(Asked {
            at: text("/requestReceivedTimestamp")?.parse().ok()?,
            what: format!("{verb} {resource}{}", below.unwrap_or_default()),
            code: event["responseStatus"]["code"].as_u64()?,
        })
    };
    log.lines().filter_map(read).collect()
}

/// How often each request came.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Calls(BTreeMap<String, usize>);

impl Calls {
    /// Those that were received from then on.
    pub(crate) fn since(all: &[Asked], from: Timestamp) -> Calls {
        let mut calls = Calls::default();
        for asked in all.iter().filter(|asked| asked.at >= from) {
            let refused =
                if asked.code >= 400 { format!(" ({})", asked.code) } else { String::new() };
            *calls.0.entry(format!("{}{refused}", asked.what)).or_default() += 1;
        }
        calls
    }

    /// How many of them this is true of, by what was asked, a refusal's status behind it.
    pub(crate) fn count(&self, is: impl Fn(&str) -> bool) -> usize {
        self.0.iter().filter(|(what, _)| is(what)).map(|(_, n)| n).sum()
    }
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(|(what, n)| format!("{n} {what}")).collect();
        f.write_str(&words.join(", "))
    }
}
