//! Learning from an annotated series: accuracy close to the optimum, and rejected tables.

use crate::support::{Scratch, grove, json, refused, report, sets, stderr, stdout, success};
use std::fs;
use std::path::Path;

#[path = "../../examples/annotated_series/series.rs"]
mod planted;

use planted::{ROWS, Series, optimum};

/// Imports the example's series.
fn import(folder: &Path, patterns: u32) -> Series {
    let series = Series::new(patterns, 1);
    fs::write(folder.join("series.csv"), &series.csv).unwrap();
    let import = "import series.csv --label mark --time time --out shown --json";
    let table = report(folder, &format!("{import} --window {ROWS}"));
    assert_eq!(table["features"], serde_json::json!(["pressure", "flow", "heat"]));
    assert_eq!(table["labels"], serde_json::json!(["dip", "fall", "ripple"]));
    let count = |part: &str, what: &str| table[part][what].as_u64().unwrap() as usize;
    assert_eq!(count("learnt", "rows") + count("held_out", "rows"), series.rows);
    let from = count("learnt", "rows");
    let marks = series.marks.iter().filter(|(row, _)| *row >= from).count();
    assert_eq!(count("held_out", "labelled_rows"), marks);
    series
}

/// Fits a model; returns its accuracy on held-out marks and that of the best predictor.
fn fit(patterns: u32, settings: &str) -> (f64, f64) {
    let folder = &Scratch::new();
    let series = import(folder, patterns);
    let fit = format!("fit shown --device cpu --run-dir run --json{}", sets(settings));
    let report = report(folder, &fit);
    let learnt = series.rows - (series.rows as f64 * 0.2).round() as usize;
    let counts = report["held_out"]["confusion"].as_array().unwrap();
    let total: u64 =
        counts.iter().flat_map(|row| row.as_array().unwrap()).map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(total as usize, series.marks.iter().filter(|(row, _)| *row >= learnt).count());
    assert!(report.get("mean_score").is_none(), "{report}");
    (report["held_out"]["accuracy"].as_f64().unwrap(), series.optimal_accuracy_from(learnt))
}

#[test]
fn a_perceptron_labels_a_series_nearly_optimally() {
    let (accuracy, best) = fit(20_000, "data.epochs=10");
    assert!(accuracy > best - 0.01, "{accuracy} of {best}");
}

#[test]
fn a_decoder_labels_a_series_nearly_optimally() {
    let sizes = "policy.kind=decoder hidden_size=32 num_layers=1 learning_rate=6e-3 data.epochs=6";
    let (accuracy, best) = fit(20_000, sizes);
    // Seeds come within 0.003 to 0.03 of the optimum.
    assert!(accuracy > best - 0.04, "{accuracy} of {best}");
}

#[test]
fn the_optimal_accuracy_is_that_of_the_best_guess() {
    let series = Series::new(100_000, 7);
    let (found, n) = (series.optimal_accuracy_from(0), series.marks.len() as f64);
    let error = (optimum() * (1.0 - optimum()) / n).sqrt();
    assert!((found - optimum()).abs() < 4.0 * error, "{found} {}", optimum());
}

#[test]
fn a_run_on_a_table_reports_and_resumes_but_cannot_be_played() {
    let folder = &Scratch::new();
    import(folder, 400);
    let output = success(folder, &["fit", "shown", "--device", "cpu", "--iterations", "2"]);
    let printed = stdout(&output);
    assert!(printed.contains("ripple") && !printed.contains("player"), "{printed}");
    assert!(
        printed.contains("demonstrated \\ predicted") && printed.contains(" % accuracy"),
        "{printed}"
    );
    let on = ["train", "--resume", "--iterations", "3", "--device", "cpu", "--json"];
    assert_eq!(json(folder, &on)["iteration"], 3);
    let line = fs::read_to_string(folder.join("runs/table-1/metrics.jsonl")).unwrap();
    assert!(line.contains("\"episodes\":0"), "{line}");
    fs::remove_dir_all(folder.join("shown")).unwrap();
    success(folder, &["export", "runs/table-1", "--format", "json", "--out", "policy.json"]);
    let policy = fs::read_to_string(folder.join("policy.json")).unwrap();
    let policy: serde_json::Value = serde_json::from_str(&policy).unwrap();
    let features = policy["features"].as_array().unwrap();
    assert_eq!(features.len(), 3 * ROWS);
    assert_eq!(features[0], format!("pressure[-{}]", ROWS - 1));
    assert_eq!(features[3 * ROWS - 1], "heat");
    assert_eq!(policy["actions"], serde_json::json!(["dip", "fall", "ripple"]));
    assert_eq!(policy["dataset"]["window"], ROWS);
    assert_eq!(policy["dataset"]["scales"].as_array().unwrap().len(), 3);
    success(folder, &["export", "runs/table-1/best", "--format", "safetensors", "--out", "p.st"]);
    for (from, to) in [("runs/table-1", "run.onnx"), ("p.st", "file.onnx")] {
        success(folder, &["export", from, "--format", "onnx", "--out", to]);
        let model = fs::read(folder.join(to)).unwrap();
        let text = String::from_utf8_lossy(&model);
        assert!(text.contains("\"ripple\"") && text.contains("\"scales\":[{"), "{from}");
    }
    for line in ["train table", "eval runs/table-1", "settings table"] {
        refused(folder, line, &["a labelled table is not one"]);
    }
    for format in ["onnx", "json"] {
        let words = ["export", "runs/table-1", "--format", format, "--json"];
        assert_eq!(json(folder, &words)["env"], "table");
    }
}

