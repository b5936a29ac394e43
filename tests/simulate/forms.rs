//! Every form that the command takes, and the keys of what it prints.

use ghostscaler::decision::Part;

use super::*;

const KEYS: [&str; 11] = [
    "policy",
    "setting",
    "attainment",
    "attainment_raw",
    "gpu_hours",
    "clairvoyant_gpu_hours",
    "fluid_gpu_hours",
    "ratio",
    "cold_starts",
    "flaps",
    "time_at_max",
];

/// The references that a run without them does not have.
const OF_REFERENCES: [&str; 3] = ["clairvoyant_gpu_hours", "fluid_gpu_hours", "ratio"];

#[test]
fn each_format_is_read_by_the_names_of_its_columns_with_comments_skipped() {
    let seconds = |i: u32| format!("2023-11-16 18:{:02}:{:02}.5", 15 + i / 60, i % 60);
    let traces = [
        (
            "azure",
            rows_of("ContextTokens,TIMESTAMP,GeneratedTokens", 300, |i| {
                format!("500,{},50", seconds(i))
            }),
        ),
        (
            "burstgpt",
            rows_of(
                "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
                300,
                |i| format!("{},ChatGPT,500,50,550,API log", 5 + i),
            ),
        ),
        (
            "csv",
            rows_of("output_tokens,note,t_s,input_tokens,cached_tokens", 300, |i| {
                format!("50,x,{i},500,100")
            }),
        ),
        ("counts", rows_of("hour,count", 30, |_| "0,10".to_owned())),
        (
            "mooncake",
            (0..300)
                .map(|i| {
                    format!(
                        "{{\"timestamp\": {}, \"input_length\": 500, \"output_length\": 50, \
                     \"hash_ids\": [{i}]}}\n",
                        1_000 * i
                    )
                })
                .collect(),
        ),
    ];
    for (format, text) in traces {
        let (_dir, path) = file("trace", &text);
        let flags = format!(
            "--trace {} --trace-format {format} --profile 8b-a100 --no-references",
            shown(&path)
        );
        let found = results(&flags);
        assert_eq!(found["requests"], 300, "{format}");
        assert_eq!(found["trace"], "trace");
        assert_eq!(rows(&found, "ghostscaler").len(), 1, "{format}");
    }
}

#[test]
fn each_result_has_its_flat_keys_with_numbers_or_null_where_there_is_none() {
    let (_dir, path) = file("trace.csv", &plain(1_200));
    let flags = format!(
        "--trace {} --trace-format csv --profile 8b-a100 --policy ghostscaler,static --warmup 60 \
         --cold-start 15",
        shown(&path)
    );
    let with = results(&flags);
    let without = results(&format!("{flags} --no-references"));
    for (found, has_references) in [(&with, true), (&without, false)] {
        let all = found["results"].as_array().unwrap();
        assert!(all.len() >= 2, "{found}");
        for row in all {
            for key in KEYS {
                let value = row.get(key).unwrap_or_else(|| panic!("no {key} in {row}"));
                let is_null = OF_REFERENCES.contains(&key) && !has_references;
                let is_right = match key {
                    "policy" | "setting" => value.is_string(),
                    _ if is_null => value.is_null(),
                    _ => value.is_f64() || value.is_u64(),
                };
                assert!(is_right, "{key} is {value}");
            }
            let attainment = row["attainment"].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&attainment), "{attainment}");
        }
    }
    let ours = rows(&with, "ghostscaler")[0];
    let of = |key: &str| ours[key].as_f64().unwrap();
    assert!((of("ratio") - of("gpu_hours") / of("clairvoyant_gpu_hours")).abs() < 1e-9);
    assert!(of("fluid_gpu_hours") <= of("clairvoyant_gpu_hours"));
}

#[test]
fn ours_tells_what_it_learned_of_the_engine_and_its_error() {
    let found = results(
        "--generate ramp --scale 0.01 --warmup 1h --no-references --max 4 --profile 8b-a100",
    );
    let learned = &rows(&found, "ghostscaler")[0]["learned"];
    for key in ["step_ms", "prompt_ms", "generated_ms", "kv_ms", "error"] {
        assert!(learned[key].is_f64(), "{key} in {learned}");
    }
    let after = &rows(&found, "ghostscaler")[0]["learned_within_10_percent_after_s"];
    assert!(after.is_f64() || after.is_null(), "{after}");
}

#[test]
fn lengths_come_from_any_table_that_has_their_columns() {
    let (_dir, counts) = file("counts.csv", &rows_of("count", 60, |_| "20".to_owned()));
    let lengths = rows_of("model,output_tokens,input_tokens", 3, |i| format!("m,{},700", 10 + i));
    let (_other, lengths) = file("lengths.csv", &lengths);
    let flags = format!("--trace {} --trace-format counts --no-references", shown(&counts));
    let found = results(&format!("{flags} --lengths {}", shown(&lengths)));
    let of = |found: &Value, key: &str| found[key].as_f64().unwrap();
    assert!((of(&found, "mean_prompt_tokens") - 700.0).abs() < 1e-9);
    assert!((of(&found, "mean_output_tokens") - 11.0).abs() < 0.2);
    let without = results(&flags);
    assert!((of(&without, "mean_prompt_tokens") - 500.0).abs() < 1e-9);
}

