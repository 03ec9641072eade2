//! Progress of a run, or of several, on stderr: a line that fits the terminal, with a history above it; without a
//! terminal, the history alone.

use super::args::RunArgs;
use super::dashboard::Dashboard;
use super::output::eprint_line;
use crate::run::IterationReport;
use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Approximate number of history lines of a run.
const HISTORY_LINES: u32 = 20;
/// Columns of the bar, and of the longest time left with its words.
const BAR_COLUMNS: usize = 10;
const TIME_LEFT_COLUMNS: usize = 14;
/// Columns of a terminal of unknown size.
const DEFAULT_COLUMNS: usize = 80;
/// Maximum redraws of a dashboard per second, equal to its frame rate.
const DASHBOARD_HZ: u8 = 5;
/// Interval at which the clock of several runs is redrawn.
const REDRAW_INTERVAL: Duration = Duration::from_millis(500);

/// Progress line with the history above it.
pub struct ProgressLine {
    bar: ProgressBar,
    pub dashboard: Option<Dashboard>,
    is_quiet: bool,
    /// Number of iterations of the whole run.
    num_iterations: u32,
    /// Iteration of the last line of the history.
    last_line_iteration: u32,
}

impl ProgressLine {
    /// Creates the progress of a run of `num_iterations` iterations, of which `num_done` are done, in the format that
    /// the command line requests. Runs of several ranks have no dashboard, since its keys could make other ranks wait.
    pub fn new(args: &RunArgs, num_ranks: usize, num_done: u32, num_iterations: u32) -> Self {
        let wants_dashboard = !args.quiet && !args.plain && num_ranks == 1;
        let dashboard = wants_dashboard.then(|| Dashboard::new(num_iterations)).flatten();
        let target = match (args.quiet, &dashboard) {
            (true, _) => ProgressDrawTarget::hidden(),
            // Redrawing whole frames more often would slow down the terminal and the run.
            (false, Some(_)) => ProgressDrawTarget::stderr_with_hz(DASHBOARD_HZ),
            (false, None) => ProgressDrawTarget::stderr(),
        };
        let bar = ProgressBar::with_draw_target(Some(u64::from(num_iterations)), target);
        let dashboard_prefix = if dashboard.is_some() { "{prefix}\n" } else { "" };
        let template = format!("{dashboard_prefix}{{bar:{BAR_COLUMNS}}} {{pos}}/{{len}} {{msg}}");
        bar.set_style(ProgressStyle::with_template(&template).expect("the template is valid"));
        bar.set_position(u64::from(num_done));
        Self { bar, dashboard, is_quiet: args.quiet, num_iterations, last_line_iteration: num_done }
    }

    pub fn show(&mut self, report: &IterationReport) {
        let Self { bar, dashboard, is_quiet, num_iterations, last_line_iteration } = self;
        let columns = terminal_columns();
        if let Some(frame) = dashboard.as_mut().and_then(|dashboard| dashboard.update(report)) {
            bar.set_prefix(frame);
        }
        let (iteration, num_iterations) = (report.record.iteration, *num_iterations);
        let metrics = report.format_metrics();
        let digits = num_iterations.to_string().len();
        let time_left =
            report.seconds_left.map(|seconds| format!("{} left  ", format_clock(seconds)));
        let width = columns.saturating_sub(BAR_COLUMNS + 2 * digits + 3 + TIME_LEFT_COLUMNS);
        bar.set_message(time_left.unwrap_or_default() + &join_fitting(&metrics, width));
        bar.set_position(u64::from(iteration));
        let is_line_due = !*is_quiet
            && (iteration - *last_line_iteration >= num_iterations / HISTORY_LINES
                || iteration == num_iterations);
        if report.record.evaluation.is_some() && is_line_due {
            *last_line_iteration = iteration;
            // Without a bar, stderr is not a terminal, and lines may be of any length.
            let width =
                if bar.is_hidden() { usize::MAX } else { columns.saturating_sub(2 * digits + 3) };
            let line = join_fitting(&metrics, width);
            self.print_above(|| eprint_line!("{iteration:>digits$}/{num_iterations}  {line}"));
        }
    }

