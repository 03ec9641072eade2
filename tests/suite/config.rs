//! Settings: a run gets the values of its file and command line, and refuses those out of range.

use grove::env::{Catch, Fruit, FruitObservation};
use grove::schema::Settings;
use grove::settings::{
    LanguageConfig, LossConfig, LossType, OptimizerConfig, Precision, TINY, TrainConfig, overlay,
};
use grove::text::{Bf16Instructions, fastest_precision};
use grove::trainer::text::join_language_settings;
use grove::trainer::{config_to_toml, new_settings};
use toml::Table;

/// The bounds of the ratio below and above after a file, then a command line.
fn bounds(file: &str, command_line: &[&str]) -> (f64, f64) {
    let mut table = overlay::to_table(&TrainConfig::for_game("fruit"));
    overlay::lay_over(&mut table, overlay::parse("the file", file).unwrap()).unwrap();
    overlay::apply_assignments(&mut table, command_line).unwrap();
    let config: TrainConfig = overlay::from_table(table).unwrap();
    (config.loss.clip_eps_low, config.loss.clip_eps_high)
}

#[test]
fn epsilon_is_both_bounds_unless_epsilon_high_is_given() {
    let cases: [(&str, &[&str], (f64, f64)); 12] = [
        ("", &[], (0.2, 0.2)),
        ("", &["epsilon=0.1"], (0.1, 0.1)),
        ("", &["loss.epsilon=0.1"], (0.1, 0.1)),
        ("", &["epsilon=0.1", "epsilon_high=0.3"], (0.1, 0.3)),
        ("", &["epsilon_high=0.3", "epsilon=0.1"], (0.1, 0.3)),
        ("", &["clip_eps_high=0.3", "loss.epsilon=0.1"], (0.1, 0.3)),
        ("", &["epsilon_high=0.3"], (0.2, 0.3)),
        ("", &["clip_eps_low=0.1"], (0.1, 0.2)),
        ("epsilon = 0.1", &[], (0.1, 0.1)),
        ("[loss]\nepsilon = 0.1\nepsilon_high = 0.28", &[], (0.1, 0.28)),
        ("epsilon_high = 0.28\nepsilon = 0.1", &["learning_rate=1e-3"], (0.1, 0.28)),
        // The command line goes before the file.
        ("clip_eps_low = 0.3\nclip_eps_high = 0.3", &["epsilon=0.1"], (0.1, 0.1)),
    ];
    for (file, command_line, expected) in cases {
        assert_eq!(bounds(file, command_line), expected, "{file:?}, {command_line:?}");
    }
}

/// The settings of the fruit catcher after `key=value`s, or what is said to them.
fn settings(command_line: &[&str]) -> Result<toml::Table, String> {
    let defaults = config_to_toml(&Fruit::default(), &TrainConfig::for_game("fruit"));
    let mut table = overlay::parse("the defaults", &defaults).unwrap();
    overlay::apply_assignments(&mut table, command_line).map_err(|error| error.to_string())?;
    Ok(table)
}

#[test]
fn words_of_other_trainers_never_mean_something_else() {
    // The game's, by its whole name; as TRL means it, it would be a length of the run.
    let steps = settings(&["fruit.max_steps=7"]).unwrap();
    assert_eq!(steps["fruit"]["max_steps"].as_integer(), Some(7));
    let said = settings(&["max_steps=7"]).unwrap_err();
    let words = "the setting `max_steps` is ambiguous; write one of: iterations, fruit.max_steps";
    assert_eq!(said, words);
    for (value, ours) in [("false", "none"), ("true", "group"), ("batch", "batch")] {
        let table = settings(&[&format!("scale_rewards={value}")]).unwrap();
        assert_eq!(table["advantage"]["scale_rewards"].as_str(), Some(ours));
    }
}

