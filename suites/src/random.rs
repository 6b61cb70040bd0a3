//! Pseudorandom numbers: the same seed gives the same sequence.

use std::time::UNIX_EPOCH;

/// The given seed, or else one that no earlier run had. Prints it, so that the run can be repeated.
pub(crate) fn printed_seed(given: Option<u64>) -> u64 {
    let seed = given.unwrap_or_else(|| UNIX_EPOCH.elapsed().unwrap_or_default().as_secs());
    println!("seed {seed}");
    seed
}

/// A linear congruential generator. It returns the upper bits of its state, which are the better ones.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// The generator of one worker; the workers of a run get different sequences.
    pub(crate) fn of_worker(seed: u64, worker: u64) -> Self {
        let mut random = Self((seed ^ worker << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// From 0 to `limit - 1`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// An index into a list of this length; 0 if the list is empty.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length.max(1) as u64)).unwrap_or_default()
    }

    /// One of the choices, of which there must be at least one.
    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// True with this probability, in percent.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// 16 characters that no other call returns.
    pub(crate) fn unique(&mut self) -> String {
        format!("{:08x}{:08x}", self.next(), self.next())
    }
}
