//! Orders: placing, changing and ending them, and what others do to them at the same time.

mod expiry;
mod interrupted;
mod life_cycle;
mod races;
mod transitions;
mod update;
