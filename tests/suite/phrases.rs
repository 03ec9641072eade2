//! Phrases that stay out of documents, the page, help, settings and printed sentences, since an English developer
//! would write another one.

use crate::support::{Scratch, grove, repository, sources, stdout};
use grove::{env, task};
use std::fs;
use std::path::PathBuf;

/// Phrases, each with a better one.
#[rustfmt::skip]
const PHRASES: &[(&str, &str)] = &[
    ("learner all on one device", "learner all run on the same device"),
    ("is one rust program", "is a single Rust binary"),
    ("from nothing to", "from scratch to"),
    ("cores from nothing", "on a clean checkout"),
    ("hour from nothing", "on a clean checkout"),
    ("come along", "ships with"),
    ("comes along", "ships with"),
    ("run of before", "an earlier run"),
    ("go on with the", "resume, continue with"),
    ("goes on with", "continues with"),
    ("going on with", "Resuming"),
    ("without a window", "no display needed"),
    ("game of yours", "your own game"),
    ("games of yours", "your own games"),
    ("environment of yours", "your own environment"),
    ("unknown name is refused", "unknown names are rejected"),
    ("is refused in a sentence", "is rejected with an error"),
    ("is refused by name", "is rejected with its name"),
    ("says where it cannot", "tells you when it falls back"),
    ("a hash of what it is for", "a hash of its purpose"),
    ("are written beside", "are written to a temporary file"),
    ("holds a part out", "holds out a validation split"),
    ("tells that best", "predicts it best"),
    ("if one likes", "optionally"),
    ("tells of ", "covers, describes"),
    ("tells all of it", "has the details"),
    ("by then", "current"),
    ("or a half from", "15 to 30 minutes"),
    ("has run nowhere", "is untested"),
    ("is played by the cpu", "is a software adapter"),
    ("it has native", "Engine: native rollouts"),
    ("everything is kept", "Saving to"),
    ("of them up to the first", "first update after"),
    ("best policy is of", "Best policy: iteration"),
    ("best model is of", "Best model: iteration"),
    ("and lies in", "saved in"),
    ("greedy ones score", "greedy scores range from"),
    ("--resume goes on", "continue with --resume"),
    ("asked for by name", "as requested"),
    ("evaluated each ", "evaluated every"),
    ("saved each ", "saved every"),
    ("nothing was kept", "nothing saved"),
    ("it was not trained on", "held-out"),
    ("all right", "exactly right"),
    ("told right", "accuracy"),
    (" are in shown", "Wrote ... to shown/"),
    ("holds no policy to", "No such run"),
    ("no intact file", "not a valid file"),
    ("is wanted here", "must be"),
    ("is none of the model's", "the model's vocabulary has no"),
    ("for models that are there", "needs a pretrained model"),
    ("model go on", "generate text"),
    ("keep what a player", "record games"),
    ("somebody has", "labelled"),
    ("of a table of numbers", "from a time series"),
    ("tell what is wrong", "check for mistakes"),
    ("computes products with", "precision of matrix products"),
    ("where it has that", "where supported"),
    ("tokens to add", "maximum number of new tokens"),
    ("how it goes down", "schedule"),
    ("share of what is right", "label smoothing"),
    ("whether the estimate is multiplied", "weight the estimate by the ratio"),
    ("counts 1, one that is", "+1 for each"),
    ("comes with the page", "Pretrained"),
    ("so many games", "mean of N games"),
    ("in your hands", "play it yourself"),
    ("what trains this game well", "defaults work well"),
    ("count from the next", "apply the next time"),
    ("again and again", "after each update"),
    ("are new to it", "may not work"),
    ("are kept here", "recorded"),
    ("loaded, and on the stage", "loaded, now playing"),
    ("whoever", "anyone who"),
];

/// The text with single spaces, in lower case.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Fails where the text has one of the phrases.
fn assert_has_no_phrase(name: &str, text: &str) {
    let text = plain(text);
    for (phrase, better) in PHRASES {
        assert!(!text.contains(phrase), "{name} says {phrase:?}; better: {better}");
    }
}

/// Paths of all files in a folder that end like this.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_string_lossy().ends_with(ending)).collect()
}

#[test]
fn documents_and_the_page_have_none_of_the_phrases() {
    let mut paths = vec![repository("python/README.md"), repository("benches/README.md")];
    for (folder, ending) in
        [("", ".md"), ("docs", ".md"), ("web/page", ".html"), ("web/page", ".js")]
    {
        paths.extend(files(folder, ending));
    }
    assert!(paths.len() > 40, "{paths:?}");
    for path in paths {
        assert_has_no_phrase(&path.display().to_string(), &fs::read_to_string(&path).unwrap());
    }
}

#[test]
fn help_and_settings_have_none_of_the_phrases() {
    let folder = &Scratch::new();
    // Manual pages hold all help.
    assert!(grove(folder, &["man", "--out", "pages"]).status.success());
    for entry in fs::read_dir(folder.join("pages")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap().replace('\\', "");
        assert_has_no_phrase(&path.display().to_string(), &text);
    }
    let tasks = task::TASKS.iter().map(|task| task.name);
    for name in env::NAMES.iter().copied().chain(tasks) {
        let text = stdout(&grove(folder, &["settings", name])).replace('#', "");
        assert_has_no_phrase(&format!("grove settings {name}"), &text);
    }
}

#[test]
fn printed_sentences_have_none_of_the_phrases() {
    let files = sources(&repository("src"));
    let count = files.len();
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        // A sentence may go on in the next line of the source.
        let code: String = code.map(|line| line.trim_end_matches('\\').to_string() + " ").collect();
        assert_has_no_phrase(&path.display().to_string(), &code);
    }
    assert!(count > 200, "{count} files");
}
