//! `grove plot`: draws and tabulates learning curves of runs.

use super::args::{Axis, PlotArgs, name_of};
use super::games::Games;
use super::output::{eprint_line, print_json, print_result};
use super::progress_note::with_note;
use super::recorded_run::{
    FlatSettings, READING_RUNS, RecordedRun, flatten, format_settings, read_runs,
};
use super::text_table::{align_columns, format_number};
use crate::metrics::IterationRecord;
use crate::plot::{Chart, Line, aggregate};
use crate::run::RunFolder;
use crate::track::list_scalars;
use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::Value as Json;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use toml::Value;

/// Settings that do not separate groups: the seed, and those that do not affect training.
const IGNORED_SETTINGS: [&str; 3] = ["seed", "tracking.tensorboard", "tracking.csv"];

/// Runs with the same settings, one per seed.
struct RunGroup {
    settings: FlatSettings,
    runs: Vec<RecordedRun>,
}

impl RunGroup {
    /// Adds a run. Of several runs with the same seed, the one with the most iterations is kept.
    fn add(&mut self, run: RecordedRun) {
        let seed = run.settings.get("seed");
        match self.runs.iter_mut().find(|other| other.settings.get("seed") == seed) {
            Some(other) if other.iterations_done() < run.iterations_done() => *other = run,
            Some(_) => {}
            None => self.runs.push(run),
        }
    }
}

#[derive(Serialize)]
struct Row {
    name: String,
    /// Number of runs that have the metric.
    runs: usize,
    /// Last position that all of them have reached.
    x: Option<f64>,
    /// Mean at that position, and its 95 % interval; no interval for a single run.
    y: Option<f64>,
    interval: Option<[f64; 2]>,
}

/// Groups runs that differ in their seeds alone, prints the last point of each group's curve, and draws the curves in a
/// file if one is named.
pub fn run(games: &Games, args: PlotArgs) -> Result<()> {
    let groups = group_runs(with_note(READING_RUNS, || read_runs(&args.runs))?);
    let (mut lines, rows) = collect_lines(games, &args, &groups);
    lines.retain(|line| !line.band.x.is_empty());
    if lines.is_empty() {
        let runs = groups.iter().flat_map(|group| &group.runs);
        check_metric_name(runs.flat_map(|run| &run.records), &args.y)?;
    }
    if let Some(path) = &args.out {
        RunFolder::check_output(path)?;
        make_chart(games, &args, &groups, lines).write(path)?;
        eprint_line!("Wrote {}", path.display());
    }
    if args.json { print_json(&rows) } else { print_rows(&args, &rows) }
}

/// Collects the curve of each group, and the row of its last point.
fn collect_lines(games: &Games, args: &PlotArgs, groups: &[RunGroup]) -> (Vec<Line>, Vec<Row>) {
    let lines = groups.iter().zip(name_groups(games, groups)).map(|(group, name)| {
        let curves = group.runs.iter().map(|run| collect_points(&run.records, args.x, &args.y));
        let curves: Vec<_> = curves.filter(|curve| !curve.is_empty()).collect();
        let band = aggregate(&curves);
        let (x, y) = band.last().unzip();
        let interval = band.interval.last().copied();
        let row = Row { name: name.clone(), runs: curves.len(), x, y, interval };
        (Line { name, band }, row)
    });
    lines.unzip()
}

/// Makes the chart of the groups' curves, with the scores of reference players where they can be compared.
fn make_chart(games: &Games, args: &PlotArgs, groups: &[RunGroup], lines: Vec<Line>) -> Chart {
    let subjects: Vec<&str> = groups.iter().map(|group| group.runs[0].title()).collect();
    let is_same_subject = subjects.iter().all(|subject| *subject == subjects[0]);
    let is_score = is_same_subject && ["score", "greedy"].contains(&args.y.as_str());
    let references = if is_score { groups[0].runs[0].reference_scores(games) } else { &[] };
    let reference_values =
        references.iter().map(|(name, value)| (name.to_string(), *value)).collect();
    let title = if is_same_subject { subjects[0].to_string() } else { String::new() };
    let x_label = name_of(&args.x);
    let y_label = args.y.clone();
    Chart { title, x_label, y_label, lines, reference_values }
}