#[test]
fn a_row_of_counts_is_ten_seconds_unless_said_otherwise() {
    let (_dir, path) = file("counts.csv", &rows_of("count", 60, |_| "20".to_owned()));
    let flags = format!("--trace {} --trace-format counts --no-references", shown(&path));
    let hours = |flags: &str| results(flags)["hours"].as_f64().unwrap();
    assert!((hours(&flags) - 600.0 / 3_600.0).abs() < 1e-9);
    assert!((hours(&format!("{flags} --bin 60")) - 1.0).abs() < 1e-9);
    assert!((hours(&format!("{flags} --bin 1m")) - 1.0).abs() < 1e-9);
}

#[test]
fn the_scale_multiplies_the_rate_by_leaving_out_or_laying_over() {
    let (_dir, path) = file("trace.csv", &plain(1_000));
    let requests = |scale: &str| {
        let flags = format!("--trace {} --trace-format csv --no-references {scale}", shown(&path));
        results(&flags)["requests"].as_u64().unwrap()
    };
    assert_eq!(requests(""), 1_000);
    assert!((450..550).contains(&requests("--scale 0.5")));
    assert_eq!(requests("--scale 3"), 3_000);
}

#[test]
fn the_warmup_runs_uncounted() {
    let (_dir, path) = file("trace.csv", &plain(1_200));
    let flags = format!("--trace {} --trace-format csv --no-references --warmup 400", shown(&path));
    let found = results(&flags);
    assert_eq!(found["requests"], 400, "of 600 s the last 200 count");
    assert!((found["hours"].as_f64().unwrap() - 200.0 / 3_600.0).abs() < 1e-9);
    assert!((found["warmup_hours"].as_f64().unwrap() - 400.0 / 3_600.0).abs() < 1e-9);
}

#[test]
fn without_a_maximum_it_is_a_quarter_above_what_the_peak_needs() {
    let (_dir, path) = file(
        "trace.csv",
        &rows_of("t_s,input_tokens,output_tokens", 6_000, |i| {
            format!("{},1500,50", f64::from(i) / 20.0)
        }),
    );
    let flags = format!("--trace {} --trace-format csv --no-references", shown(&path));
    let found = results(&flags);
    let need = found["peak_need"].as_f64().unwrap();
    // 20 × (1,500 × 0.067 ms + 50 × (0.067 ms + 1,525 × 0.082 µs)) / 0.7.
    assert!((need - 3.15).abs() < 0.05, "{need}");
    assert_eq!(found["max"].as_u64(), Some(4), "1.25 × {need}");
    let given = results(&format!("{flags} --min 2 --max 9"));
    assert_eq!((given["min"].as_u64(), given["max"].as_u64()), (Some(2), Some(9)));
}

#[test]
fn all_policies_are_ours_the_documented_and_the_best_of_each_sweep() {
    let (_dir, path) = file("trace.csv", &plain(240));
    let found = results(&format!(
        "--trace {} --trace-format csv --policy all --max 2 --no-references",
        shown(&path)
    ));
    let all = found["results"].as_array().unwrap();
    let with = |why: &str| all.iter().filter(|row| row["why"] == why).count();
    assert_eq!(with("default"), 1);
    assert_eq!(rows(&found, "ghostscaler").len(), 1);
    assert_eq!(with("documented"), 14);
    assert_eq!(with("best_of_sweep"), 22, "one for each baseline");
    assert_eq!(all.len(), 1 + 14 + 22);
    let swept = found["sweep"].as_array().unwrap();
    assert!(swept.iter().all(|row| row["why"] == "swept"));
    assert!(swept.len() > 100, "{}", swept.len());
}

#[test]
fn policies_are_asked_for_by_name_and_times_as_people_write_them() {
    let (_dir, path) = file("trace.csv", &plain(240));
    let found = results(&format!(
        "--trace {} --trace-format csv --policy hpa-queue,knative-kpa --slo-ttft 1500ms \
         --slo-tpot 0.1 --cold-start 1m --seed 7 --no-references",
        shown(&path)
    ));
    let (ttft, tpot) = (&found["slo_ttft_s"], &found["slo_tpot_s"]);
    assert_eq!((ttft.as_f64(), tpot.as_f64()), (Some(1.5), Some(0.1)));
    assert_eq!(found["seeds"], serde_json::json!([7]));
    assert!((found["cold_start_s"].as_f64().unwrap() - 64.5).abs() < 1e-9, "and readiness");
    assert_eq!(rows(&found, "hpa-queue").len(), 2, "documented, and the best of its sweep");
    assert!(rows(&found, "ghostscaler").is_empty());
}