#[test]
fn bad_tables_get_one_clear_sentence_and_nothing_is_written() {
    let folder = &Scratch::new();
    let said = |table: &str, more: &str| {
        fs::write(folder.join("t.csv"), table).unwrap();
        let text = refused(folder, &format!("import t.csv --label mark --out shown {more}"), &[]);
        assert!(!folder.join("shown").exists(), "{text}");
        assert_eq!(text.trim().lines().count(), 1, "{text}");
        text
    };
    let short = "--window 1";
    assert!(said("", short).contains("t.csv: it is empty"));
    assert!(said("a,b\n", short).contains("it has no column `mark`; its columns are a, b"));
    assert!(said("mark\n", short).contains("no column of numbers"));
    assert!(said("a,mark\n", short).contains("t.csv: it has no rows"));
    assert!(said("a,mark\r1,u\r2,d\r", short).contains("its lines end with CR alone"));
    assert!(said("a,\"mark\n1,u\n2,d\n", short).contains("a quote of line 1 has no end"));
    let two_lines = said("a,\"mark\n(state)\"\n1,u\n", short);
    assert!(two_lines.contains("its columns are a, mark (state)"), "{two_lines}");
    assert!(said("a,mark\n1\n", short).contains("line 2 has 1 values, but there are 2 columns"));
    for cell in ["x", "nan", "inf", "1e60"] {
        let text = said(&format!("a,mark\n1,\n{cell},u\n"), short);
        assert!(text.contains(&format!("line 3 has `{cell}` in the column a")), "{text}");
    }
    let constant = "1,u\n2,d\n".repeat(20);
    let far = said(&format!("a,mark\n{constant}1e30,u\n"), short);
    assert!(
        far.contains("line 42 has 1000000000000000000000000000000 in the column a: too far"),
        "{far}"
    );
    assert!(said("a,mark\n1,\n,u\n", short).contains("line 3 has an empty cell in the column a"));
    assert!(said("a;mark\n1;u\n", short).contains("columns must be separated by commas"));
    let twice = said("a,mark,mark\n1,u,u\n", short);
    assert!(twice.contains("it has two columns `mark`; rename one"), "{twice}");
    let times = |lines: &[&str], more: &str| {
        let rows = lines.iter().map(|line| format!("1,{line},u\n"));
        let more = format!("--window 1 --time t{more}");
        said(&("a,t,mark\n".to_string() + &rows.collect::<String>()), &more)
    };
    let later = ["2026-01-02T12:00:00+02:00", "2026-01-02T09:30:00Z"];
    assert!(times(&later, "").contains("line 3 is of a time before"));
    let days = ["31.01.2026", "01.02.2026", "28.01.2026"];
    assert!(times(&days, "").contains("line 2 has `31.01.2026` in the column t: no number and"));
    assert!(times(&days, " --time-format %d.%m.%Y").contains("line 4 is of a time before"));
    assert!(times(&["5", "2026-01-02"], "").contains("line 3 has a number and the line above"));
    let rows = |marks: &[&str]| {
        let rows = marks.iter().enumerate().map(|(i, mark)| format!("{i},{},{mark}\n", 9 - i));
        "a,t,mark\n".to_string() + &rows.collect::<String>()
    };
    let good = rows(&["u", "d", "", "u", "d"]);
    assert!(said(&good, "--window 1 --time t").contains("line 3 is of a time before"));
    assert!(said(&good, "--window 1 --time z").contains("it has no column `z`"));
    assert!(said(&good, "--window 2").contains("1 of its 5 rows are held out"));
    assert!(said(&good, "--window 5").contains("4 of its 5 rows are learnt from"));
    assert!(said(&good, "--window 1 --validation 0.7").contains("at most 0.5"));
    assert!(
        said(&rows(&["u", "", "u", "d", ""]), short).contains("none of the 1 rows that are held")
    );
    assert!(said(&rows(&["u", "", "u", "u", "u"]), short).contains("have the label `u`"));
    assert!(
        said(&rows(&["u", "d", "u", "u", "x"]), short).contains("the label `x` is in the rows")
    );
}

#[test]
fn a_column_without_a_name_is_no_feature() {
    let folder = &Scratch::new();
    let row = |i: i32, mark: &str| format!("{i},{},1,2026-01-{:02},{mark}\n", i * i, i + 1);
    let rows: String = (0..8).map(|i| row(i, ["u", "d"][i as usize % 2])).collect();
    for name in ["", "Unnamed: 0"] {
        fs::write(folder.join("t.csv"), format!("{name},a,b,day,mark\n{rows}")).unwrap();
        let out = if name.is_empty() { "plain" } else { "pandas" };
        let import = "import t.csv --label mark --window 1 --time day --json --out";
        let words: Vec<&str> = import.split(' ').chain([out]).collect();
        let output = grove(folder, &words);
        assert!(stderr(&output).contains("Column 1 has no name"), "{}", stderr(&output));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["features"], serde_json::json!(["a", "b"]));
    }
}
