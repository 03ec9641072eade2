//! User-defined verifiers, as real processes: answers and failures.

use crate::support::{HANG, Scratch, wait_for};
use grove::task::{Completion, Prompt, RewardPart, Rewards, TaskError, Verifier, VerifierOptions};
use serde_json::{Map, json};
use std::fs;
use std::path::Path;

/// A verifier that misbehaves as the completion asks, or returns the number in the completion.
const OBEDIENT: &str = r#"
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    words = asked["completion"].split()
    answer = lambda reward, **more: print(json.dumps({"id": asked["id"], "reward": reward, **more}), flush=True)
    what = words[0]
    if what == "die":
        print("out of ideas", file=sys.stderr, flush=True)
        os._exit(3)
    elif what == "sleep":
        time.sleep(60)
    elif what == "nonsense":
        print("Traceback: none", flush=True)
    elif what == "nan":
        answer(float("nan"))
    elif what == "null":
        answer(None)
    elif what == "silent":
        os.close(1)
        time.sleep(60)
    elif what == "anonymous":
        print(json.dumps({"reward": 1}), flush=True)
    elif what == "foreign":
        answer(1, id=asked["id"] + 5)
    elif what == "flood":
        while True:
            sys.stdout.write("x" * 65536)
    elif what == "chatter":
        while True:
            print(json.dumps({"id": 0, "reward": 1}))
    elif what == "error":
        print(json.dumps({"id": asked["id"], "error": "cannot parse"}), flush=True)
    elif what == "twice":
        answer(2)
        answer(99)
    elif what == "loud":
        sys.stderr.write("complaint " * 100000 + "\n")
        answer(3)
    elif what == "guess":
        for i in range(2000):
            answer(97, id=i)
        answer(5)
    elif what == "late":
        answer(4)
        time.sleep(0.05)
        answer(98)
        print("and a last word", flush=True)
    else:
        answer(float(what))
"#;

fn prompt(text: &str) -> Prompt {
    Prompt { text: text.to_string(), ..Prompt::default() }
}

/// Writes a script and returns the command that runs it.
fn script(folder: &Path, text: &str) -> String {
    let path = folder.join("verifier.py");
    fs::write(&path, text).unwrap();
    format!("python3 {}", path.display())
}

/// A verifier whose answers are waited for as long as it takes.
fn patient_options(command: &str, workers: usize) -> VerifierOptions {
    let timeout_seconds = HANG.as_secs_f64();
    VerifierOptions { workers, timeout_seconds, ..VerifierOptions::new(command) }
}

/// Checks the reward of a completion: a number, or a problem with these words. False if the verifier was late instead,
/// as it may be on a busy machine.
fn has_reward(verifier: &Verifier, text: &str, expected: Result<f64, &str>) -> bool {
    let rewards = verify(verifier, &[text]).remove(0);
    let problem = rewards.problem.clone().unwrap_or_default();
    let holds = match expected {
        Ok(reward) => rewards == Rewards::new(vec![reward]),
        Err(said) => problem.contains(said),
    };
    assert!(holds || problem.contains("the verifier took more than"), "{text}: {rewards:?}");
    holds
}

fn verify(verifier: &Verifier, texts: &[&str]) -> Vec<Rewards> {
    let prompt = prompt("?");
    let completions: Vec<_> = texts.iter().map(|text| Completion::new(&prompt, text)).collect();
    let rewards = verifier.verify(&completions).unwrap();
    assert_eq!(rewards.len(), texts.len());
    rewards
}

/// Completions with which something goes wrong, and the words about it.
const BAD: [(&str, &str); 5] = [
    ("die", "the verifier ended (exit status: 3: out of ideas) twice on this completion"),
    (
        "nan",
        "the verifier returned \"NaN\" as the reward `reward`, which is not a number from -1e6 to 1e6",
    ),
    (
        "null",
        "the verifier returned null as the reward `reward`, which is not a number from -1e6 to 1e6",
    ),
    ("flood", "the verifier wrote a line of more than 1 MiB twice on this completion"),
    ("error", "the verifier reported: \"cannot parse\""),
];

/// Completions that are never answered, and the words about them.
const LATE: [(&str, &str); 6] = [
    ("sleep", "the verifier took more than 0.5 s"),
    ("nonsense", "took more than 0.5 s; it wrote \"Traceback: none\", which is not a JSON object"),
    ("silent", "the verifier took more than 0.5 s"),
    ("anonymous", "took more than 0.5 s; it wrote \"{\\\"reward\\\": 1}\", which has no `id`"),
    ("foreign", "the verifier took more than 0.5 s; it sent an answer with another `id`"),
    ("chatter", "the verifier took more than 0.5 s"),
];

