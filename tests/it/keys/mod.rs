//! API keys: what they allow, how they are created, rotated and revoked, and when a change takes effect.

mod apply;
mod authentication;
mod life_cycle;
mod lineages;
mod model;
mod retries_after_rotation;
mod revoked_while_waiting;