    /// Prints lines above the bar.
    pub fn print_above(&self, print: impl FnOnce()) {
        print_above_bar(&self.bar, print);
    }
}

impl Drop for ProgressLine {
    /// Removes the bar; the history stays.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Progress of several runs side by side on stderr: a bar with a table below it, and above it a line for each run that
/// has ended; without a terminal, the lines alone.
pub struct RunBoard {
    bar: ProgressBar,
}

impl RunBoard {
    /// Creates a board of `total` runs, of which `done` have ended.
    pub fn new(is_quiet: bool, done: usize, total: usize) -> Self {
        let target =
            if is_quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(total as u64), target);
        let template = format!("{{bar:{BAR_COLUMNS}}} {{pos}}/{{len}} runs  {{elapsed}}{{msg}}");
        bar.set_style(ProgressStyle::with_template(&template).expect("the template is valid"));
        bar.set_position(done as u64);
        bar.enable_steady_tick(REDRAW_INTERVAL);
        Self { bar }
    }

    /// Prints a line above the bar.
    pub fn print_line(&self, line: &str) {
        print_above_bar(&self.bar, || eprint_line!("{line}"));
    }

    /// Prints the line of a run that has ended, and shows a table of those so far on a terminal.
    pub fn print_ended(&self, line: &str, table: impl FnOnce() -> String) {
        self.print_line(line);
        if !self.bar.is_hidden() {
            let columns = terminal_columns().saturating_sub(1);
            let cut = |row: &str| format!("\n{}", row.chars().take(columns).collect::<String>());
            self.bar.set_message(table().lines().map(cut).collect::<String>());
        }
        self.bar.inc(1);
    }
}

impl Drop for RunBoard {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Columns of the terminal now, which the user may resize.
fn terminal_columns() -> usize {
    Term::stderr().size_checked().map_or(DEFAULT_COLUMNS, |(_, columns)| columns.into())
}

/// Prints lines above a bar, which is drawn again below them unless it is hidden.
fn print_above_bar(bar: &ProgressBar, print: impl FnOnce()) {
    if bar.is_hidden() { print() } else { bar.suspend(print) }
}

/// Joins as many whole parts as fit into `columns`.
fn join_fitting(parts: &[String], columns: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let gap = if line.is_empty() { "" } else { "  " };
        if line.len() + gap.len() + part.len() > columns {
            break;
        }
        line = line + gap + part;
    }
    line
}

/// Formats a duration by its two largest units, for instance `3m 20s`.
fn format_clock(seconds: f64) -> String {
    let seconds = seconds.ceil().min(1e9) as u64;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (hours, minutes) if hours < 100 => format!("{hours}h {minutes}m"),
        (hours, _) => format!("{}d", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_as_many_whole_parts_as_fit() {
        let parts = ["score 7.61", "greedy 7.70", "2.3M steps/s"].map(String::from);
        for (columns, line) in [
            (0, ""),
            (9, ""),
            (10, "score 7.61"),
            (22, "score 7.61"),
            (23, "score 7.61  greedy 7.70"),
            (1000, "score 7.61  greedy 7.70  2.3M steps/s"),
        ] {
            assert_eq!(join_fitting(&parts, columns), line);
        }
    }

    #[test]
    fn a_time_left_fits_its_columns() {
        for (seconds, text) in [
            (0.2, "1s"),
            (59.0, "59s"),
            (61.0, "1m 1s"),
            (3599.5, "1h 0m"),
            (359_999.0, "99h 59m"),
            (360_000.0, "4d"),
            (f64::MAX, "11574d"),
        ] {
            assert_eq!(format_clock(seconds), text);
            assert!(text.len() + " left  ".len() <= TIME_LEFT_COLUMNS, "{text}");
        }
    }
}
