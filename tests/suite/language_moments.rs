//! The optimizer's moments of language models in less memory: what is saved, restored and learnt.

use crate::language_training::{config, trainer};
use crate::shared::training::section;
use crate::trainers::{iterate, snapshot};
use grove::checkpoint::Checkpoint;
use grove::settings::MomentPrecision;
use grove::trainer::text::LanguageConfig;

/// The settings of the small model with moments in a precision.
fn with(moments: MomentPrecision) -> LanguageConfig {
    let mut config = config();
    config.optimizer.moments = moments;
    config
}

/// The saved moments.
fn saved_moments(checkpoint: &Checkpoint) -> [Vec<u8>; 2] {
    ["first_moment.safetensors", "second_moment.safetensors"]
        .map(|name| section(checkpoint, name).to_vec())
}

#[test]
fn moments_in_less_space_learn_nearly_the_same() {
    let run = |moments| {
        let config = with(moments);
        let mut trainer = trainer(&config);
        let first = trainer.model().params.values().to_vec();
        iterate(&mut trainer, config.iterations);
        let sizes = saved_moments(&snapshot(&trainer)).map(|bytes| {
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            bytes.len() - 8 - header as usize
        });
        (first, trainer.model().params.values().to_vec(), sizes)
    };
    let (first, whole, large) = run(MomentPrecision::F32);
    let distance = |a: &[f32], b: &[f32]| {
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
    };
    let change = distance(&whole, &first);
    for (moments, percent, most) in
        [(MomentPrecision::Bf16, 50, 0.05), (MomentPrecision::EightBit, 28, 0.5)]
    {
        let (_, learnt, sizes): (_, Vec<f32>, [usize; 2]) = run(moments);
        for (large, small) in large.into_iter().zip(sizes) {
            assert!(small <= large * percent / 100, "{small} of {large} bytes");
        }
        let off = distance(&learnt, &whole);
        assert!(off > 0.0 && off < most * change, "{moments}: {off} of {change}");
    }
}

#[test]
fn a_checkpoint_is_restored_with_moments_in_another_precision() {
    for &from in MomentPrecision::ALL {
        let mut first = trainer(&with(from));
        iterate(&mut first, 1);
        let saved = snapshot(&first);
        for &into in MomentPrecision::ALL.iter().filter(|into| **into != from) {
            let mut second = trainer(&with(into)).with_checkpoint(&saved).unwrap();
            let converted = snapshot(&second);
            assert!(saved_moments(&converted) != saved_moments(&saved), "{from} to {into}");
            assert!(
                snapshot(&trainer(&with(into)).with_checkpoint(&converted).unwrap()) == converted
            );
            if into == MomentPrecision::F32 {
                // Nothing is lost: the way back ends with the same bytes.
                let back = snapshot(&trainer(&with(from)).with_checkpoint(&converted).unwrap());
                assert!(saved_moments(&back) == saved_moments(&saved), "{from}");
            }
            assert!(iterate(&mut second, 1)[0].grad_norm.is_finite());
        }
    }
}

#[test]
fn a_restored_run_saves_what_it_was_restored_from() {
    for &moments in MomentPrecision::ALL {
        let config = with(moments);
        let mut first = trainer(&config);
        // The optimizer has taken no step before the first iteration.
        for _ in 0..2 {
            let saved = snapshot(&first);
            assert!(
                snapshot(&trainer(&config).with_checkpoint(&saved).unwrap()) == saved,
                "{moments}"
            );
            iterate(&mut first, 1);
        }
    }
}