#[test]
fn large_pretrained_models_have_the_fastest_precision_and_small_ones_f32() {
    let pretrained = |size| LanguageConfig::for_pretrained("m", size, Precision::Bf16).precision;
    let for_sft = |size| LanguageConfig::for_sft("m", size, Precision::Bf16).precision;
    assert_eq!([pretrained(1 << 20), pretrained(135 << 20)], [Precision::F32, Precision::Bf16]);
    assert_eq!(for_sft(None), Precision::F32, "`tiny`");
    assert_eq!(for_sft(Some(135 << 20)), Precision::Bf16);
    assert_eq!(LanguageConfig::for_task("tiny", 0).precision, Precision::F32);
    // Other devices than the CPU keep f32.
    assert_eq!(fastest_precision("cuda:0"), Precision::F32);
    let has_tiles = Bf16Instructions::best() == Bf16Instructions::Amx;
    assert_eq!(fastest_precision("cpu") == Precision::Bf16, has_tiles);
}

#[test]
fn the_game_of_a_run_is_no_setting() {
    assert!(settings(&["env=fruit"]).is_ok());
    let said = settings(&["env=catch"]).unwrap_err();
    assert_eq!(said, "`env` is not a setting; name the game itself, as in `grove train catch`");
}

#[test]
fn a_text_run_takes_the_learning_rate_of_its_optimizer() {
    let config = LanguageConfig::for_task("tiny", 100);
    let mut table = join_language_settings("sort", &Table::new(), &config);
    for (name, rate) in [("learning_rate", 0.5), ("lr", 0.25), ("optimizer.lr", 0.125)] {
        overlay::apply_assignments(&mut table, &[format!("{name}={rate}")]).unwrap();
        assert_eq!(table["optimizer"]["learning_rate"].as_float(), Some(rate));
        assert_ne!(table["fit"]["learning_rate"].as_float(), Some(rate));
    }
    let file = overlay::parse("a file", "lr = 0.75").unwrap();
    overlay::lay_over(&mut table, file).unwrap();
    for twice in ["lr = 1.0\nlearning_rate = 0.5", "lr = 1.0\n[optimizer]\nlearning_rate = 0.5"] {
        let file = overlay::parse("a file", twice).unwrap();
        let error = overlay::lay_over(&mut table, file).unwrap_err().to_string();
        assert_eq!(error, "`optimizer.learning_rate` is given twice, under two names");
    }
    assert_eq!(table["optimizer"]["learning_rate"].as_float(), Some(0.75));
}

#[test]
fn an_unknown_setting_gets_a_likely_name_or_none() {
    for (key, likely) in [
        ("ent_coef", Some("loss.entropy_coef")),
        ("lerning_rate", Some("optimizer.learning_rate")),
        ("optimiser.learning_rate", Some("optimizer.learning_rate")),
        ("sede", Some("seed")),
        ("fruit.widht", Some("fruit.width")),
        ("nonsense.a", None),
        ("a", None),
        ("xy", None),
        ("steps_per_generation", Some("update.num_minibatches")),
        ("per_device_train_batch_size", Some("rollout.num_groups")),
        ("clip_coef", Some("loss.epsilon")),
        ("clip_range", Some("loss.epsilon")),
        ("net_arch", Some("policy.hidden")),
        ("minibatch_size", Some("update.num_minibatches")),
        ("importance_sampling_level", Some("loss.loss_type")),
    ] {
        let likely = likely.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
        let said = settings(&[&format!("{key}=1")]).unwrap_err();
        assert_eq!(said, format!("unknown setting `{key}`{likely}"));
    }
    for key in ["vf_coef", "gae_lambda"] {
        let said = settings(&[&format!("{key}=0.5")]).unwrap_err();
        assert!(said.starts_with(&format!("unknown setting `{key}`: GRPO has no value")), "{said}");
    }
    let said = settings(&["temperature=1"]).unwrap_err();
    assert_eq!(said, "`temperature` is a setting of language models: this run trains fruit");
    let said = settings(&["batch_size=64"]).unwrap_err();
    assert!(said.ends_with("write one of: update.num_minibatches, data.batch_size"), "{said}");
    let said = refused_for_texts("per_device_train_batch_size=8");
    assert!(said.ends_with("did you mean `generation.num_prompts`?"), "{said}");
    for given in ["optimizer=adam", "optimizer=1", "optimizer={lr=1}"] {
        let said = settings(&[given]).unwrap_err();
        let words = ": it is a section of settings, such as `optimizer.";
        assert!(said.starts_with("`optimizer` cannot be ") && said.contains(words), "{said}");
    }
    let other = settings(&["catch.rows=1"]).unwrap_err();
    assert_eq!(other, "`catch.rows` is a setting of another game: this run trains fruit");
}

