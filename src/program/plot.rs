//! `grove plot`: draws and tabulates learning curves of runs.

use super::games::Games;
use super::history::{Flat, History, aligned, figure, flat, read_runs, words};
use super::say::{say, tell, tell_json};
use super::study_args::{Axis, PlotArgs, name_of};
use crate::metrics::IterationRecord;
use crate::plot::{Chart, Line, band};
use crate::track::scalars;
use anyhow::{Result, bail};
use serde::Serialize;

/// The settings by which runs are not grouped: the seed, and those on which training does not depend.
const IGNORED: [&str; 3] = ["seed", "tracking.tensorboard", "tracking.csv"];

/// Runs with the same settings.
struct Group {
    settings: Flat,
    runs: Vec<History>,
}

/// A row of the table.
#[derive(Serialize)]
struct Row {
    name: String,
    runs: usize,
    /// The last place that all runs have reached.
    x: Option<f64>,
    /// The mean there, and its 95 % interval.
    y: Option<f64>,
    interval: Option<[f64; 2]>,
}

pub fn run(games: &Games, args: PlotArgs) -> Result<()> {
    let groups = grouped(read_runs(&args.runs)?);
    let mut lines = Vec::new();
    for (group, name) in groups.iter().zip(names(&groups)) {
        let curve = |run: &History| curve(&run.records, args.x, &args.y);
        let curves = group.runs.iter().map(curve).collect::<Result<Vec<_>>>()?;
        lines.push(Line { name, band: band(&curves) });
    }
    let rows: Vec<Row> = lines.iter().zip(&groups).map(|(line, group)| row(line, group)).collect();
    if let Some(path) = &args.out {
        let subjects: Vec<&str> = groups.iter().map(|group| group.runs[0].subject()).collect();
        let same = subjects.iter().all(|subject| *subject == subjects[0]);
        let of_scores = same && ["score", "greedy"].contains(&args.y.as_str());
        let references = if of_scores { groups[0].runs[0].references(games) } else { &[] };
        let references = references.iter().map(|(name, value)| (name.to_string(), *value));
        let title = if same { subjects[0].to_string() } else { String::new() };
        let (x, y) = (name_of(&args.x), args.y.clone());
        Chart { title, x, y, lines, references: references.collect() }.write(path)?;
        say!("Wrote {}", path.display());
    }
    if args.json {
        return tell_json(&rows);
    }
    let cells = |row: &Row| {
        let [low, high] = row.interval.map_or([None; 2], |interval| interval.map(Some));
        let x = row.x.map_or("-".into(), |x| format!("{x:.0}"));
        vec![row.name.clone(), row.runs.to_string(), x, figure(row.y), figure(low), figure(high)]
    };
    let rows: Vec<_> = rows.iter().map(cells).collect();
    let header = ["settings", "seeds", &name_of(&args.x), &args.y, "95 % low", "high"];
    tell(aligned(&header, &rows, 1))
}

fn row(line: &Line, group: &Group) -> Row {
    let last = line.band.last();
    Row {
        name: line.name.clone(),
        runs: group.runs.len(),
        x: last.map(|(x, ..)| x),
        y: last.map(|(_, y, _)| y),
        interval: last.map(|(.., interval)| interval),
    }
}

/// Runs in groups of the same settings, in the order of their first ones.
fn grouped(runs: Vec<History>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for run in runs {
        let mut settings = flat(&run.settings);
        settings.retain(|key, _| !IGNORED.contains(&key.as_str()));
        match groups.iter_mut().find(|group| group.settings == settings) {
            Some(group) => group.runs.push(run),
            None => groups.push(Group { settings, runs: vec![run] }),
        }
    }
    groups
}

/// Names that tell the groups apart: what they train, if that differs, and the settings in which those of the same
/// game or task differ.
fn names(groups: &[Group]) -> Vec<String> {
    let subject = |group: &Group| group.runs[0].subject().to_string();
    let is_mixed = groups.iter().any(|group| subject(group) != subject(&groups[0]));
    let name = |group: &Group| {
        let peers = || groups.iter().filter(|peer| subject(peer) == subject(group));
        let differs =
            |key: &&String| peers().any(|peer| peer.settings.get(*key) != group.settings.get(*key));
        let own = words(group.settings.iter().filter(|(key, _)| differs(key)), &group.settings);
        match (is_mixed, own.is_empty()) {
            (_, true) => subject(group),
            (true, false) => format!("{} {own}", subject(group)),
            (false, false) => own,
        }
    };
    groups.iter().map(name).collect()
}

/// The points of a run's curve of the figure `y` over `x`.
fn curve(records: &[IterationRecord], x: Axis, y: &str) -> Result<Vec<(f64, f64)>> {
    let name = match y {
        "score" => "charts/episodic_return",
        "greedy" => "eval/mean_score",
        other => other,
    };
    let (mut seconds, mut points, mut is_known) = (0.0, Vec::new(), records.is_empty());
    for record in records {
        seconds += record.seconds.total;
        // A run's records need not have the same figures: those of SFT have no rewards.
        let Some((_, value)) = scalars(record).into_iter().find(|(own, _)| own == name) else {
            continue;
        };
        is_known = true;
        let x = match x {
            Axis::EnvSteps => record.env_steps as f64,
            Axis::Seconds => seconds,
            Axis::Iterations => f64::from(record.iteration),
        };
        points.extend(value.map(|value| (x, value)));
    }
    if !is_known {
        let mut known: Vec<String> = Vec::new();
        for (name, _) in records.iter().flat_map(scalars) {
            if !known.contains(&name) {
                known.push(name);
            }
        }
        bail!("unknown figure `{y}`; must be score, greedy or one of: {}", known.join(", "));
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::TextRecord;

    #[test]
    fn records_without_a_figure_give_no_point() {
        let record = |iteration, parts: &[(&str, f64)]| {
            let rewards = parts.iter().map(|(part, mean)| (part.to_string(), *mean)).collect();
            let text = TextRecord { rewards, ..TextRecord::default() };
            IterationRecord { iteration, text: Some(text), ..IterationRecord::default() }
        };
        let records = [record(1, &[]), record(2, &[("exact", 0.5)])];
        let points = curve(&records, Axis::Iterations, "rewards/exact").unwrap();
        assert_eq!(points, [(2.0, 0.5)]);
        let error = curve(&records, Axis::Iterations, "rewards/none").unwrap_err().to_string();
        assert!(error.ends_with("rewards/exact"), "{error}");
        assert_eq!(curve(&[], Axis::Iterations, "rewards/none").unwrap(), []);
    }
}
