//! Dashboard of a run in a large terminal: curves, metrics and completions above the progress line.

mod ansi;
mod keys;

pub use keys::KeyListener;

use crate::metrics::{EvaluationRecord, IterationRecord, IterationSeconds};
use crate::plot::extent;
use crate::run::{IterationReport, format_with_prefix};
use crate::trainer::text::CompletionRecord;
use console::Term;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Constraint, Layout, Rect};
use ratatui_core::style::{Color, Style};
use ratatui_core::symbols::Marker;
use ratatui_core::text::Line;
use ratatui_core::widgets::Widget;
use ratatui_widgets::chart::{Axis, Chart, Dataset, GraphType, LegendPosition};
use ratatui_widgets::paragraph::Paragraph;
use std::time::{Duration, Instant};

/// Minimum columns and rows of a terminal for the dashboard.
const MIN_TERMINAL_SIZE: (u16, u16) = (100, 28);
/// Rows of the curves, columns of the metrics beside them, and number of completions below them.
const CURVE_ROWS: u16 = 13;
const METRIC_COLUMNS: u16 = 38;
const NUM_COMPLETIONS: usize = 4;
/// Name of the curve of training scores.
const SCORE_CURVE: &str = "score, sampled";
/// Maximum number of points per curve, beyond which every second one is dropped: more than a terminal has columns.
const MAX_POINTS: usize = 2000;
/// Minimum time between frames; drawing every iteration would slow down fast runs.
const FRAME_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Default)]
pub struct Dashboard {
    /// Number of iterations of the whole run.
    num_iterations: u32,
    training_curve: Vec<(f64, f64)>,
    greedy_curve: Vec<(f64, f64)>,
    training_curve_name: &'static str,
    /// Whether any iteration had a score.
    has_scores: bool,
    metrics: Vec<String>,
    /// Whether keyboard input is available.
    pub has_keys: bool,
    completions: Vec<String>,
    /// The moment of the last frame, and the columns of the terminal then.
    last_frame: Option<(Instant, u16)>,
}

impl Dashboard {
    /// Creates a dashboard for a run of `num_iterations` iterations; `None` if stderr is no terminal of enough size.
    pub fn new(num_iterations: u32) -> Option<Self> {
        let term = Term::stderr();
        let is_dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        let (rows, columns) = term.size_checked().filter(|_| term.is_term() && !is_dumb)?;
        (columns >= MIN_TERMINAL_SIZE.0 && rows >= MIN_TERMINAL_SIZE.1)
            .then(|| Self::empty(num_iterations))
    }

    fn empty(num_iterations: u32) -> Self {
        Self { num_iterations, training_curve_name: SCORE_CURVE, ..Self::default() }
    }

    /// Adds the metrics of an iteration. Returns the lines of a frame if one is due; an empty frame if the terminal has
    /// become too small.
    pub fn update(&mut self, report: &IterationReport) -> Option<String> {
        let record = &report.record;
        let x = f64::from(record.iteration);
        let y = self.update_training_curve(record);
        add_point(&mut self.training_curve, y.map(|y| (x, y)));
        let greedy = record.evaluation.as_ref().and_then(EvaluationRecord::score);
        add_point(&mut self.greedy_curve, greedy.map(|score| (x, score)));
        if !report.completions.is_empty() {
            self.completions = completion_lines(&report.completions);
        }
        let is_last = record.iteration == self.num_iterations;
        let (rows, columns) = Term::stderr().size_checked()?;
        // A frame of another width would be torn.
        let is_recent =
            |(drawn, width): (Instant, u16)| drawn.elapsed() < FRAME_INTERVAL && width == columns;
        if !is_last && self.last_frame.is_some_and(is_recent) {
            return None;
        }
        self.last_frame = Some((Instant::now(), columns));
        self.metrics = metric_lines(record, self.has_keys);
        Some(if columns >= MIN_TERMINAL_SIZE.0 && rows >= MIN_TERMINAL_SIZE.1 {
            ansi::format_lines(&self.draw(columns), console::colors_enabled_stderr())
        } else {
            String::new()
        })
    }

