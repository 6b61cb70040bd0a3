//! How much memory a node needs and uses.

/// The most memory that one connection may use before its client has sent a valid key.
pub(crate) const KILOBYTES_PER_CONNECTION: u64 = 60;

/// The memory that a node needs at most, in megabytes, as in docs/operations.md.
pub(crate) fn memory_needed(connections: u64, requests: u64) -> u64 {
    64 + (connections * KILOBYTES_PER_CONNECTION + requests * 2 * 32) / 1024
}

/// The resident memory of a process, in kilobytes: now (`VmRSS:`), or at most so far (`VmHWM:`).
pub(crate) fn resident_kilobytes(process: u32, which: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(which)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
