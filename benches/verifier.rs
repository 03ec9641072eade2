//! OCaml completions verified per second.
//!
//! `cargo bench --bench verifier`

#[cfg(unix)]
fn main() {
    use grove::task::ocaml::{Ocaml, OcamlSettings};
    use grove::task::{Completion, Split, Task};
    use std::time::Instant;

    const ROUNDS: u64 = 8;
    for workers in [1, 0] {
        let settings = OcamlSettings { workers, ..OcamlSettings::default() };
        let task = match Ocaml::open(&settings) {
            Ok(task) => task,
            Err(error) => return eprintln!("{error}"),
        };
        let num = task.num_prompts(Split::Test).unwrap_or_default() * ROUNDS;
        let prompts: Vec<_> = (0..num).filter_map(|i| task.prompt(Split::Test, i).ok()).collect();
        // Three of four are right and one has a type error, as from a partly trained model.
        let texts: Vec<String> = (0..prompts.len())
            .map(|i| match i % 4 {
                3 => "(nothing, 1)".to_string(),
                _ => task.solution(&prompts[i]).unwrap_or_default(),
            })
            .collect();
        let completions: Vec<_> = prompts
            .iter()
            .zip(&texts)
            .map(|(prompt, text)| Completion::new(prompt, text))
            .collect();
        // The first pass computes the expected values.
        task.verify(&completions[..num.div_ceil(ROUNDS) as usize]).expect("a compiler");
        let start = Instant::now();
        let rewards = task.verify(&completions).expect("a compiler");
        let rate = completions.len() as f64 / start.elapsed().as_secs_f64();
        let right =
            rewards.iter().filter(|rewards| rewards.score(task.reward_parts()) > 0.99).count();
        println!(
            "{}: {rate:.0} completions/s, {right} of {} right",
            if workers == 1 { "one at a time" } else { "on all cores" },
            completions.len()
        );
    }
}

#[cfg(not(unix))]
fn main() {}
