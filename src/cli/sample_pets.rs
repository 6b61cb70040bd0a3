//! Realistic sample pets for the demo and for tests, made from the words below and the caller's random numbers.
//!
//! The same numbers give the same pets. Another version of the program may have other words and so give other pets.

use petstore_domain::metadata::Metadata;
use petstore_domain::pet::{CategoryId, NewPet, PetName, PetNameError, PetStatus};

/// The categories: id, percentage of pets, breeds.
#[rustfmt::skip]
const CATEGORIES: [(i64, usize, &[&str]); 8] = [
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

/// The percentage of pets with each status; some have none.
const STATUSES: [(Option<PetStatus>, usize); 4] =
    [(Some(PetStatus::Available), 62), (Some(PetStatus::Sold), 25), (Some(PetStatus::Pending), 9), (None, 4)];

/// Generates a pet. `random_below` returns a random number from 0 up to, but not including, its argument.
///
/// Most have a plain name, some a title or a breed: Pepper, Captain Pepper, Pepper the whippet.
pub(super) fn sample_pet(mut random_below: impl FnMut(usize) -> usize) -> Result<NewPet, PetNameError> {
    let categories = CATEGORIES.map(|(category, percentage, breeds)| ((category, breeds), percentage));
    let (category, breeds) = pick_weighted(categories, &mut random_below);
    let given = pick(&GIVEN_NAMES, &mut random_below);
    let name = match random_below(10) {
        0..6 => given.to_owned(),
        6..9 => format!("{given} the {}", pick(breeds, &mut random_below)),
        _ => format!("{} {given}", pick(&TITLES, &mut random_below)),
    };
    let status = pick_weighted(STATUSES, &mut random_below);
    Ok(NewPet {
        name: PetName::try_from(name)?,
        category_id: CategoryId(category),
        status,
        reference: None,
        metadata: Metadata::default(),
    })
}

fn pick<'a>(words: &[&'a str], random_below: &mut impl FnMut(usize) -> usize) -> &'a str {
    words[random_below(words.len())]
}

/// Picks one of the choices, each with its percentage.
fn pick_weighted<T: Copy, const N: usize>(
    choices: [(T, usize); N],
    random_below: &mut impl FnMut(usize) -> usize,
) -> T {
    let mut number = random_below(100);
    for (choice, percentage) in choices {
        if number < percentage {
            return choice;
        }
        number -= percentage;
    }
    choices[0].0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A simple random number generator: the high bits of a linear congruential generator.
    fn rng(mut state: u64) -> impl FnMut(usize) -> usize {
        move |bound| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % bound
        }
    }

    fn pets(seed: u64, count: usize) -> Vec<NewPet> {
        let mut rng = rng(seed);
        (0..count).map(|_| sample_pet(&mut rng).unwrap()).collect()
    }

    #[test]
    fn percentages_add_up_to_100() {
        assert_eq!(CATEGORIES.iter().map(|(_, percentage, _)| percentage).sum::<usize>(), 100);
        assert_eq!(STATUSES.iter().map(|(_, percentage)| percentage).sum::<usize>(), 100);
    }

    #[test]
    fn every_name_is_valid_whatever_the_random_numbers() {
        for number in 0..100 {
            assert!(sample_pet(|bound| number % bound).is_ok(), "{number}");
        }
        let longest = |words: &[&str]| words.iter().map(|word| word.len()).max().unwrap();
        let breed = CATEGORIES.iter().map(|(_, _, breeds)| longest(breeds)).max().unwrap();
        assert!(longest(&TITLES) + longest(&GIVEN_NAMES) + breed < 100);
    }

    #[test]
    fn the_same_random_numbers_give_the_same_pets() {
        assert_eq!(pets(7, 1_000), pets(7, 1_000));
        assert_ne!(pets(7, 10), pets(8, 10));
    }

    #[test]
    fn no_name_or_title_is_listed_twice() {
        assert_eq!(GIVEN_NAMES.iter().collect::<BTreeSet<_>>().len(), GIVEN_NAMES.len());
        assert_eq!(TITLES.iter().collect::<BTreeSet<_>>().len(), TITLES.len());
    }

    #[test]
    fn a_thousand_pets_are_a_realistic_mix() {
        let pets = pets(1, 1_000);
        let of = |status| pets.iter().filter(|pet| pet.status == status).count();
        let [available, pending, sold] = PetStatus::ALL.map(|status| of(Some(status)));
        assert!(available > sold && sold > pending && pending > of(None) && of(None) > 0);
        for (category, _, _) in CATEGORIES {
            assert!(pets.iter().any(|pet| pet.category_id.0 == category), "{category}");
        }
        let names: BTreeSet<&str> = pets.iter().map(|pet| pet.name.as_str()).collect();
        assert!(names.len() > 300, "{} names", names.len());
        for form in [" the ", "Captain "] {
            assert!(names.iter().any(|name| name.contains(form)), "{form}");
        }
    }
}
