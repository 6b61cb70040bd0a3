//! Pseudorandom numbers: the same seed gives the same sequence, whatever the version of a library.

/// A linear congruential generator. It returns the upper bits of its state, which are the better ones.
pub(crate) struct Random(u64);

impl Random {
    /// The generator of one run of a simulation.
    pub(crate) fn of_run(seed: u64, run: u64) -> Self {
        let mut random = Self((seed ^ run << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// An index into a list of this length; 0 if the list is empty.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.next() % length.max(1) as u64).unwrap_or_default()
    }

    /// One of the choices, of which there must be at least one.
    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// True with this probability, in percent.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}
