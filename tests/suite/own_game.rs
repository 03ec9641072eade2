//! A program with a game of its user's, that of `examples/own_game.rs`: every command is there for it.

#[path = "../../examples/own_game.rs"]
#[allow(dead_code)]
mod example;

use crate::envs::Faulty;
use crate::models::own_model::Residual;
use crate::own_models::Leaky;
use crate::support::{Scratch, adapter_name, stderr, stdout};
use example::Corridor;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

/// The words of the command line for the process that is the program.
const WORDS: &str = "GROVE_TEST_WORDS";

/// Set for the program without the built-in games.
const WITHOUT_BUILTIN: &str = "GROVE_TEST_WITHOUT_BUILTIN";

/// The variable that `grove` sets for itself, before it starts a thread.
const RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";

/// Not a test but that program, where [`own`] has started this executable once more.
#[test]
fn own_program() {
    let Ok(words) = std::env::var(WORDS) else { return };
    let words = words.lines().map(OsString::from);
    let program = match std::env::var_os(WITHOUT_BUILTIN).is_some() {
        true => grove::program().without_builtin(),
        false => grove::program(),
    };
    let program = program.game::<Corridor>().game::<Faulty>();
    let runtime_dir = std::env::var_os(RUNTIME_DIR);
    let status = program.model::<Residual>().model::<Leaky>().run_with(words);
    // Reached by every command: the program never ends the process by itself.
    println!("status {status}");
    // Other threads may be reading the environment.
    assert_eq!(std::env::var_os(RUNTIME_DIR), runtime_dir);
    assert_eq!(status, 0);
}

fn command(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let words: Vec<_> = ["own"].into_iter().chain(arguments.split(' ')).collect();
    command
        .args(["--exact", "own_game::own_program", "--nocapture"])
        .env(WORDS, words.join("\n"))
        .current_dir(folder);
    command
}

/// Runs that program.
pub fn own(folder: &Path, arguments: &str) -> Output {
    command(folder, arguments).output().unwrap()
}

/// The JSON object among what the test's frame prints.
pub fn json(folder: &Path, arguments: &str) -> serde_json::Value {
    let output = own(folder, &format!("{arguments} --json"));
    assert!(output.status.success(), "{arguments}: {}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let start = text.find('{').unwrap_or_else(|| panic!("{arguments}: {text}"));
    serde_json::Deserializer::from_str(&text[start..]).into_iter().next().unwrap().unwrap()
}

#[test]
fn every_command_takes_a_user_defined_game() {
    let folder = &Scratch::new();
    let settings = "--device cpu --set num_groups=8 --set corridor.length=4 --set eval_episodes=50";
    let report = json(folder, &format!("train corridor --run-dir run --iterations 2 {settings}"));
    assert_eq!((&report["env"], &report["iteration"]), (&"corridor".into(), &2.into()));
    let resumed = json(folder, "train --resume --run-dir run --iterations 30 --device cpu");
    assert_eq!(resumed["iteration"], 30);
    // 4 / 0.7 steps are the best there are; who never waits takes 10.
    assert!(resumed["mean_score"].as_f64().unwrap() > -7.5, "{resumed}");

    let evaluation = json(folder, "eval run");
    assert_eq!(evaluation["mean_score"], resumed["mean_score"]);
    let picture = json(folder, "record run --out x.png --games 3 --steps 3");
    assert_eq!((&picture["env"], &picture["frames"]), (&"corridor".into(), &().into()));
    let still = image::open(folder.join("x.png")).unwrap().into_rgba8();
    assert_eq!(picture["width"], still.width());
    let colours: std::collections::HashSet<_> = still.pixels().map(|pixel| pixel.0).collect();
    assert!(colours.len() > 3, "features are bars on a ground of two tones: {colours:?}");
    let film = json(folder, "record run --out x.gif --steps 5");
    assert!(film["frames"].as_u64().unwrap() > 5);
    let sizes = "--num-envs 16 --num-steps 8 --repeats 1 --no-peak --device cpu";
    let figures = json(folder, &format!("bench corridor {sizes} --out figures.json"));
    assert_eq!((&figures["env"], &figures["num_features"]), (&"corridor".into(), &2.into()));
    assert!(folder.join("figures.json").exists());
    assert_eq!(json(folder, "devices")["devices"][0]["name"], "cpu");

    let wrong = own(folder, "train corridor --set corridor.length=0");
    assert!(!wrong.status.success());
    assert!(stderr(&wrong).contains("corridor.length is 0, but must be 1 to 1000"));
    let listed = stdout(&own(folder, "settings corridor"));
    let words = "# Number of cells from the start to the exit.\n# length: 1 to 1000\nlength = 10\n";
    assert!(listed.contains(words), "{listed}");
    let help = stdout(&own(folder, "train --help"));
    let help: Vec<&str> = help.split_whitespace().collect();
    let help = help.join(" ");
    let games = format!("{}, corridor, faulty", grove::env::NAMES.join(", "));
    assert!(help.contains(&format!("{games}, or a language model's task: sort, ")), "{help}");
    assert!(help.contains("[default: fruit]"), "{help}");
}

#[test]
fn a_program_within_another_leaves_the_process_and_its_environment_alone() {
    let folder = Scratch::new();
    for (arguments, status) in
        [("--version", 0), ("train --help", 0), ("eval nothing", 1), ("train --nonsense", 2)]
    {
        let said = stdout(&own(&folder, arguments));
        assert!(said.contains(&format!("status {status}")), "{arguments}: {said}");
    }
    let mut devices = command(&folder, "devices");
    assert!(devices.env_remove(RUNTIME_DIR).output().unwrap().status.success());
}

#[test]
fn built_in_games_can_be_left_out() {
    let folder = &Scratch::new();
    let mut train = command(folder, "train fruit");
    let output = train.env(WITHOUT_BUILTIN, "1").output().unwrap();
    assert!(!output.status.success());
    let said = stderr(&output);
    assert!(said.contains("unknown game `fruit`; must be one of: corridor, faulty"), "{said}");
}

#[test]
fn check_accepts_a_good_game_and_reports_its_extent() {
    let folder = &Scratch::new();
    let output = own(folder, "check corridor --episodes 9 --device cpu");
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.contains("No problems found in corridor: 9 episodes, "), "{said}");
    assert!(said.contains("--device wgpu\nchecks them on any"), "{said}");
    let report = json(folder, "check faulty --episodes 3 --seed 7 --device cpu");
    // An episode has 20 steps.
    assert_eq!((&report["env"], &report["steps"]), (&"faulty".into(), &60.into()));
    assert_eq!((&report["findings"], &report["kernels"]), (&[(); 0][..].into(), &().into()));
    if let Some(name) = adapter_name() {
        let report = json(folder, &format!("check corridor --episodes 9 --device {name}"));
        assert_eq!(report["kernels"]["name"], *name);
    }
}