    /// Chooses the quantity of the training curve and returns its value: the loss for SFT and for learning from data,
    /// otherwise the score of the iterations that have one. If the quantity changes, earlier points are discarded.
    fn update_training_curve(&mut self, record: &IterationRecord) -> Option<f64> {
        self.has_scores |= record.score.is_some();
        let is_loss = record.text.as_ref().map_or(!self.has_scores, |text| text.is_sft);
        let name = if is_loss { "loss" } else { SCORE_CURVE };
        if name != self.training_curve_name {
            self.training_curve_name = name;
            self.training_curve.clear();
        }
        if is_loss { Some(record.loss) } else { record.score }
    }

    fn draw(&self, columns: u16) -> Buffer {
        let below = self.completions.len() as u16;
        let mut buffer = Buffer::empty(Rect::new(0, 0, columns, CURVE_ROWS + below));
        let rows = Layout::vertical([Constraint::Length(CURVE_ROWS), Constraint::Length(below)]);
        let [above, completions] = rows.areas(buffer.area);
        let columns =
            [Constraint::Fill(1), Constraint::Length(2), Constraint::Length(METRIC_COLUMNS)];
        let [curves, _, metrics] = Layout::horizontal(columns).areas(above);
        self.build_chart().render(curves, &mut buffer);
        paragraph(&self.metrics).render(metrics, &mut buffer);
        paragraph(&self.completions).render(completions, &mut buffer);
        buffer
    }

    /// Creates the chart of the scores so far, with its legend in the corner that the curve leaves free.
    fn build_chart(&self) -> Chart<'_> {
        let curve = |name, points, color| {
            Dataset::default()
                .name(name)
                .marker(Marker::Braille)
                .graph_type(GraphType::Line)
                .style(Style::new().fg(color))
                .data(points)
        };
        let mut curves =
            vec![curve(self.training_curve_name, &self.training_curve, Color::DarkGray)];
        if !self.greedy_curve.is_empty() {
            curves.push(curve("score, greedy", &self.greedy_curve, Color::Green));
        }
        let range = extent(self.training_curve.iter().chain(&self.greedy_curve).map(|(_, y)| *y));
        let (low, high) = range.map_or((0.0, 1.0), |y| (y.start, y.end));
        let last_x = f64::from(self.num_iterations);
        let x = Axis::default()
            .bounds([0.0, last_x])
            .labels(["0".into(), self.num_iterations.to_string()]);
        let y = Axis::default().bounds([low, high]).labels([format_bound(low), format_bound(high)]);
        let always = (Constraint::Percentage(100), Constraint::Percentage(100));
        // Placed where the curve is not.
        let is_high = self.training_curve.last().is_some_and(|(_, y)| 2.0 * y > low + high);
        let corner = if is_high { LegendPosition::BottomRight } else { LegendPosition::TopRight };
        Chart::new(curves)
            .x_axis(x)
            .y_axis(y)
            .legend_position(Some(corner))
            .hidden_legend_constraints(always)
    }
}

fn paragraph(lines: &[String]) -> Paragraph<'_> {
    Paragraph::new(lines.iter().map(|line| Line::raw(line.as_str())).collect::<Vec<_>>())
}

/// Adds a point to a curve if it is finite.
fn add_point(curve: &mut Vec<(f64, f64)>, point: Option<(f64, f64)>) {
    curve.extend(point.filter(|(_, y)| y.is_finite()));
    if curve.len() > MAX_POINTS {
        let last = curve.len() - 1;
        let mut indices = 0..;
        curve.retain(|_| indices.next().is_some_and(|i| i % 2 == 0 || i == last));
    }
}

fn format_bound(x: f64) -> String {
    if x.abs() < 100.0 { format!("{x:.2}") } else { format!("{x:.0}") }
}

