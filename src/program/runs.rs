//! `grove runs`: a table of runs.

use super::args::RunsArgs;
use super::games::Games;
use super::output::{print_json, print_result};
use super::progress_note::with_note;
use super::recorded_run::{
    FlatSettings, READING_RUNS, RecordedRun, RunStatus, flatten, format_settings,
};
use super::text_table::{align_columns, format_number};
use crate::run::{Subject, format_with_prefix};
use anyhow::Result;
use serde::Serialize;

/// A run as `grove runs` lists it.
#[derive(Serialize)]
struct RunRow {
    run: String,
    #[serde(flatten)]
    subject: Subject,
    /// Name of another program's environment, for which the game is a placeholder.
    #[serde(skip_serializing_if = "Option::is_none")]
    environment: Option<String>,
    model: String,
    /// Settings that differ from the defaults, without iterations that epochs give; `None` if this program does
    /// not know the game.
    changes: Option<FlatSettings>,
    /// `changes` in one line.
    #[serde(skip)]
    changed_settings: String,
    /// Best mean score of an evaluation; `None` without evaluations.
    best_score: Option<f64>,
    best_iteration: Option<u32>,
    iteration: u32,
    iterations: u32,
    env_steps: u64,
    /// Seconds of all iterations, without evaluations.
    seconds: f64,
    #[serde(rename = "state")]
    status: RunStatus,
}

impl RunRow {
    fn new(games: &Games, run: &RecordedRun) -> Self {
        let name = run.subject().to_string();
        let environment = (run.title() != name).then(|| run.title().to_string());
        let changes = run.changes(games);
        Self {
            run: run.path.display().to_string(),
            subject: if run.has_language_model() {
                Subject::Task(name)
            } else {
                Subject::Env(name)
            },
            environment,
            model: run.describe_model(),
            changed_settings: changes
                .as_ref()
                .map_or("?".into(), |changes| format_settings(changes, &flatten(&run.settings))),
            changes,
            best_score: run.best_score(),
            best_iteration: run.best().map(|(iteration, _)| iteration),
            iteration: run.iterations_done(),
            iterations: run.planned_iterations(),
            env_steps: run.env_steps(),
            seconds: run.seconds(),
            status: run.status(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let status = match self.status {
            RunStatus::Finished => "finished".to_string(),
            RunStatus::Running => format!("running {}/{}", self.iteration, self.iterations),
            RunStatus::Interrupted => format!("interrupted {}/{}", self.iteration, self.iterations),
        };
        vec![
            self.run.clone(),
            self.environment.as_deref().unwrap_or(self.subject.name()).to_string(),
            self.model.clone(),
            status,
            format_number(self.best_score),
            format_with_prefix(self.env_steps as f64),
            format!("{:.1}", self.seconds),
            self.changed_settings.clone(),
        ]
    }
}

/// Prints a table of the runs in a folder.
pub fn run(games: &Games, args: RunsArgs) -> Result<()> {
    let runs = with_note(READING_RUNS, || RecordedRun::read_all(&args.folder))?;
    let rows: Vec<RunRow> = runs.iter().map(|run| RunRow::new(games, run)).collect();
    if args.json {
        return print_json(&rows);
    }
    if rows.is_empty() {
        let folder = args.folder.display();
        return print_result(format!(
            "There is no run in {folder} yet; `grove train fruit` makes one."
        ));
    }
    let header = [
        "run",
        "game or task",
        "model",
        "state",
        "best eval",
        "steps",
        "seconds",
        "changed settings",
    ];
    let cells: Vec<_> = rows.iter().map(RunRow::cells).collect();
    print_result(align_columns(&header, &cells, 4..7))
}
