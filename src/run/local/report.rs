//! Result of a run or an evaluation, as JSON and as text.

use super::{Run, RunFiles, RunSummary, Subject, format_with_prefix, pluralize};
use crate::checkpoint::Checkpoint;
use crate::metrics::{EvaluationRecord, HeldOutMeans, LanguageEvaluation};
use crate::rollout::ReferenceScore;
use serde::Serialize;
use std::fmt::{self, Display, Formatter};

/// Label of the rows and columns of a confusion matrix, in its corner.
const CORNER: &str = "demonstrated \\ predicted";

/// Scores on fresh episodes, and scores of reference players.
#[derive(Clone, Debug, Serialize)]
pub struct Scores {
    /// Scores of the policy with its most likely actions.
    #[serde(flatten)]
    pub greedy: EvaluationRecord,
    /// Scores of the policy with sampled actions, as in training; `None` if not evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampled: Option<EvaluationRecord>,
    /// Seed of the episodes.
    #[serde(skip)]
    pub seed: u64,
    /// Scores of players without a network; empty for language models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reference_scores: Vec<ReferenceScore>,
}

/// Quality of the best policy on held-out demonstrations.
#[derive(Clone, Debug, Serialize)]
pub struct HeldOutReport {
    /// Means over all steps.
    #[serde(flatten)]
    pub means: HeldOutMeans,
    /// Number of steps by demonstrated action and by the policy's most likely one; empty for language
    /// models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub confusion: Vec<Vec<u64>>,
    /// Names of the actions.
    #[serde(skip)]
    pub action_names: Vec<String>,
}

/// Final evaluation of a run's best policy.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FinalEvaluation {
    /// Scores on fresh episodes; `None` if there is nothing to play.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub scores: Option<Scores>,
    /// Quality on held-out demonstrations; `None` for runs that learn from rewards alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out: Option<HeldOutReport>,
}

/// Result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The game or task.
    #[serde(flatten)]
    pub subject: Subject,
    /// Path of the run directory.
    pub run: String,
    /// Name of the device.
    pub device: String,
    /// Seed of all randomness.
    pub seed: u64,
    /// Number of iterations of the whole run.
    pub iterations: u32,
    /// Time and steps spent.
    #[serde(flatten)]
    pub summary: RunSummary,
    /// Iteration of the best policy.
    pub best_iteration: u64,
    /// Path of the best policy, for the text form.
    #[serde(skip)]
    pub best_path: String,
    /// Final evaluation of the best policy.
    #[serde(flatten)]
    pub evaluation: FinalEvaluation,
}

impl FinalEvaluation {
    /// A warning if completions were generated, but none could be judged.
    pub fn warning(&self) -> Option<String> {
        self.scores.as_ref()?.greedy.warning()
    }
}

impl RunSummary {
    /// Completes the summary to the report of a run on this device, whose `best` checkpoint had this `evaluation`;
    /// without `best`, the last one had.
    pub fn into_report(
        self,
        run: &dyn Run,
        files: &RunFiles,
        device: &str,
        best: Option<&Checkpoint>,
        evaluation: FinalEvaluation,
    ) -> Report {
        let folder = files.folder();
        let best_path = match best {
            _ if folder.has_language_model() => folder.model_path(),
            Some(_) => folder.best_path(),
            None => folder.store().path(self.iterations_done.into()),
        };
        Report {
            subject: run.subject(),
            run: folder.path().display().to_string(),
            device: device.to_string(),
            seed: run.seed(),
            iterations: run.trainer().schedule().iterations,
            summary: self,
            best_iteration: best.map_or(self.iterations_done.into(), |best| best.iteration),
            best_path: best_path.display().to_string(),
            evaluation,
        }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [unit, product] = match self.subject {
            Subject::Env(_) => ["steps", "policy"],
            Subject::Task(_) => ["tokens", "model"],
        };
        let RunSummary { env_steps, seconds, seconds_to_first_update, .. } = self.summary;
        write!(f, "{} {unit} in {seconds:.1} s", format_with_prefix(env_steps as f64))?;
        if let Some(first) = seconds_to_first_update {
            write!(f, " (first update after {first:.2} s)")?;
        }
        write!(f, ".\nBest {product}: iteration {}, in {}", self.best_iteration, self.best_path)?;
        if let Some(held_out) = &self.evaluation.held_out {
            write!(f, "\n\n{held_out}")?;
        }
        if let Some(scores) = &self.evaluation.scores {
            write!(f, "\n\n{scores}")?;
        }
        Ok(())
    }
}