/// The metrics beside the curves, one per line, and the key bindings if keyboard input is available.
fn metric_lines(record: &IterationRecord, has_keys: bool) -> Vec<String> {
    let unit = if record.text.is_some() { "tokens" } else { "steps" };
    let mut lines = vec![
        format!("{:<14}{:.4}", "loss", record.loss),
        format!("{:<14}{:.3}", "entropy", record.entropy),
        format!("{:<14}{:.5}", "approx. KL", record.approx_kl),
        format!("{:<14}{:.1} %", "clipped", 100.0 * record.clip_fraction),
        format!("{:<14}{:.3}", "gradient", record.grad_norm),
        format!("{:<14}{:.2e}", "learning rate", record.learning_rate),
        format!("{:<14}{} {unit}/s", "speed", format_with_prefix(record.steps_per_second)),
    ];
    let in_use = record.memory.in_use.map(|bytes| format!("{:<14}{} MiB", "memory", bytes >> 20));
    lines.extend(in_use);
    lines.extend(phase_lines(&record.seconds));
    if has_keys {
        lines.push(String::new());
        lines.push("keys: p pause, s save, o page, q stop".to_string());
    }
    lines
}

/// The fractions of an iteration's phases, one per line.
fn phase_lines(seconds: &IterationSeconds) -> Vec<String> {
    let Some(phases) = seconds.phases.filter(|_| seconds.total > 0.0) else { return Vec::new() };
    let parts =
        [("play", Some(phases.rollout)), ("learn", Some(phases.update)), ("verify", phases.verify)];
    let line = |(name, part): (&str, Option<f64>)| {
        Some(format!("{name:<14}{:.0} %", 100.0 * part? / seconds.total))
    };
    parts.into_iter().filter_map(line).collect()
}

