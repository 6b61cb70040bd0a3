//! Writes the manual pages and shell completions of the command line, for packages.
//!
//! A separate program rather than a hidden command: the generators have no place in the binary that serves.

use std::path::PathBuf;
use std::{fs, io};

use clap::{CommandFactory, Parser};
use clap_complete::{Shell, generate_to};
use petstore::cli::Cli;

/// Writes a manual page for each command, and completions for bash, fish and zsh.
#[derive(Parser)]
struct Manpages {
    /// The directory to write to. It is created if it does not exist.
    output: PathBuf,
}

fn main() -> io::Result<()> {
    let Manpages { output } = Manpages::parse();
    fs::create_dir_all(&output)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        generate_to(shell, &mut Cli::command(), "petstore", &output)?;
    }
    // Every command has its own page; `help` would only repeat them.
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), &output)
}
