//! Processes: running programs, what they use, and free addresses.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use crate::Outcome;

/// Runs a program to completion and returns its standard output.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Outcome<String> {
    run(Command::new(program).args(arguments))
}

pub(super) fn run(command: &mut Command) -> Outcome<String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// CPU seconds of a process, and of its children that have exited.
pub(crate) struct CpuTime {
    pub(crate) own: f64,
    pub(crate) exited_children: f64,
}

/// The CPU time that a process has used.
pub(crate) fn cpu_seconds(id: u32) -> Outcome<CpuTime> {
    let statistics = fs::read_to_string(format!("/proc/{id}/stat"))?;
    let fields: Vec<&str> = statistics.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // In hundredths of a second: user time, then system time.
    let seconds = |place: usize| -> Outcome<f64> {
        let (user, system) = (fields.get(place).ok_or("no time")?, fields.get(place + 1).ok_or("no time")?);
        Ok((user.parse::<f64>()? + system.parse::<f64>()?) / 100.0)
    };
    Ok(CpuTime { own: seconds(11)?, exited_children: seconds(13)? })
}

/// The peak resident memory of a process, in megabytes.
pub(crate) fn peak_megabytes(id: u32) -> Outcome<f64> {
    Ok(kilobytes(id, "VmHWM:")? / 1024.0)
}

/// Sends a signal.
pub(crate) fn signal(process: u32, name: &str) -> Outcome {
    output("kill", &["-s", name, &process.to_string()]).map(drop)
}

/// A process that is stopped with SIGSTOP, and continues on drop.
pub(crate) struct Frozen(u32);

impl Frozen {
    pub(super) fn stop(process: u32) -> Outcome<Self> {
        signal(process, "STOP").map(|()| Self(process))
    }

    /// Ends a receiver before it reads what was sent to it while it was frozen.
    pub(crate) fn terminate(self) -> Outcome {
        signal(self.0, "TERM")
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // The process may have exited.
        let _ = signal(self.0, "CONT");
    }
}

/// A line of `/proc/ID/status`.
pub(super) fn kilobytes(id: u32, name: &str) -> Outcome<f64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or(format!("no {name}"))?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// A free address.
pub(crate) fn free_address() -> Outcome<SocketAddr> {
    free_addresses().map(|(address, _)| address)
}

/// Two free addresses. Two separate calls could return the same one.
pub(crate) fn free_addresses() -> Outcome<(SocketAddr, SocketAddr)> {
    let (one, other) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    Ok((one.local_addr()?, other.local_addr()?))
}