/// The best and the worst completions of an iteration with their rewards, one per line.
fn completion_lines(records: &[CompletionRecord]) -> Vec<String> {
    let mut judged: Vec<(f64, &CompletionRecord)> =
        records.iter().filter_map(|record| Some((record.reward?, record))).collect();
    judged.sort_by(|a, b| b.0.total_cmp(&a.0));
    let half = NUM_COMPLETIONS / 2;
    let worst = judged.split_off(judged.len().min(half).max(judged.len().saturating_sub(half)));
    judged.truncate(half);
    let line = |(reward, record): &(f64, &CompletionRecord)| {
        let plain = |text: &str| -> String {
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
        };
        let prompt = plain(&record.prompt);
        let tail: String = prompt.chars().skip(prompt.chars().count().saturating_sub(40)).collect();
        format!("{reward:>7.3}  {tail} │ {}", plain(&record.completion))
    };
    judged.iter().chain(&worst).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{LanguageRecord, Memory, PhaseSeconds};

    fn record(iteration: u32, score: f64) -> IterationRecord {
        let evaluation =
            EvaluationRecord { episodes: 8, mean_score: Some(score + 1.0), ..Default::default() };
        IterationRecord {
            iteration,
            score: Some(score),
            evaluation: Some(evaluation),
            ..Default::default()
        }
    }

    fn draw_frame(dashboard: &Dashboard, columns: u16) -> String {
        ansi::format_lines(&dashboard.draw(columns), false)
    }

    #[test]
    fn a_picture_has_curves_metrics_and_the_width_of_the_terminal() {
        let mut dashboard = Dashboard::empty(10);
        for iteration in 1..=10 {
            let record = record(iteration, f64::from(iteration));
            dashboard.update(&IterationReport { record, ..IterationReport::default() });
        }
        dashboard.metrics = metric_lines(&record(10, 10.0), false);
        let frame = draw_frame(&dashboard, 120);
        let lines: Vec<&str> = frame.lines().collect();
        assert_eq!(lines.len(), usize::from(CURVE_ROWS));
        assert!(lines.iter().all(|line| line.chars().count() <= 120), "{frame}");
        for part in ["score, greedy", "score, sampled", "11.00", "1.00", "loss"] {
            assert!(frame.contains(part), "{part}: {frame}");
        }
        assert!(!frame.contains("keys"), "nobody listens: {frame}");
        // Both curves rise: the last column of the chart has marks above those of the first.
        let is_mark = |c: char| ('\u{2801}'..='\u{28ff}').contains(&c);
        let column = |line: &str| line.chars().position(is_mark);
        let tops: Vec<usize> = lines.iter().filter_map(|line| column(line)).collect();
        assert!(tops.windows(2).all(|pair| pair[0] >= pair[1]), "{frame}");
    }

    #[test]
    fn the_dashboard_fits_the_smallest_terminal() {
        let phases = PhaseSeconds { rollout: 1.0, verify: Some(0.5), ..PhaseSeconds::default() };
        let record = IterationRecord {
            seconds: IterationSeconds {
                total: 1.0,
                phases: Some(phases),
                ..IterationSeconds::default()
            },
            memory: Memory { in_use: Some(1 << 40), ..Memory::default() },
            text: Some(LanguageRecord::default()),
            ..record(10, 10.0)
        };
        let mut dashboard = Dashboard::empty(10);
        dashboard.metrics = metric_lines(&record, true);
        let frame = draw_frame(&dashboard, MIN_TERMINAL_SIZE.0);
        for text in ["play          100 %", "learn         0 %", "verify        50 %", "q stop"] {
            assert!(frame.contains(text), "{text}: {frame}");
        }
        assert!(dashboard.metrics.iter().all(|metric| frame.contains(metric)), "{frame}");
    }

    #[test]
    fn losses_and_scores_share_no_curve() {
        let record = |score, is_sft: Option<bool>| {
            let text = is_sft.map(|is_sft| LanguageRecord { is_sft, ..LanguageRecord::default() });
            IterationRecord { score, text, loss: 5.0, ..IterationRecord::default() }
        };
        let names = |records: &[IterationRecord]| -> Vec<(&'static str, Option<f64>)> {
            let mut dashboard = Dashboard::empty(10);
            let mut take = |record: &IterationRecord| {
                let y = dashboard.update_training_curve(record);
                (dashboard.training_curve_name, y)
            };
            records.iter().map(&mut take).collect()
        };
        let text = [record(None, Some(true)), record(Some(0.5), Some(false))];
        assert_eq!(names(&text), [("loss", Some(5.0)), (SCORE_CURVE, Some(0.5))]);
        let game = [record(Some(1.0), None), record(None, None), record(Some(2.0), None)];
        assert_eq!(
            names(&game),
            [(SCORE_CURVE, Some(1.0)), (SCORE_CURVE, None), (SCORE_CURVE, Some(2.0))]
        );
        assert_eq!(names(&[record(None, None)]), [("loss", Some(5.0))]);
        let mut dashboard = Dashboard::empty(10);
        for record in text {
            let y = dashboard.update_training_curve(&record);
            add_point(&mut dashboard.training_curve, y.map(|y| (1.0, y)));
        }
        assert_eq!(dashboard.training_curve, [(1.0, 0.5)]);
    }

    #[test]
    fn a_long_curve_keeps_its_last_point() {
        let mut curve = Vec::new();
        for i in 0..10_000 {
            add_point(&mut curve, Some((f64::from(i), 1.0)));
        }
        assert!(curve.len() <= MAX_POINTS && curve.last() == Some(&(9_999.0, 1.0)));
        add_point(&mut curve, Some((0.0, f64::NAN)));
        assert_eq!(curve.last(), Some(&(9_999.0, 1.0)));
    }

    #[test]
    fn the_best_and_the_worst_completions_are_shown_without_control_characters() {
        let of = |reward: f64| CompletionRecord {
            reward: Some(reward),
            completion: format!("\u{1b}[31m{reward}"),
            ..Default::default()
        };
        let lines = completion_lines(&[0.3, 0.9, 0.1, 0.5, 0.7].map(of));
        let first: Vec<&str> =
            lines.iter().map(|line| line.trim().split(' ').next().unwrap()).collect();
        assert_eq!(first, ["0.900", "0.700", "0.300", "0.100"]);
        assert!(!lines.concat().contains('\u{1b}'));
        assert_eq!(completion_lines(&[of(1.0)]).len(), 1);
        assert!(completion_lines(&[]).is_empty());
    }
}