#[test]
fn each_part_of_ours_can_be_left_out_and_then_stands_apart_from_the_results() {
    let (_dir, path) = file("trace.csv", &plain(240));
    let found = results(&format!(
        "--trace {} --trace-format csv --ablations --no-references",
        shown(&path)
    ));
    let settings: Vec<&str> = found["ablations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["setting"].as_str().unwrap())
        .collect();
    let parts = Part::ALL.into_iter().filter(|part| *part != Part::GpuCeiling);
    let expected: Vec<String> = parts.map(|part| format!("without {}", part.label())).collect();
    assert_eq!(settings, expected);
    assert_eq!(rows(&found, "ghostscaler").len(), 1, "ours at its defaults");
}

#[test]
fn seeds_are_run_one_by_one_and_reported_as_means() {
    let flags = "--generate tails --scale 0.002 --no-references --max 3 --policy hpa-concurrency";
    let alone: Vec<f64> = (4..7)
        .map(|seed| {
            let found = results(&format!("{flags} --seed {seed}"));
            let sweep = found["sweep"].as_array().unwrap();
            sweep[0]["gpu_hours"].as_f64().unwrap()
        })
        .collect();
    let found = results(&format!("{flags} --seed 4 --seeds 3"));
    let mean = found["sweep"].as_array().unwrap()[0]["gpu_hours"].as_f64().unwrap();
    assert_eq!(found["seeds"], serde_json::json!([4, 5, 6]));
    assert!((mean - alone.iter().sum::<f64>() / 3.0).abs() < 1e-9, "{mean}: {alone:?}");
}

#[test]
fn generated_processes_updates_drift_and_prefix_hits_are_flags() {
    let found = results(
        "--generate step --scale 0.002 --days 2 --warmup 1d --drift 0.15 --change 36h=8b-h100 \
         --cached 0-0.7@24h,0.7@24h --token-cost 1.7 --no-references --max 3 --policy static",
    );
    assert_eq!(found["trace"], "step");
    assert!((found["hours"].as_f64().unwrap() - 24.0).abs() < 1e-9);
    // The curve's 546 requests/s × hours.
    let requests = found["requests"].as_f64().unwrap();
    assert!((requests / (0.002 * 546.0 * 3_600.0) - 1.0).abs() < 0.1, "{requests}");
}

#[test]
fn several_traces_give_each_its_results_and_what_tuning_is_worth_elsewhere() {
    let (_dir, first) = file("first.csv", &plain(240));
    let (_other, second) = file("second.csv", &plain(480));
    let found = results(&format!(
        "--trace {} --trace {} --trace-format csv --policy ghostscaler,hpa-queue --max 2 \
         --no-references",
        shown(&first),
        shown(&second)
    ));
    let traces = found["traces"].as_array().unwrap();
    assert_eq!(
        (&traces[0]["trace"], &traces[1]["trace"]),
        (&"first.csv".into(), &"second.csv".into())
    );
    assert_eq!(found["results"].as_array().unwrap().len(), 2 * 3);
    let transfer = found["transfer"].as_array().unwrap();
    let across = transfer.iter().filter(|t| t["policy"] == "hpa-queue");
    assert_eq!(across.count(), 4, "tuned on each, run on each");
    assert_eq!(transfer.iter().filter(|t| t["policy"] == "ghostscaler").count(), 2);
}

#[test]
fn workloads_that_share_a_budget_stay_within_it_together() {
    let flags =
        "--generate ramp --generate step --scale 0.002 --no-references --max 8 --policy static";
    let found = results(&format!("{flags} --gpu-budget 6 --warmup 1h"));
    let documented = |found: &Value| -> Vec<(f64, f64)> {
        let all = found["results"].as_array().unwrap();
        let documented = all.iter().filter(|row| row["why"] == "documented");
        documented
            .map(|row| {
                (row["mean_replicas"].as_f64().unwrap(), row["unplaced_hours"].as_f64().unwrap())
            })
            .collect()
    };
    let shared = documented(&found);
    // Eight each are wanted, and six are there.
    assert!((shared.iter().map(|row| row.0).sum::<f64>() - 6.0).abs() < 0.01, "{shared:?}");
    assert!(shared.iter().map(|row| row.1).sum::<f64>() > 100.0, "{shared:?}");
}

#[test]
fn the_page_stands_alone_and_says_who_wins() {
    let (dir, path) = file("trace.csv", &plain(1_200));
    let page = dir.path().join("report.html");
    let text = simulated(&format!(
        "--trace {} --trace-format csv --policy ghostscaler,hpa-queue --cold-start 15 --report {}",
        shown(&path),
        shown(&page)
    ))
    .unwrap();
    let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 80, "{text}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    for said in ["served within target", "Attainment against cost", "Where we lose", "hpa-queue"] {
        assert!(page.contains(said), "{said}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
}