#[test]
fn output_of_what_a_verifier_runs_cannot_guess_the_id_of_a_request() {
    let folder = Scratch::new();
    let verifier = Verifier::start(patient_options(&script(&folder, OBEDIENT), 1)).unwrap();
    for _ in 0..3 {
        assert!(has_reward(&verifier, "guess", Ok(5.0)));
    }
}

#[test]
fn a_failure_on_one_completion_does_not_affect_the_others() {
    let folder = Scratch::new();
    let good = ["1", "0.5", "twice", "loud", "late", "-3"];
    let rewards = [1.0, 0.5, 2.0, 3.0, 4.0, -3.0];
    let mut texts = vec!["7"];
    let mut expected = vec![Ok(7.0)];
    for (i, (bad, said)) in BAD.iter().enumerate() {
        texts.extend([bad, good[i % good.len()]]);
        expected.extend([Err(*said), Ok(rewards[i % good.len()])]);
    }
    let reversed: Vec<&str> = texts.iter().rev().copied().collect();
    let command = script(&folder, OBEDIENT);
    let obedient = |workers: usize| Verifier::start(patient_options(&command, workers)).unwrap();
    let forward = verify(&obedient(1), &texts);
    let mut backward = verify(&obedient(4), &reversed);
    backward.reverse();
    for ((text, rewards), expected) in texts.iter().zip(&forward).zip(&expected) {
        match expected {
            Ok(reward) => assert_eq!(*rewards, Rewards::new(vec![*reward]), "{text}"),
            Err(said) => {
                let problem = rewards.problem.as_ref().unwrap();
                assert!(problem.contains(said), "{text}: {problem}");
                assert!(!problem.contains('\n') && rewards.values == [0.0], "{problem}");
            }
        }
    }
    // Results do not depend on the order or the number of processes.
    let plain = |rewards: &Rewards| (rewards.values.clone(), rewards.problem.is_some());
    assert!(forward.iter().map(plain).eq(backward.iter().map(plain)), "{backward:#?}");
}

#[test]
fn an_unanswered_completion_is_given_up_and_the_next_is_scored() {
    let folder = Scratch::new();
    let command = script(&folder, OBEDIENT);
    let verifier =
        Verifier::start(VerifierOptions { timeout_seconds: 0.5, ..patient_options(&command, 1) })
            .unwrap();
    assert!(has_reward(&verifier, "7", Ok(7.0)), "time to start is given to the first");
    for (i, (bad, said)) in LATE.iter().enumerate() {
        wait_for(bad, || has_reward(&verifier, bad, Err(said)));
        let reward = i as f64 - 2.5;
        wait_for("the next", || has_reward(&verifier, &reward.to_string(), Ok(reward)));
    }
}

#[test]
fn the_example_returns_named_rewards_in_order() {
    let sample = concat!("python3 ", env!("CARGO_MANIFEST_DIR"), "/examples/verifier.py");
    let options = patient_options(sample, 3).with_parts("exact=0.8, brief=0.2").unwrap();
    assert_eq!(options.parts, [RewardPart::new("exact", 0.8), RewardPart::new("brief", 0.2)]);
    let verifier = Verifier::start(options.clone()).unwrap();
    let prompts: Vec<Prompt> = (0..300)
        .map(|i| Prompt { fields: Map::from_iter([("solution".into(), json!(i))]), ..prompt("n") })
        .collect();
    let texts: Vec<String> =
        (0..300).map(|i| if i % 3 == 0 { "no".into() } else { i.to_string() }).collect();
    let completions: Vec<_> =
        prompts.iter().zip(&texts).map(|(prompt, text)| Completion::new(prompt, text)).collect();
    for (i, rewards) in verifier.verify(&completions).unwrap().iter().enumerate() {
        let exact = f64::from(u8::from(i % 3 != 0));
        assert_eq!(*rewards, Rewards::new(vec![exact, 1.0]));
        assert_eq!(rewards.score(&options.parts), exact * 0.8 + 0.2);
    }
    assert_eq!(verifier.verify(&[]).unwrap(), []);
}

#[test]
fn a_process_receives_one_request_at_a_time() {
    let folder = Scratch::new();
    let command = script(
        &folder,
        r#"
import json, select, sys, time
while line := sys.stdin.readline():
    time.sleep(0.002)
    more = select.select([sys.stdin], [], [], 0)[0]
    print(json.dumps({"id": json.loads(line)["id"], "reward": len(more)}), flush=True)
"#,
    );
    let verifier = Verifier::start(patient_options(&command, 2));
    let rewards = verify(&verifier.unwrap(), &["1"; 100]);
    assert!(rewards.iter().all(|rewards| *rewards == Rewards::new(vec![0.0])), "{rewards:?}");
}