/// Prints the rows as a table.
fn print_rows(args: &PlotArgs, rows: &[Row]) -> Result<()> {
    let cells = |row: &Row| {
        let [low, high] = row.interval.map_or([None; 2], |interval| interval.map(Some));
        let decimals = if args.x == Axis::Seconds { 2 } else { 0 };
        let x = row.x.map_or("-".into(), |x| format!("{x:.decimals$}"));
        let [y, low, high] = [row.y, low, high].map(format_number);
        vec![row.name.clone(), row.runs.to_string(), x, y, low, high]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let header = ["settings", "seeds", &name_of(&args.x), &args.y, "95 % low", "high"];
    print_result(align_columns(&header, &rows, 1..))
}

/// Groups runs with the same settings and environment, in order of their first runs.
fn group_runs(runs: Vec<RecordedRun>) -> Vec<RunGroup> {
    let mut groups: Vec<RunGroup> = Vec::new();
    let mut places: HashMap<_, usize> = HashMap::new();
    for run in runs {
        let mut settings = flatten(&run.settings);
        settings.retain(|key, _| !IGNORED_SETTINGS.contains(&key.as_str()));
        match places.entry((run.title().to_string(), format!("{settings:?}"))) {
            Entry::Occupied(place) => groups[*place.get()].add(run),
            Entry::Vacant(place) => {
                place.insert(groups.len());
                groups.push(RunGroup { settings, runs: vec![run] });
            }
        }
    }
    groups
}

/// Gives the groups distinct names. A name is the game or task, and `fit` for runs of `grove fit`; if that is not
/// distinct, settings that differ among groups of the same game or task and from its defaults; and if these are not
/// either, a run's name.
fn name_groups(games: &Games, groups: &[RunGroup]) -> Vec<String> {
    let differing = differing_settings(groups);
    let name = |group: &RunGroup| {
        let subject = subject_of(group);
        let settings = distinctive_settings(group, &differing[&subject], games);
        match (differing.len(), settings.is_empty()) {
            (_, true) => subject,
            (1, false) => settings,
            (_, false) => format!("{subject} {settings}"),
        }
    };
    disambiguate(groups.iter().map(name).collect(), groups)
}

/// Names what the runs of a group train: the game or task, and `fit` for runs of `grove fit`.
fn subject_of(group: &RunGroup) -> String {
    let run = &group.runs[0];
    format!("{}{}", run.title(), if run.is_fit() { " fit" } else { "" })
}

/// Finds, for each subject, the settings in which one of its groups differs from its first.
fn differing_settings(groups: &[RunGroup]) -> HashMap<String, HashSet<&String>> {
    let mut firsts: HashMap<String, &RunGroup> = HashMap::new();
    let mut differing: HashMap<String, HashSet<&String>> = HashMap::new();
    for group in groups {
        let subject = subject_of(group);
        let first = *firsts.entry(subject.clone()).or_insert(group);
        let keys = first.settings.keys().chain(group.settings.keys());
        let keys = keys.filter(|key| first.settings.get(*key) != group.settings.get(*key));
        differing.entry(subject).or_default().extend(keys);
    }
    differing
}

/// Formats the settings of a group that are among `differing` and not its game's or task's defaults.
fn distinctive_settings(group: &RunGroup, differing: &HashSet<&String>, games: &Games) -> String {
    let changes = group.runs[0].changes(games);
    let is_changed = |key: &str| changes.as_ref().is_none_or(|changes| changes.contains_key(key));
    // An empty text is a setting that is not used.
    let is_used = |value: &Value| value.as_str() != Some("");
    let shown = group
        .settings
        .iter()
        .filter(|(key, value)| is_used(value) && is_changed(key) && differing.contains(key));
    format_settings(shown, &group.settings)
}

/// Adds the path of a run to each name that several groups have.
fn disambiguate(names: Vec<String>, groups: &[RunGroup]) -> Vec<String> {
    let mut counts: HashMap<&String, usize> = HashMap::new();
    names.iter().for_each(|name| *counts.entry(name).or_insert(0) += 1);
    let with_path = |(name, group): (&String, &RunGroup)| match counts[name] {
        1 => name.clone(),
        _ => format!("{name} ({})", group.runs[0].path.display()),
    };
    names.iter().zip(groups).map(with_path).collect()
}

/// The tracked name of a metric.
fn tracked_name(y: &str) -> &str {
    match y {
        "score" => "charts/episodic_return",
        "greedy" => "eval/mean_score",
        other => other,
    }
}

/// Collects the points of a run's curve of the metric `y` over `x`.
fn collect_points(records: &[IterationRecord], x: Axis, y: &str) -> Vec<(f64, f64)> {
    let mut seconds = 0.0;
    let mut points = Vec::new();
    for record in records {
        seconds += record.seconds.total;
        let x = match x {
            Axis::EnvSteps => record.env_steps as f64,
            Axis::Seconds => seconds,
            Axis::Iterations => f64::from(record.iteration),
        };
        points.extend(find_metric(record, tracked_name(y)).map(|y| (x, y)));
    }
    points
}

/// Finds a metric of a record by its tracked name, which has a slash, or by the name of a field, such as `entropy` or
/// `seconds.total`. A run's records need not have the same metrics: records of SFT have no rewards.
fn find_metric(record: &IterationRecord, name: &str) -> Option<f64> {
    if name.contains('/') {
        return list_scalars(record).into_iter().find(|(tracked, _)| tracked == name)?.1;
    }
    find_field(&serde_json::to_value(record).ok()?, name)?.as_f64()
}

/// Finds a field of a record by its name, or one inside another by both names with a dot between them.
fn find_field<'a>(record: &'a Json, name: &str) -> Option<&'a Json> {
    name.split('.').try_fold(record, |fields, key| fields.get(key))
}

