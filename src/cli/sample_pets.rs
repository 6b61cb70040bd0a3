//! Believable animals, for demonstrations and trials. They are made from the words below, by dice that are passed in.
//!
//! The same throws make the same animals. Another version of the program may have other words, and so other animals.

use crate::domain::pet::{CategoryId, NewPet, PetName, PetNameError, PetStatus};

/// What a shop sells: of each category, how many in a hundred animals, and its breeds.
#[rustfmt::skip]
const KINDS: [(i64, usize, &[&str]); 8] = [
    (1, 28, &[
        "beagle", "collie", "corgi", "dachshund", "greyhound", "pointer", "pug", "spaniel", "terrier",
        "whippet",
    ]),
    (2, 26, &[
        "Abyssinian", "Birman", "Burmese", "Manx", "Persian", "Siamese", "Sphynx", "tabby", "tortoiseshell",
    ]),
    (3, 11, &["Angora rabbit", "Dutch rabbit", "Harlequin rabbit", "lop", "Rex rabbit"]),
    (4, 9, &["Abyssinian guinea pig", "Peruvian guinea pig", "Teddy guinea pig", "Texel guinea pig"]),
    (5, 8, &["dwarf hamster", "golden hamster", "gerbil", "chinchilla", "fancy mouse"]),
    (6, 9, &["budgerigar", "canary", "cockatiel", "lovebird", "zebra finch"]),
    (7, 6, &["betta", "comet goldfish", "fantail goldfish", "guppy", "koi"]),
    (8, 3, &["corn snake", "crested gecko", "Hermann's tortoise", "leopard gecko"]),
];

#[rustfmt::skip]
const GIVEN_NAMES: [&str; 96] = [
    "Acorn", "Alfie", "Apollo", "Archie", "Aster", "Bailey", "Basil", "Beans", "Bella", "Benji", "Biscuit",
    "Blue", "Bramble", "Bruno", "Buttons", "Caramel", "Charlie", "Chester", "Clover", "Cocoa", "Coral",
    "Cosmo", "Daisy", "Dexter", "Digby", "Dusty", "Echo", "Elsie", "Ember", "Fern", "Fidget", "Figaro",
    "Finn", "Flint", "Freya", "Ginger", "Gizmo", "Gus", "Hazel", "Honey", "Hugo", "Indigo", "Iris", "Ivy",
    "Jasper", "Juniper", "Kiki", "Lola", "Lucky", "Luna", "Mabel", "Maple", "Marble", "Marmalade", "Midge",
    "Milo", "Misty", "Moss", "Muffin", "Nala", "Nettle", "Nutmeg", "Olive", "Oscar", "Otis", "Patch",
    "Peanut", "Pepper", "Pickle", "Pip", "Poppy", "Quill", "Rosie", "Rufus", "Rusty", "Sage", "Scout",
    "Shadow", "Skye", "Smudge", "Socks", "Sorrel", "Sprout", "Stella", "Tansy", "Teasel", "Thistle",
    "Tilly", "Toffee", "Truffle", "Tulip", "Waffles", "Whisky", "Willow", "Ziggy", "Zoe",
];

const TITLES: [&str; 10] =
    ["Captain", "Colonel", "Doctor", "Duchess", "Lady", "Little", "Lord", "Old", "Professor", "Sir"];

/// Of a hundred animals, how many are of each status; some have none.
const STATUSES: [(Option<PetStatus>, usize); 4] =
    [(Some(PetStatus::Available), 62), (Some(PetStatus::Sold), 25), (Some(PetStatus::Pending), 9), (None, 4)];

/// The next animal. `below` is a die: it answers with a number from 0 up to, and without, the one it is given.
///
/// Most have a plain name, some a title or a breed: Pepper, Captain Pepper, Pepper the whippet.
pub(super) fn pet(mut below: impl FnMut(usize) -> usize) -> Result<NewPet, PetNameError> {
    let (category, breeds) =
        weighted(KINDS.map(|(category, share, breeds)| ((category, breeds), share)), &mut below);
    let given = one_of(&GIVEN_NAMES, &mut below);
    let name = match below(10) {
        0..6 => given.to_owned(),
        6..9 => format!("{given} the {}", one_of(breeds, &mut below)),
        _ => format!("{} {given}", one_of(&TITLES, &mut below)),
    };
    let status = weighted(STATUSES, &mut below);
    Ok(NewPet { name: PetName::try_from(name)?, category_id: CategoryId(category), status })
}

fn one_of<'a>(words: &[&'a str], below: &mut impl FnMut(usize) -> usize) -> &'a str {
    words[below(words.len())]
}

/// One of the choices, each as often as its share of a hundred.
fn weighted<T: Copy, const N: usize>(choices: [(T, usize); N], below: &mut impl FnMut(usize) -> usize) -> T {
    let mut place = below(100);
    for (choice, share) in choices {
        if place < share {
            return choice;
        }
        place -= share;
    }
    choices[0].0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Dice that are good enough here: the high bits of a linear congruential generator.
    fn dice(mut state: u64) -> impl FnMut(usize) -> usize {
        move |sides| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % sides
        }
    }

    fn pets(seed: u64, count: usize) -> Vec<NewPet> {
        let mut dice = dice(seed);
        (0..count).map(|_| pet(&mut dice).unwrap()).collect()
    }

    #[test]
    fn the_shares_are_of_a_hundred() {
        assert_eq!(KINDS.iter().map(|(_, share, _)| share).sum::<usize>(), 100);
        assert_eq!(STATUSES.iter().map(|(_, share)| share).sum::<usize>(), 100);
    }

    #[test]
    fn every_word_makes_a_valid_name_whatever_the_dice_say() {
        for throw in 0..100 {
            assert!(pet(|sides| throw % sides).is_ok(), "{throw}");
        }
        let longest = |words: &[&str]| words.iter().map(|word| word.len()).max().unwrap();
        let breed = KINDS.iter().map(|(_, _, breeds)| longest(breeds)).max().unwrap();
        assert!(longest(&TITLES) + longest(&GIVEN_NAMES) + breed < 100);
    }

    #[test]
    fn the_same_throws_make_the_same_animals() {
        assert_eq!(pets(7, 1_000), pets(7, 1_000));
        assert_ne!(pets(7, 10), pets(8, 10));
    }

    #[test]
    fn no_word_is_there_twice() {
        assert_eq!(GIVEN_NAMES.iter().collect::<BTreeSet<_>>().len(), GIVEN_NAMES.len());
        assert_eq!(TITLES.iter().collect::<BTreeSet<_>>().len(), TITLES.len());
    }

    #[test]
    fn a_thousand_animals_are_a_believable_mix() {
        let pets = pets(1, 1_000);
        let of = |status| pets.iter().filter(|pet| pet.status == status).count();
        let [available, pending, sold] = PetStatus::ALL.map(|status| of(Some(status)));
        assert!(available > sold && sold > pending && pending > of(None) && of(None) > 0);
        for (category, _, _) in KINDS {
            assert!(pets.iter().any(|pet| pet.category_id.0 == category), "{category}");
        }
        let names: BTreeSet<&str> = pets.iter().map(|pet| pet.name.as_str()).collect();
        assert!(names.len() > 300, "{} names", names.len());
        for form in [" the ", "Captain "] {
            assert!(names.iter().any(|name| name.contains(form)), "{form}");
        }
    }
}