#[test]
fn the_defaults_are_those_of_the_game_as_it_is_set() {
    let settings = |set: &[&str]| {
        let set: Vec<String> = set.iter().map(|s| s.to_string()).collect();
        new_settings::<Fruit>(&Table::new(), &set).unwrap()
    };
    let iterations = |set: &[&str]| settings(set).1.iterations;
    assert_eq!(iterations(&[]), 100);
    assert_eq!(iterations(&["fruit.width=20"]), 100);
    assert_eq!(iterations(&["fruit.width=21"]), 300);
    let (game, config) = settings(&["fruit.observation=positions", "seed=7"]);
    assert_eq!(game.observation, FruitObservation::Positions);
    assert_eq!((config.iterations, config.seed), (600, 7));
    assert_eq!(config.policy.hidden, [128, 128]);
    // A setting given by the user overrides every default.
    assert_eq!(iterations(&["fruit.observation=positions", "iterations=5"]), 5);
}

/// The refusal of the settings of a text run after one `key=value`.
fn refused_for_texts(assignment: &str) -> String {
    let mut table = overlay::to_table(&LanguageConfig::for_model(TINY));
    let changed = overlay::apply_assignments(&mut table, &[assignment]);
    let config = changed.and_then(|()| overlay::from_table::<LanguageConfig>(table));
    match config {
        Ok(config) => config.validate().expect_err(assignment).to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn texts_refuse_numbers_out_of_range_in_a_sentence() {
    for (assignment, words) in [
        ("max_grad_norm=-1", "update.max_grad_norm is -1, but must be 0 or more"),
        (
            "learning_rate=1e300",
            "optimizer.learning_rate is 1e300, but must be 0 or more, at most 3.4e38",
        ),
        ("max_grad_norm=nan", "update.max_grad_norm is NaN, but must be 0 or more"),
        ("adam_epsilon=-1", "optimizer.adam_epsilon is -1, but must be above 0"),
        ("adam_epsilon=0", "optimizer.adam_epsilon is 0, but must be above 0"),
        (
            "adam_epsilon=1e-308",
            "optimizer.adam_epsilon is 1e-308, but must be above 0, at least 1.2e-38",
        ),
        ("iterations=4294967296", "iterations is 4294967296, but must be 1 to 2^32 - 1"),
        ("save_every=4294967296", "checkpoint.save_every is 4294967296, but must be 1 to 2^32 - 1"),
        ("seed=-1", "`seed` cannot be -1: must be a whole number, 0 to 2^63 - 1"),
        ("seed=nan", "`seed` cannot be nan: must be a whole number, 0 to 2^63 - 1"),
        ("slots=3.5", "`generation.slots` cannot be 3.5: must be a whole number, 1 to 65536"),
        ("seed=", "`seed` has no value, but must be a whole number, 0 to 2^63 - 1"),
        ("adam_beta1=1", "optimizer.adam_beta1 is 1, but must be 0 to below 1"),
        ("adam_beta2=-0.1", "optimizer.adam_beta2 is -0.1, but must be 0 to below 1"),
        ("warmup_ratio=5", "optimizer.warmup_ratio is 5, but must be 0 to 1"),
        ("weight_decay=-10", "optimizer.weight_decay is -10, but must be 0 or more"),
        ("optimizer.learning_rate=-1", "optimizer.learning_rate is -1, but must be 0 or more"),
        ("fit.learning_rate=inf", "fit.learning_rate is inf, but must be 0 or more"),
        (
            "dual_clip=0.5",
            "loss.dual_clip is 0.5, but must be 0 (off) or above 1 + clip_eps_high (1.2)",
        ),
        ("clip_eps_low=-5", "loss.clip_eps_low is -5, but must be 0 to 1"),
        ("clip_eps_high=-1", "loss.clip_eps_high is -1, but must be 0 or more"),
        ("kl_coef=-1", "loss.kl_coef is -1, but must be 0 or more"),
        ("entropy_coef=-1", "loss.entropy_coef is -1, but must be 0 or more"),
        (
            "entropy_coef_final=0.1",
            "loss.entropy_coef_final is 0.1, but must be 0 for language models, whose entropy_coef stays as it is",
        ),
        ("sapo_temperature_pos=0", "loss.sapo_temperature_pos is 0, but must be 1e-6 or more"),
        ("sapo_temperature_neg=-2", "loss.sapo_temperature_neg is -2, but must be 1e-6 or more"),
        ("label_smoothing=0.1", "loss.label_smoothing is 0.1, but must be 0 for language models"),
        ("group_size=1", "generation.group_size is 1, but must be 2 to 65536"),
        ("group_size=4294967295", "generation.group_size is 4294967295, but must be 2 to 65536"),
        ("num_prompts=0", "generation.num_prompts is 0, but must be 1 to 2^20"),
        ("num_prompts=4294967295", "generation.num_prompts is 4294967295, but must be 1 to 2^20"),
        (
            "max_new_tokens=4294967295",
            "generation.max_new_tokens is 4294967295, but must be 0 to 2^20",
        ),
        ("slots=4294967295", "generation.slots is 4294967295, but must be 1 to 65536"),
        ("temperature=0", "generation.temperature is 0, but must be 1e-6 or more"),
        ("temperature=1e-38", "generation.temperature is 1e-38, but must be 1e-6 or more"),
        ("top_p=0", "generation.top_p is 0, but must be above 0, at most 1"),
        ("min_p=1", "generation.min_p is 1, but must be 0 to below 1"),
        ("stop=['']", "generation.stop is [\"\"], but must be non-empty strings"),
        (
            "num_minibatches=33",
            "update.num_minibatches is 33, but must be 1 to generation.num_prompts (32)",
        ),
        ("update_epochs=4294967295", "update.update_epochs is 4294967295, but must be 1 to 65536"),
        ("num_shards=4097", "update.num_shards is 4097, but must be 0 to 4096"),
        (
            "gradient_accumulation_steps=-1",
            "`update.gradient_accumulation_steps` cannot be -1: must be a whole number, 1",
        ),
        (
            "gradient_accumulation_steps=2",
            "update.gradient_accumulation_steps is 2, but must be 1 for language models, whose gradient is \
             accumulated group by group",
        ),
        ("lora.r=4294967295", "lora.r is 4294967295, but must be 0 to 8192"),
        ("lora_alpha=-1", "lora.lora_alpha is -1, but must be above 0"),
        ("hidden_size=4294967296", "model.hidden_size is 4294967296, but must be 1 to 8192"),
        ("num_heads=3", "model.hidden_size is 128, but must be a multiple of twice num_heads (3)"),
        ("checkpoint.keep=0", "checkpoint.keep is 0, but must be 1 to 2^30"),
        ("eval_every=0", "checkpoint.eval_every is 0, but must be 1 to 2^32 - 1"),
        (
            "lr_scheduler_type=cosin",
            "`optimizer.lr_scheduler_type`: `cosin` must be one of: constant, linear, cosine",
        ),
        ("loss_type=ppo", "`loss.loss_type`: `ppo` must be one of: grpo, dr_grpo, dapo,"),
        ("baseline=critic", "`reward.baseline`: `critic` must be one of: group, prefix"),
        ("precision=f8", "`precision`: `f8` must be one of: f32, tf32, f16, bf16"),
    ] {
        let said = refused_for_texts(assignment);
        assert!(said.starts_with(words), "{assignment}: {said}");
    }
}

#[test]
fn games_refuse_numbers_below_the_range_that_they_narrow() {
    for (assignment, words) in [
        (
            "eval_episodes=-1",
            "`checkpoint.eval_episodes` cannot be -1: must be a whole number, 1 to 2^24",
        ),
        ("catch.rows=-1", "catch.rows is -1, but must be 2 to 256"),
        ("catch.rows=-1.5", "`catch.rows` cannot be -1.5: must be a whole number"),
    ] {
        let error = new_settings::<Catch>(&Table::new(), &[assignment.to_string()]).unwrap_err();
        assert_eq!(error.to_string(), words, "{assignment}");
    }
}

#[test]
fn demonstrations_have_no_ratio_that_corrects_the_divergence() {
    let loss = LossConfig {
        loss_type: LossType::Nll,
        kl_coef: 0.1,
        use_bias_correction_kl: true,
        ..LossConfig::default()
    };
    let without = LossConfig { kl_coef: 0.0, ..loss.clone() };
    let mut game = TrainConfig { loss: loss.clone(), ..TrainConfig::default() };
    assert!(game.validate().is_ok(), "games that are played have a behaviour policy");
    game.data.path = "somewhere".to_string();
    let mut texts = LanguageConfig::for_sft(TINY, None, Precision::F32);
    texts.loss = loss;
    let words = "loss.use_bias_correction_kl is true, but must be false where ";
    for said in [game.validate(), texts.validate()].map(|found| found.unwrap_err().to_string()) {
        assert!(said.starts_with(words) && said.ends_with("no behaviour policy"), "{said}");
    }
    (game.loss, texts.loss) = (without.clone(), without);
    assert!(game.validate().is_ok() && texts.validate().is_ok());
}

#[test]
fn sft_alone_refuses_settings_that_only_rollouts_have() {
    for (section, key, value) in [("loss", "entropy_coef", 0.5), ("update", "target_kl", 0.02)] {
        let assignment = [format!("{section}.{key}={value}")];
        let validated = |config: LanguageConfig| {
            let mut table = overlay::to_table(&config);
            overlay::apply_assignments(&mut table, &assignment).unwrap();
            overlay::from_table::<LanguageConfig>(table).unwrap().validate()
        };
        assert!(validated(LanguageConfig::for_model(TINY)).is_ok(), "GRPO after SFT has {key}");
        let alone = validated(LanguageConfig::for_sft(TINY, None, Precision::F32));
        let said = alone.unwrap_err().to_string();
        let words = format!("{section}.{key} is {value}, but must be 0 where the loss is nll: ");
        assert!(said.starts_with(&words), "{said}");
    }
}

#[test]
fn sections_check_themselves() {
    let mut optimizer = OptimizerConfig { adam_beta1: 1.0, ..OptimizerConfig::default() };
    let error = optimizer.validate().unwrap_err();
    assert_eq!(error.to_string(), "adam_beta1 is 1, but must be 0 to below 1");
    optimizer.adam_beta1 = 0.9;
    // A rate of 0 leaves the weights alone, for games as for texts.
    optimizer.learning_rate = 0.0;
    assert_eq!(optimizer.validate(), Ok(()));
}

#[test]
fn settings_of_older_versions_take_defaults_for_those_that_are_new() {
    let mut table = overlay::to_table(&TrainConfig::for_game("catch"));
    let new = [("update", "num_shards"), ("loss", "sapo_temperature_neg"), ("policy", "kind")];
    for (section, key) in new {
        assert!(table[section].as_table_mut().unwrap().remove(key).is_some());
    }
    table.remove("data");
    let config: TrainConfig = overlay::from_table(table).unwrap();
    assert_eq!(config, TrainConfig::for_game("catch"));
}