/// Whether `name` may be a field of some record: it is one of this record, or it lies inside a field that is null here
/// and an object in others.
fn may_have_field(record: &Json, name: &str) -> bool {
    let outer = name.match_indices('.').map(|(end, _)| &name[..end]);
    outer.chain([name]).any(|part| match find_field(record, part) {
        Some(field) => part == name || field.is_null(),
        None => false,
    })
}

/// Checks that some record, if there is any, has a metric of this name, which is a number.
fn check_metric_name<'a>(
    records: impl Iterator<Item = &'a IterationRecord>,
    y: &str,
) -> Result<()> {
    let mut known: Vec<String> = Vec::new();
    let mut is_field = false;
    for record in records {
        let fields = serde_json::to_value(record)?;
        is_field = is_field || may_have_field(&fields, y);
        let what = match find_field(&fields, y) {
            Some(Json::Bool(_)) => Some("true or false"),
            Some(Json::String(_)) => Some("a text"),
            Some(Json::Array(_)) => Some("a list"),
            Some(Json::Object(_)) => Some("a group of fields, each named after a dot"),
            None | Some(Json::Null | Json::Number(_)) => None,
        };
        if let Some(what) = what {
            bail!("`{y}` of metrics.jsonl is not a number, but {what}");
        }
        for (name, _) in list_scalars(record) {
            if !known.contains(&name) {
                known.push(name);
            }
        }
    }
    if !known.is_empty() && !is_field && !known.iter().any(|name| name == tracked_name(y)) {
        bail!(
            "no run has the metric `{y}`; must be score, greedy, a field of metrics.jsonl or one of: {}",
            known.join(", ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::LanguageRecord;
    use crate::program::dispatch::builtin_games;
    use crate::settings::{TrainConfig, overlay};

    #[test]
    fn a_line_groups_seeds_and_is_named_by_its_distinctive_settings() {
        let folder = tempfile::TempDir::new().unwrap();
        let fit =
            "data = { path = '/home/me/shown', digest = '5f3a' }\nloss = { loss_type = 'nll' }";
        let fast = "seed = 1\noptimizer = { learning_rate = 0.1 }";
        let texts =
            [("a", "seed = 1"), ("b", "seed = 2"), ("c", "seed = 1"), ("d", fit), ("e", fast)];
        for (name, text) in texts {
            let run = folder.path().join(name);
            std::fs::create_dir(&run).unwrap();
            std::fs::write(run.join("config.toml"), format!("env = 'fruit'\n{text}")).unwrap();
        }
        let groups = group_runs(read_runs(&[folder.path().to_path_buf()]).unwrap());
        let runs: Vec<usize> = groups.iter().map(|group| group.runs.len()).collect();
        assert_eq!(runs, [2, 1, 1]);
        let names = |groups: &[RunGroup]| name_groups(&builtin_games(), groups);
        assert_eq!(names(&groups), ["fruit", "fruit fit", "fruit learning_rate=0.1"]);
        // A setting that the first run lacks.
        let groups =
            group_runs(read_runs(&["a", "e", "c"].map(|name| folder.path().join(name))).unwrap());
        assert_eq!(names(&groups), ["fruit", "learning_rate=0.1"]);
        let rate = |rate: &str| format!("env = 'fruit'\n[optimizer]\nlearning_rate = {rate}");
        let usual = overlay::to_table(&TrainConfig::for_game("fruit").optimizer);
        let usual = usual["learning_rate"].to_string();
        std::fs::write(folder.path().join("a/config.toml"), rate(&usual)).unwrap();
        let groups =
            group_runs(read_runs(&["a", "e"].map(|name| folder.path().join(name))).unwrap());
        assert_eq!(names(&groups), ["fruit", "learning_rate=0.1"]);
    }

    #[test]
    fn runs_in_different_environments_of_another_program_are_different_lines() {
        let folder = tempfile::TempDir::new().unwrap();
        for (seed, environment) in ["CartPole-v1", "Mine", "Mine"].iter().enumerate() {
            let run = folder.path().join(seed.to_string());
            std::fs::create_dir(&run).unwrap();
            let settings = format!("env = 'host'\nseed = {seed}\n[host]\nnum_features = 4");
            std::fs::write(run.join("config.toml"), settings).unwrap();
            let metadata = format!("{{\"env\": \"host\", \"environment\": \"{environment}\"}}");
            std::fs::write(run.join("run.json"), metadata).unwrap();
        }
        let groups = group_runs(read_runs(&[folder.path().to_path_buf()]).unwrap());
        let runs: Vec<usize> = groups.iter().map(|group| group.runs.len()).collect();
        assert_eq!(runs, [1, 2]);
        assert_eq!(name_groups(&builtin_games(), &groups), ["CartPole-v1", "Mine"]);
    }

    #[test]
    fn records_without_a_metric_give_no_point() {
        let record = |iteration, parts: &[(&str, f64)]| {
            let rewards = parts.iter().map(|(part, mean)| (part.to_string(), *mean)).collect();
            let text = LanguageRecord { rewards, ..LanguageRecord::default() };
            IterationRecord { iteration, text: Some(text), ..IterationRecord::default() }
        };
        let records = [record(1, &[]), record(2, &[("exact", 0.5)])];
        assert_eq!(collect_points(&records, Axis::Iterations, "rewards/exact"), [(2.0, 0.5)]);
        assert_eq!(collect_points(&records, Axis::Iterations, "rewards/none"), []);
        assert!(check_metric_name(records.iter(), "rewards/exact").is_ok());
        assert!(check_metric_name(records.iter(), "seconds.rollout").is_err());
        assert!(check_metric_name(records.iter(), "seconds.phases.rollout").is_ok());
        assert!(check_metric_name(records.iter(), "evaluation.mean_score").is_ok());
        let error = check_metric_name(records.iter(), "rewards/none").unwrap_err().to_string();
        assert!(error.ends_with("rewards/exact"), "{error}");
        assert!(check_metric_name(records[..0].iter(), "rewards/none").is_ok());
        // A field has its own name, and those inside it one after a dot.
        let fields = [
            ("iteration", 2),
            ("seconds.total", 2),
            ("utilization", 0),
            ("seconds", 0),
            ("is_sft", 0),
            ("none", 0),
        ];
        for (name, points) in fields {
            assert_eq!(collect_points(&records, Axis::Iterations, name).len(), points, "{name}");
            let is_known = !["seconds", "is_sft", "none"].contains(&name);
            assert_eq!(check_metric_name(records.iter(), name).is_ok(), is_known, "{name}");
        }
        let error = check_metric_name(records.iter(), "is_sft").unwrap_err().to_string();
        assert_eq!(error, "`is_sft` of metrics.jsonl is not a number, but true or false");
    }
}
