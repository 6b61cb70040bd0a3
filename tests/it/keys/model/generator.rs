//! Chooses what happens next. The choice looks at the model, so that most commands are about keys that work.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::model::{Action, Entry, Hour, Key, Model, Origin};

/// The names of keys. Most histories are about one of them.
const NAMES: [&str; 3] = ["till", "till", "shop"];

/// How many keys are kept elsewhere.
const DIGESTS: u8 = 6;

pub(super) fn next_action(random: &mut StdRng, model: &Model) -> Action {
    if model.keys.is_empty() {
        return if random.random_bool(0.5) { create(random) } else { apply(random, model) };
    }
    let overlap = *[0, 1, 24, 24, 72].choose(random).unwrap();
    match random.random_range(0..20) {
        0 => create(random),
        1..6 => {
            let expires = if random.random_bool(0.2) { Some(hours(random)) } else { None };
            Action::Rotate { key: key(random, model), overlap, expires }
        }
        6..8 => Action::RotateIn120 { key: key(random, model), overlap },
        8..11 => Action::Revoke(key(random, model)),
        11..17 => apply(random, model),
        _ => Action::Wait(hours(random)),
    }
}

fn create(random: &mut StdRng) -> Action {
    let expires = if random.random_bool(0.4) { Some(hours(random)) } else { None };
    Action::Create { name: NAMES.choose(random).unwrap(), expires }
}

fn apply(random: &mut StdRng, model: &Model) -> Action {
    let mut entries = vec![entry(random, model)];
    if random.random_bool(0.2) {
        let other = entry(random, model);
        if other.name != entries[0].name && (other.digest.is_none() || other.digest != entries[0].digest) {
            entries.push(other);
        }
    }
    let overlap = *[0, 1, 24, 24, 72].choose(random).unwrap();
    Action::Apply { entries, prune: random.random_bool(0.4), overlap }
}

/// Mostly with a new digest, or with that of a key that exists.
fn entry(random: &mut StdRng, model: &Model) -> Entry {
    let used: Vec<u8> = model.keys.iter().filter_map(|key| key.digest).collect();
    let unused = (1..=DIGESTS).find(|digest| !used.contains(digest));
    let digest = match random.random_range(0..10) {
        0..3 => None,
        3..7 => unused,
        7..9 => used.last().copied().or(unused),
        _ => used.choose(random).copied(),
    };
    Entry {
        name: NAMES.choose(random).unwrap(),
        digest,
        is_narrow: random.random_bool(0.3),
        expires: if random.random_bool(0.4) {
            Some(model.now + *[-1, 1, 24, 48].choose(random).unwrap())
        } else {
            None
        },
    }
}

fn hours(random: &mut StdRng) -> Hour {
    *[1, 23, 24, 48].choose(random).unwrap()
}

/// One of the keys, mostly the newest, which may have been lost, or one that works.
fn key(random: &mut StdRng, model: &Model) -> Origin {
    if random.random_bool(0.4) {
        return model.keys.last().unwrap().origin;
    }
    let live: Vec<&Key> = model.keys.iter().filter(|key| model.is_live(key)).collect();
    let among_live = !live.is_empty() && random.random_bool(0.8);
    if among_live { live.choose(random).unwrap().origin } else { model.keys.choose(random).unwrap().origin }
}