#[test]
fn start_up_time_does_not_count_towards_the_time_limit() {
    let folder = Scratch::new();
    let slow = OBEDIENT.replacen("for line", "time.sleep(1)\nfor line", 1);
    let options = patient_options(&script(&folder, &slow), 1);
    let verifier = Verifier::start(VerifierOptions { timeout_seconds: 0.5, ..options }).unwrap();
    assert!(has_reward(&verifier, "1", Ok(1.0)));
    for (bad, good) in [("die", 2.0), ("sleep", 3.0)] {
        assert!(verify(&verifier, &[bad])[0].problem.is_some());
        // The next process takes a second to start.
        wait_for("an answer", || has_reward(&verifier, &good.to_string(), Ok(good)));
    }
}

#[test]
fn an_ended_process_is_replaced() {
    let folder = Scratch::new();
    let marker = folder.join("marker");
    let once = format!(
        "import os\nif not os.path.exists({marker:?}):\n    open({marker:?}, 'w')\n    os._exit(9)\n"
    );
    let text = OBEDIENT.replacen(
        "    words =",
        "    if asked['completion'] == '5': CHANCE\n    words =",
        1,
    );
    let chance = format!("exec({once:?})");
    let command = script(&folder, &text.replacen("CHANCE", &chance, 1));
    let verifier = Verifier::start(patient_options(&command, 1)).unwrap();
    let rewards = verify(&verifier, &["4", "5", "6"]);
    assert!(marker.exists());
    assert_eq!(rewards, [4.0, 5.0, 6.0].map(|reward| Rewards::new(vec![reward])));
}

#[test]
fn a_silent_command_is_an_error() {
    let error = |command: &str| -> String {
        let text = "1".to_string();
        let prompt = prompt("?");
        let completions = vec![Completion::new(&prompt, &text); 100];
        let verifier = Verifier::start(patient_options(command, 0));
        match verifier.and_then(|verifier| verifier.verify(&completions)).unwrap_err() {
            TaskError::Verifier(message) => message,
            other => panic!("{other:?}"),
        }
    };
    let said = error("no-such-command-at-all");
    assert!(
        said.starts_with("the verifier `no-such-command-at-all` ended (exit status: 127: sh: "),
        "{said}"
    );
    assert!(said.ends_with("not found); run it by hand to see why"), "{said}");
    let said = error("python3 -c 'import no_such_module'");
    assert!(said.contains("No module named 'no_such_module'"), "{said}");
    // A command that starts, but ends on every request.
    let said = error("read line; echo no more >&2; exit 4");
    assert!(said.contains("ended (exit status: 4: no more); run it by hand"), "{said}");
    for (options, said) in [
        (
            VerifierOptions { timeout_seconds: 0.0, ..VerifierOptions::new("cat") },
            "the verifier's timeout is 0 s",
        ),
        (
            VerifierOptions { timeout_seconds: f64::NAN, ..VerifierOptions::new("cat") },
            "timeout is NaN s",
        ),
        (
            VerifierOptions { parts: vec![], ..VerifierOptions::new("cat") },
            "at least one reward part",
        ),
    ] {
        let error = Verifier::start(options).err().unwrap().to_string();
        assert!(error.contains(said), "{error}");
    }
    let parts = |text: &str| VerifierOptions::new("cat").with_parts(text).unwrap_err().to_string();
    assert!(parts("a=0,b=-1").contains("leave no part with a positive weight"));
    assert_eq!(parts("a=x"), "`a=x` is not a reward part; write name=weight");
    assert_eq!(parts("a,a"), "the reward part `a` is listed twice");
    assert_eq!(parts("a=inf"), "`a=inf` is not a reward part; write name=weight");
}

#[cfg(target_os = "linux")]
#[test]
fn dropping_a_verifier_kills_its_processes() {
    let folder = Scratch::new();
    // Each process has a child, and neither exits at the end of its input.
    let command = script(
        &folder,
        r#"
import json, os, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"])
for line in sys.stdin:
    print(json.dumps({"id": json.loads(line)["id"], "rewards": {"self": os.getpid(), "child": child.pid}}), flush=True)
time.sleep(1000)
"#,
    );
    let options = patient_options(&command, 2).with_parts("self,child").unwrap();
    let verifier = Verifier::start(options).unwrap();
    let mut pids: Vec<u64> = verify(&verifier, &["1"; 20])
        .iter()
        .flat_map(|r| r.values.clone())
        .map(|pid| pid as u64)
        .collect();
    pids.sort_unstable();
    pids.dedup();
    assert!(!pids.is_empty());
    let runs = |pid: &u64| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    };
    assert!(pids.iter().all(runs));
    drop(verifier);
    wait_for("the end of all processes", || !pids.iter().any(runs));
}