#[test]
fn check_reports_faults_and_fails() {
    let folder = &Scratch::new();
    let mut faults = vec![
        ("HugeFeature", "cpu", "warning: feature 0 (feature 0) reaches"),
        ("InfiniteFeature", "cpu", "error: feature 0 (feature 0) is inf"),
        (
            "LostByPacking",
            "cpu",
            "error: field `number` of the state holds a number that its bits cannot",
        ),
        ("Endless", "cpu", "warning: none of 64 episodes ended within 10000 steps"),
        ("StartsFromWhatWasThere", "cpu", "draws from something other than its key"),
        ("UsesWordsItDoesNotHave", "cpu", "error: word 1 is not 0"),
    ];
    let adapter = adapter_name();
    if let Some(name) = &adapter {
        faults.push(("WrongInKernels", name.as_str(), "natively and"));
        // A game with errors in its native rules is not launched on a device.
        faults.push(("InfiniteFeature", name.as_str(), "error: feature 0 (feature 0) is inf"));
    }
    for (fault, device, words) in faults {
        let arguments = format!("check faulty --set faulty.fault={fault} --device {device}");
        let output = own(folder, &arguments);
        let (out, err) = (stdout(&output), stderr(&output));
        assert!(!output.status.success(), "{fault}: {out}{err}");
        assert!(out.contains(words), "{fault}: {out}{err}");
        assert!(err.contains("found in faulty"), "{fault}: {err}");
    }
    let arguments = "check faulty --set faulty.fault=InfiniteFeature --device cpu --json";
    let out = stdout(&own(folder, arguments));
    assert!(out.contains(r#""aspect":"features","is_error":true,"message":"feature 0"#), "{out}");
    let sizes = own(folder, "check catch --set rows=0");
    assert!(stdout(&sizes).contains("catch.rows is 0"), "{}", stdout(&sizes));
    assert!(stdout(&sizes).contains("No step of catch was played"), "{}", stdout(&sizes));
    let unknown = stderr(&own(folder, "check chess"));
    assert!(unknown.contains("unknown game `chess`; must be one of: fruit"), "{unknown}");
}