impl Display for HeldOutReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let HeldOutMeans { loss, accuracy } = self.means;
        let Some(accuracy) = accuracy else {
            let perplexity = loss.exp();
            return write!(
                f,
                "Held-out solutions: {loss:.4} nats a token (perplexity {perplexity:.3})."
            );
        };
        let Self { confusion, action_names, .. } = self;
        let steps: u64 = confusion.iter().flatten().sum();
        let percent = 100.0 * accuracy;
        writeln!(f, "Held out: {steps} steps; {percent:.2} % accuracy, {loss:.4} nats a step.")?;
        let width = action_names.iter().map(String::len).max().unwrap_or(0).max(12);
        let first_width = width.max(CORNER.len());
        write!(f, "{CORNER:first_width$}")?;
        action_names.iter().try_for_each(|name| write!(f, "  {name:>width$}"))?;
        for (name, row) in action_names.iter().zip(confusion) {
            write!(f, "\n{name:first_width$}")?;
            row.iter().try_for_each(|count| write!(f, "  {count:>width$}"))?;
        }
        Ok(())
    }
}

impl Display for Scores {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { greedy, sampled, seed, reference_scores } = self;
        let [policy, player, choice, what, unit] = if greedy.text.is_some() {
            ["this model", "model", "token", "held-out prompt", "tokens per completion"]
        } else {
            ["this policy", "player", "action", "held-out episode", "steps per episode"]
        };
        let by_selection = || {
            let sampled = sampled.iter().map(|sampled| ("sampled", sampled));
            std::iter::once(("greedy", greedy)).chain(sampled)
        };
        let or_lowest = |score: Option<f64>| score.unwrap_or(f64::NEG_INFINITY);
        let policy_rows = by_selection().map(|(selection, evaluation)| {
            let error = format_std_error(evaluation.std_error);
            (format!("{policy}, {selection}"), evaluation.score(), error)
        });
        let reference_rows = reference_scores.iter().map(|reference| {
            let ReferenceScore { player, mean_score, std_error } = reference;
            (player.to_string(), Some(*mean_score), format_std_error(*std_error))
        });
        let mut rows: Vec<(String, Option<f64>, String)> =
            policy_rows.chain(reference_rows).collect();
        rows.sort_by(|a, b| or_lowest(a.1).total_cmp(&or_lowest(b.1)));
        let has_errors = rows.iter().any(|(.., error)| !error.is_empty());
        let width = rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
        write!(f, "{player:width$}  {:>8}", "score")?;
        for (name, score, error) in rows {
            let score = score.map_or("-".to_string(), |score| format!("{score:.3}"));
            write!(f, "\n{name:width$}  {score:>8}{error}")?;
        }
        let EvaluationRecord { episodes, mean_length, .. } = greedy;
        let drawn = if sampled.is_some() { "; sampled: drawn, as in training" } else { "" };
        let over = pluralize(*episodes, what);
        let figure = if has_errors { "± is the standard error" } else { "Scores are" };
        write!(
            f,
            "\n\ngreedy: always the most likely {choice}{drawn}.\n{figure} over {over} (seed {seed}).\n"
        )?;
        for (selection, evaluation) in by_selection() {
            let note =
                evaluation.warning().or_else(|| evaluation.text.as_ref().map(describe_pass_rates));
            note.iter().try_for_each(|note| writeln!(f, "{selection}: {note}"))?;
        }
        match (greedy.min_score, greedy.max_score) {
            (Some(lowest), Some(highest)) => {
                let [lowest, highest] = [lowest, highest].map(round_to_thousandths);
                write!(f, "Greedy scores range from {lowest} to {highest}")?;
            }
            _ => write!(f, "There are no greedy scores")?,
        }
        write!(f, "; {mean_length:.1} {unit}.")
    }
}

