//! Names that other trainers give to settings, without an exact counterpart here.

/// Settings of other trainers' value functions, which GRPO lacks.
pub const VALUE_FUNCTION_SETTINGS: [&str; 5] =
    ["vf_coef", "gae_lambda", "clip_vloss", "clip_range_vf", "vf_clip_coef"];

/// Names of other trainers, and the nearest setting, of games and of texts.
pub const NEAREST_SETTINGS: [(&str, &str); 39] = [
    ("max_steps", "iterations"),
    ("num_train_epochs", "iterations"),
    ("total_timesteps", "iterations"),
    ("n_timesteps", "iterations"),
    ("warmup_steps", "optimizer.warmup_ratio"),
    ("lr_schedule", "optimizer.lr_scheduler_type"),
    ("anneal_lr", "optimizer.lr_scheduler_type"),
    ("num_envs", "rollout.num_groups"),
    ("n_envs", "rollout.num_groups"),
    ("batch_size", "generation.num_prompts"),
    // A number of minibatches, not their size.
    ("batch_size", "update.num_minibatches"),
    ("minibatch_size", "update.num_minibatches"),
    ("per_device_train_batch_size", "rollout.num_groups"),
    ("per_device_train_batch_size", "generation.num_prompts"),
    ("generation_batch_size", "rollout.num_groups"),
    ("generation_batch_size", "generation.num_prompts"),
    // TRL counts those of all passes, and divides by its `gradient_accumulation_steps`.
    ("steps_per_generation", "update.num_minibatches"),
    ("n_steps", "rollout.num_steps"),
    ("bptt_horizon", "rollout.num_steps"),
    ("horizon", "rollout.num_steps"),
    ("total_agents", "rollout.num_groups"),
    ("n_epochs", "update.update_epochs"),
    ("clip_range", "loss.epsilon"),
    ("clip_coef", "loss.epsilon"),
    ("ent_coef", "loss.entropy_coef"),
    ("norm_adv", "advantage.scale_rewards"),
    ("normalize_advantage", "advantage.scale_rewards"),
    ("net_arch", "policy.hidden"),
    ("save_steps", "checkpoint.save_every"),
    ("save_freq", "checkpoint.save_every"),
    ("save_total_limit", "checkpoint.keep"),
    ("eval_steps", "checkpoint.eval_every"),
    ("eval_freq", "checkpoint.eval_every"),
    ("n_eval_episodes", "checkpoint.eval_episodes"),
    // `gspo` is the loss of ratios of sequences.
    ("importance_sampling_level", "loss.loss_type"),
    ("bf16", "precision"),
    ("fp16", "precision"),
    ("dtype", "precision"),
    ("torch_dtype", "precision"),
];
