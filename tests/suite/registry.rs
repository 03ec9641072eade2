//! The one list of games: the program, the page and the trained policies have the same.

use crate::kind::Kind;
use crate::support::{grove, stdout};
use grove::env::NAMES;
use std::path::Path;
use tempfile::TempDir;

#[test]
fn the_page_and_the_program_have_the_games_of_the_registry() {
    let page: Vec<_> = Kind::all().iter().map(Kind::name).collect();
    assert_eq!(page, NAMES);
    for kind in Kind::all() {
        assert!(!kind.title().is_empty());
        assert!(kind.idle().is_none_or(|idle| (idle as usize) < kind.actions().len()));
    }
    let help = stdout(&grove(TempDir::new().unwrap().path(), &["train", "--help"]));
    for name in NAMES {
        assert!(help.contains(name), "{help}");
    }
}

#[test]
fn a_trained_policy_is_of_a_game_of_the_registry() {
    let policies = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/policies");
    for entry in policies.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(NAMES.contains(&name), "{name}");
        // The page's script knows which there are before its module is there.
        let script = include_str!("../../web/page/page.js");
        let ready = script.lines().find(|line| line.starts_with("const READY")).unwrap();
        assert!(ready.contains(&format!("\"{name}\"")), "{name}: {ready}");
    }
}
