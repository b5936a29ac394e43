//! A page as Python's client since 0.23 writes it to a scraper that prefers OpenMetrics and does not
//! say that it takes every name (prometheus/client_python issue 1177).
//!
//! Must not know any metric. Uncaptured beyond vLLM's `/metrics/` page in OpenMetrics.

/// The content type of such a page.
pub const UNDERSCORES_TYPE: &str =
    "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores";

/// The page with underscores for the colons of samples' names; those in the heads stay. Heads of
/// counters lose `_total`, and the page has an end.
#[must_use]
pub fn with_underscores(page: &str) -> String {
    let counters: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut out = String::with_capacity(page.len() + 8);
    for line in page.lines() {
        let head = ["# HELP ", "# TYPE "].into_iter().find(|head| line.starts_with(head));
        let end = line.find(['{', ' ']).unwrap_or(line.len());
        match (head, line.split_at_checked(end)) {
            (Some(head), _) => {
                let (name, rest) =
                    line.strip_prefix(head).unwrap_or(line).split_once(' ').unwrap_or((line, ""));
                let base = name.strip_suffix("_total").filter(|_| counters.contains(&name));
                out.extend([head, base.unwrap_or(name), " ", rest]);
            }
            (None, Some((name, rest))) => out.extend([&name.replace(':', "_"), rest]),
            (None, None) => out.push_str(line),
        }
        out.push('\n');
    }
    out.push_str("# EOF\n");
    out
}

#[cfg(test)]
mod tests {
    use super::with_underscores;

    #[test]
    fn samples_lose_their_colon_and_heads_keep_it() {
        let page = "# HELP sglang:num_requests_total Number of requests.\n\
                    # TYPE sglang:num_requests_total counter\n\
                    sglang:num_requests_total{model_name=\"a:b\"} 1.0\n";
        let expected = "# HELP sglang:num_requests Number of requests.\n\
                        # TYPE sglang:num_requests counter\n\
                        sglang_num_requests_total{model_name=\"a:b\"} 1.0\n# EOF\n";
        assert_eq!(with_underscores(page), expected);
    }
}