/// Describes the fraction of completions with the highest reward, if that is known.
fn describe_pass_rates(text: &LanguageEvaluation) -> String {
    let LanguageEvaluation { completions_per_prompt, pass_at_1, pass_at_k, num_unjudged, .. } =
        text;
    let mut text = match pass_at_1 {
        Some(rate) => format!("pass@1 {rate:.4} ({:.1} % exactly right)", 100.0 * rate),
        None => "no pass@1, since rewards exceed 1".to_string(),
    };
    if let Some(rate) = pass_at_k.filter(|_| *completions_per_prompt > 1) {
        text += &format!(", pass@{completions_per_prompt} {rate:.4}");
    }
    if *num_unjudged > 0 {
        text += &format!(
            "; without {} that could not be scored",
            pluralize(*num_unjudged, "completion")
        );
    }
    text
}

/// Formats a standard error, if it is known, to stand behind its mean.
fn format_std_error(std_error: Option<f64>) -> String {
    std_error.map_or(String::new(), |error| format!(" ± {error:.3}"))
}

/// Rounds a number to three decimals.
fn round_to_thousandths(x: f64) -> f64 {
    (1e3 * x).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::local::events::tests::{create_files, new_run};
    use std::path::Path;

    #[test]
    fn scores_of_completions_that_were_not_judged_are_not_shown() {
        let scores = |rewards: &[f64]| {
            let [mean_score, min_score, max_score] = [rewards.first().copied(); 3];
            let text = LanguageEvaluation {
                completions_per_prompt: 1,
                num_unjudged: 2 - rewards.len(),
                rewards: rewards.iter().map(|mean| ("form".to_string(), *mean)).collect(),
                ..LanguageEvaluation::default()
            };
            let greedy = EvaluationRecord {
                episodes: 2,
                mean_score,
                min_score,
                max_score,
                mean_length: 3.0,
                text: Some(text),
                ..EvaluationRecord::default()
            };
            Scores { greedy, sampled: None, seed: 0, reference_scores: Vec::new() }
        };
        let text = scores(&[]).to_string();
        assert!(text.contains("this model, greedy         -\n"), "{text}");
        assert!(text.contains("greedy: no score: none of the 2 completions of"), "{text}");
        assert!(text.ends_with("There are no greedy scores; 3.0 tokens per completion."), "{text}");
        let evaluation = FinalEvaluation { scores: Some(scores(&[])), held_out: None };
        assert!(evaluation.warning().is_some());
        let text = scores(&[2.0]).to_string();
        assert!(
            text.contains("no pass@1, since rewards exceed 1; without 1 completion that"),
            "{text}"
        );
        assert!(text.contains("scores range from 2 to 2"), "{text}");
        assert!(text.contains("\nScores are over 2 held-out prompts (seed 0)."), "{text}");
        let mut known = scores(&[2.0]);
        known.greedy.std_error = Some(0.5);
        let text = known.to_string();
        assert!(text.contains("2.000 ± 0.500\n") && text.contains("\n± is the standard"), "{text}");
    }

    #[test]
    fn a_report_names_the_place_of_its_policy() {
        let run = new_run(1);
        let (_root, path, files, _lock) = create_files(&run);
        let summary = RunSummary { iterations_done: 7, ..RunSummary::default() };
        let report = |best: Option<&Checkpoint>| {
            let evaluation = FinalEvaluation::default();
            summary.into_report(&run, &files, "cpu", best, evaluation).to_string()
        };
        let expected = |iteration: u32, folder: &Path| {
            format!("Best policy: iteration {iteration}, in {}", folder.display())
        };
        let best = Checkpoint { iteration: 5, sections: Vec::new() };
        let text = report(Some(&best));
        assert!(text.ends_with(&expected(5, &path.join("best"))), "{text}");
        let text = report(None);
        assert!(text.ends_with(&expected(7, &path.join("checkpoints").join("00000007"))), "{text}");
    }
}
