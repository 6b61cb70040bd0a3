//! Writes the manual pages and shell completions of the command line, for packages.
//!
//! A program of its own rather than a hidden command: what makes pages has no place on a server.

use std::path::PathBuf;
use std::{fs, io};

use clap::{CommandFactory, Parser};
use clap_complete::{Shell, generate_to};
use petstore::cli::Cli;

/// Writes a manual page for each command, and completions for bash, fish and zsh.
#[derive(Parser)]
struct Pages {
    /// The folder to write to, made if it is not there.
    to: PathBuf,
}

fn main() -> io::Result<()> {
    let Pages { to } = Pages::parse();
    fs::create_dir_all(&to)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        generate_to(shell, &mut Cli::command(), "petstore", &to)?;
    }
    // Every command has a page of its own; `help` would only repeat them.
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), &to)
}
