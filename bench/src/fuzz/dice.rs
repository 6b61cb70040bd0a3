//! Random choices, the same for the same seed.

use crate::random::Random;

/// Makes the choices of one worker.
pub(super) struct Dice(Random);

impl Dice {
    /// Different workers of one run choose differently.
    pub(super) fn new(seed: u64, worker: u64) -> Self {
        let mut random = Random((seed ^ worker << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        random.next();
        Self(random)
    }

    /// From 0 up to, and without, the limit; 0 if the limit is 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.0.below(limit.max(1) as u64)).unwrap_or_default()
    }

    /// True in so many of a hundred cases.
    pub(super) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of these, which must not be empty.
    pub(super) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// An id from 1 up to the limit.
    pub(super) fn id(&mut self, limit: usize) -> usize {
        1 + self.below(limit)
    }

    pub(super) fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap_or_default()
    }

    /// Text of 16 characters that no other call returns.
    pub(super) fn unique(&mut self) -> String {
        format!("{:08x}{:08x}", self.0.next(), self.0.next())
    }
}
